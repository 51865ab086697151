//! A process that takes locks, uses them, and says all that it sees.

mod closures;
mod control;
mod hold;
mod leftovers;
mod line;
mod locks;
mod meter;
mod notes;
mod process;
mod recipes;
mod records;
mod run;
mod settings;
mod task;

pub(crate) use self::{leftovers::leftovers, process::run, settings::Settings};
