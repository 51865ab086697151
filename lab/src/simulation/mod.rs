//! The simulation: the engine and the store in memory in simulated time, on a simulated network,
//! in one thread. The seed decides everything, so a failure is repeated step by step.
//!
//! | file | what is in it |
//! |---|---|
//! | `command` | the command line, and what it prints |
//! | `run` | one seed from start to verdict |
//! | `setting` | the meaning of a seed |
//! | `tasks`, `time` | the executor and the clocks |
//! | `world` | what all tasks of a run share |
//! | `network` | requests that are late, lost, or arrive twice |
//! | `worker`, `director` | those who take locks, and what breaks things |
//! | `judge`, `seen`, `promise` | the checks after each step |
//! | `batcher` | the same for group commit, by itself |
//! | `trace` | what happened |
//! | `planted_bugs` | bugs that are planted, to see the checks find them |
//!
//! Each process is a [`Locker`](distlock::Locker) of its own, with its own queue and keeper, which
//! is polled here like any other task. Its clock was started at another moment and runs a little
//! too fast or too slow. After each poll of any task, every promise is checked.

mod batcher;
mod command;
mod course;
mod executor;
mod judge;
mod network;
mod observed;
mod planted_bugs;
mod promise;
mod result;
mod run;
mod setting;
mod time;
mod trace;
mod worker;
mod world;

pub(crate) use command::{SimulateOptions, run};
