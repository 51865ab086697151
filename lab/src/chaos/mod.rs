//! The chaos lab: real processes, real servers, faults drawn from a seed, and a verdict over the
//! whole history. The verdict must never know how a store keeps its promises.
//!
//! | file | content |
//! |---|---|
//! | `options`, `output` | the options of the command line, and the printed lines |
//! | `command` | chooses and runs the runs |
//! | `run` | one run from start to verdict |
//! | `stores` | the stores, and the ways to break each |
//! | `worker_group`, `worker`, `worker_settings` | the processes that take locks |
//! | `referee` | the registers that the locks protect, and the history |
//! | `nemesis`, `database_file` | inject the faults |
//! | `history` | the events of a run |
//! | `verdict` | checks the promises against a history; pure |
//! | `gateways` | the kick-out gateway, with its own nodes, clients and faults |
//! | `planted_bugs` | deliberate bugs, to show that the verdict finds them |
//! | `controls` | locks of other libraries, under the same faults |

mod command;
mod controls;
mod database_file;
mod gateways;
mod history;
mod nemesis;
mod options;
mod output;
mod planted_bugs;
mod referee;
mod run;
mod stores;
mod verdict;
mod worker;
mod worker_group;
mod worker_settings;

pub(crate) use command::run;
pub(crate) use gateways::{NodeSettings, serve};
pub(crate) use options::ChaosOptions;
pub(crate) use stores::StoreKind;
pub(crate) use worker::run as work;
pub(crate) use worker_settings::WorkerSettings;
