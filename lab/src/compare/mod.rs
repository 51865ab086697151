//! Compares stores by measuring them in the same run.
//!
//! | file | content |
//! |---|---|
//! | `command.rs` | the options of `distlock-lab compare` |
//! | `measure.rs` | measures everything, in the order of the report |
//! | `run.rs` | the state of one run: its stores and its results so far |
//! | `files.rs` | the files of the report |
//! | `stores.rs` | the stores, opened or started |
//! | `plan.rs` | lengths and counts of all measurements |
//! | `rounds.rs` | interleaved rounds: each store in turn |
//! | `gaps.rs` | the reason for each missing figure |
//! | `patience.rs` | time limits and pauses |
//! | `properties.rs` | the conformance suite on each store |
//! | `waiting.rs`, `competing.rs`, `idle.rs`, `kickout.rs`, `recipes.rs` | measurements that are no workloads |
//! | `client.rs` | bytes and memory |
//! | `failures.rs` | faults injected on purpose |
//! | `peers.rs` | raw drivers and other libraries, through `distlock-lab peers` |
//! | `cpu.rs` | processor time of other processes |
//! | `kept.rs` | finished rounds, which an interrupted run uses when it continues |

mod client;
mod command;
mod competing;
mod cpu;
mod failures;
mod files;
mod gaps;
mod idle;
mod kept;
mod kickout;
mod measure;
mod patience;
mod peers;
mod plan;
mod properties;
mod recipes;
mod rounds;
mod run;
mod stores;
mod waiting;
mod wire;

pub(crate) use command::Compare;
