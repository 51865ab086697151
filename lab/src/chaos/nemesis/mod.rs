//! The nemesis: injects faults at random, drawn from a seed, and heals them again.

mod actions;
mod heal;
mod inject;
mod kinds;
mod members;
mod ring;
mod servers;

pub(crate) use self::{inject::Nemesis, kinds::FaultKind};
