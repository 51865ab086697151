//! Bugs that are planted on purpose, to show that the checks find them.
//!
//! Each bug is a layer between the engine and the network, between a quorum and its members,
//! between a ring and its view, around the engine's clock, or in the user of the engine. The
//! library must never have a switch for a bug.

mod connection;
mod kinds;
mod layers;
mod member;
mod ring;

pub(super) use self::{
    kinds::{EngineBug, Variant},
    layers::{around_clock, around_lock},
    member::{MemberBug, around_member},
    ring::around_view,
};
