//! Bugs that are planted on purpose, to show that the verdict finds them.
//!
//! Each bug is a layer around an honest store, around its clock, or in the referee's register. The
//! library must never have a switch for a bug.

mod clock;
mod command;
mod deposed;
mod kinds;
mod lock;
mod records;

pub(in crate::chaos) use self::{
    clock::{open, wrap_store},
    command::run,
    kinds::StoreBug,
};
