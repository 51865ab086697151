//! Bugs that are planted on purpose: the lab is worth what it catches.
//!
//! Each is a layer around an honest store, around its clock, or in the referee's register, so the
//! library itself has no switch for it.

mod clock;
mod command;
mod deposed;
mod kinds;
mod lock;
mod open;
mod raw_request;
mod records;

pub(in crate::chaos) use self::{
    command::run,
    kinds::StoreBug,
    open::{into_store, open},
};
