//! Compares stores by measuring them in the same run.
//!
//! | file | content |
//! |---|---|
//! | `command.rs` | the options of `distlock-lab compare` |
//! | `measure.rs` | measures everything, in the order of the report |
//! | `files.rs` | the files of the report, and finished rounds, from which an interrupted run continues |
//! | `stores.rs` | the stores, opened or started |
//! | `plan.rs` | the state of one run: lengths and counts, stores, results so far; time limits |
//! | `rounds.rs` | interleaved rounds: each store in turn; the reason for each missing figure |
//! | `properties.rs` | the conformance suite on each store |
//! | `waiting.rs`, `competing.rs`, `idle.rs`, `kickout.rs`, `recipes.rs` | measurements that are no workloads |
//! | `client.rs` | bytes and memory |
//! | `failures.rs` | faults injected on purpose |
//! | `peers.rs` | raw drivers and other libraries, through `distlock-lab peers` |
//! | `cpu.rs` | processor time of other processes |

mod client;
mod command;
mod competing;
mod cpu;
mod failures;
mod files;
mod idle;
mod kickout;
mod measure;
mod peers;
mod plan;
mod properties;
mod recipes;
mod rounds;
mod stores;
mod waiting;

pub(crate) use command::Compare;
