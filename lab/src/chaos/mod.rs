//! The chaos lab: real processes, real servers, faults drawn from a seed, and a checker that sees
//! everything and knows of no store how it works.
//!
//! | file | what is in it |
//! |---|---|
//! | `command` | the command line, and what it prints |
//! | `run` | one run from start to verdict |
//! | `stores` | the stores, and how each is broken |
//! | `workload` | what those processes do |
//! | `worker_group`, `worker` | the processes that take locks |
//! | `referee` | the registers that the locks protect, and the history |
//! | `nemesis`, `file` | what breaks things |
//! | `history` | what is written down |
//! | `verdict` | the checker: pure |
//! | `published` | what a run leaves in the published report |
//! | `gateways` | the kick-out gateway: nodes, clients and faults of their own |
//! | `planted_bugs` | bugs that are planted, to see the checker find them |
//! | `controls` | locks that people write or install, under the same faults |

mod command;
mod controls;
mod database_file;
mod gateways;
mod history;
mod nemesis;
mod options;
mod output;
mod planted_bugs;
mod published;
mod referee;
mod run;
mod stores;
mod verdict;
mod worker;
mod worker_group;
mod workload;

pub(crate) use command::run;
pub(crate) use gateways::{NodeSettings, serve};
pub(crate) use options::ChaosOptions;
pub(crate) use worker::{WorkerSettings, run as work};
