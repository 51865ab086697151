//! A worker: a process that takes locks, uses them, and records every step. A worker must never
//! judge its own observations.

mod control;
mod fair;
mod hold;
mod local_queue;
mod locks;
mod process;
mod recipes;
mod records;
mod referee_client;
mod run;
mod scopes;
mod shared;
mod task;

pub(crate) use self::{process::run, run::leftovers};
