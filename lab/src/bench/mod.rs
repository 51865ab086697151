//! `distlock-lab bench`: measures one store.
//!
//! | file | content |
//! |---|---|
//! | `command` | the options, and the workloads of locks |
//! | `counters` | the workload `counters`: unread counters |
//! | `cache` | the workload `cache`: a guarded cache |
//! | `takeover` | the workload `takeover`: the kick-out flow |

pub(crate) mod cache;
mod command;
pub(crate) mod counters;
mod takeover;

pub(crate) use command::Bench;
