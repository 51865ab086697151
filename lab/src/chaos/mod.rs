//! The chaos lab: real processes, real servers, faults drawn from a seed, and a checker that sees
//! everything and knows of no store how it works.
//!
//! | file | what is in it |
//! |---|---|
//! | `command` | the command line, and what it prints |
//! | `run` | one run from start to verdict |
//! | `stores` | the stores, and how each is broken |
//! | `crew`, `worker` | the processes that take locks |
//! | `referee` | the registers that the locks protect, and the history |
//! | `nemesis`, `file` | what breaks things |
//! | `history` | what is written down |
//! | `verdict` | the checker: pure |
//! | `report` | what is published |
//! | `plants` | bugs that are planted, to see the checker find them |

mod command;
mod crew;
mod file;
mod history;
mod nemesis;
mod plants;
mod referee;
mod report;
mod run;
mod stores;
mod verdict;
mod worker;

pub(crate) use command::{Chaos, run};
pub(crate) use worker::{Settings, run as work};
