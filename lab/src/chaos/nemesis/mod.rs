//! The nemesis: injects faults at random, drawn from a seed, and heals them again.

mod actions;
mod active;
mod heal;
mod inject;
mod injector;
mod kinds;
mod servers;

pub(crate) use self::{injector::Nemesis, kinds::FaultKind};
