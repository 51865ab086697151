//! The simulation: the engine and the in-memory store in simulated time, on a simulated network,
//! in one thread. The seed decides everything, so a failure can be repeated step by step. A run
//! must never read a real clock, use real randomness, or depend on the order of a hash table.
//!
//! | file | content |
//! |---|---|
//! | `command` | the options, and the printed results |
//! | `run` | one seed from start to end |
//! | `setting` | the values that a seed draws |
//! | `executor`, `time` | the executor and the clocks |
//! | `world` | the values that all tasks of a run share |
//! | `network` | late, lost and repeated requests |
//! | `store` | the stores, which can forget |
//! | `quorum` | the same with the locks in a quorum of several stores |
//! | `ring` | the same with the locks in a ring, whose members change |
//! | `members` | the stores of a quorum or a ring |
//! | `worker`, `course` | the tasks that take locks, and the phases with their faults |
//! | `judge`, `observed`, `promise` | the checks after each step |
//! | `batcher` | the same for request batching, alone |
//! | `trace` | the steps of a run |
//! | `planted_bugs` | deliberate bugs, to show that the checks find them |
//!
//! Each process is a [`Locker`](distlock::Locker) of its own. Its local queue and its keeper are
//! polled here like all other tasks. The clock of a process starts at its own moment and runs a
//! little too fast or too slow. Every promise is checked after each poll of any task.

mod batcher;
mod command;
mod course;
mod executor;
mod judge;
mod members;
mod network;
mod observed;
mod planted_bugs;
mod promise;
mod quorum;
mod ring;
mod run;
mod setting;
mod store;
mod time;
mod trace;
mod worker;
mod world;

pub(crate) use command::{SimulateOptions, run};
