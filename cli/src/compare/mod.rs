//! The comparison of stores, measured side by side.
//!
//! | file | content |
//! |---|---|
//! | `measure.rs` | everything that is measured, in the order of the report |
//! | `run.rs` | the state of one run: its stores and what was found so far |
//! | `files.rs` | the report's files |
//! | `stores.rs` | the stores, opened or started |
//! | `plan.rs` | how much is measured |
//! | `rounds.rs` | interleaved rounds: each store in turn |
//! | `gaps.rs` | the reason for each missing figure |
//! | `patience.rs` | an end to waiting, and pauses |
//! | `properties.rs` | the answers of the conformance suite on that very server |
//! | `waiting.rs`, `competing.rs`, `idle.rs`, `kickout.rs`, `recipes.rs` | measurements beside the workloads |
//! | `client.rs` | bytes and memory |
//! | `failures.rs` | faults injected on purpose |
//! | `peers.rs` | raw drivers and other libraries, through `distlock-peers` |
//! | `cpu.rs` | processor time that other programs take meanwhile |
//! | `kept.rs` | finished rounds, so that an interrupted run goes on |

mod client;
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

pub(crate) use self::{
    files::render_again,
    measure::{ComparisonOptions, measure},
    plan::Effort,
    stores::StoreToSpawn,
};
