//! Bugs that are planted on purpose, to show that the verdict finds them.
//!
//! Each bug is a layer around an honest store, around its clock, or in the referee's register. A
//! bug of a lock server can also be a restart that no operator would make. The library must never
//! have a switch for a bug. The simulation has the bugs of a ring that need a moment of bad luck.
//!
//! A lock server that serves an older connection of a client after a newer one is no bug of this
//! list, because it breaks no promise of the verdict. What comes late is refused by its owner and
//! token, except an acquire. That gives the lock to an owner without a guard until its lease ends.

mod agent;
mod attempts;
mod clock;
mod command;
mod deposed;
mod forged;
mod kinds;
mod lock;
mod records;
mod ring;

pub(in crate::chaos) use self::{
    clock::{open, wrap_store},
    command::run,
    kinds::StoreBug,
};
