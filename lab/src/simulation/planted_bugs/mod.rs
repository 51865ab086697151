//! Bugs that are planted on purpose: a check is worth what it catches.
//!
//! Each is a layer between the engine and the network, around the engine's clock, or in whoever
//! uses the engine. The library itself has no switch for them.

mod clock;
mod connection;
mod kinds;
mod layers;

pub(super) use self::{
    kinds::{EngineBug, Variant},
    layers::{around_clock, around_lock},
};
