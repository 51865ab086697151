//! The conformance suite that every distlock backend passes, as a library: test your own backend with it.
//!
//! A [`Subject`] says how to open the store. [`cases`] chooses the cases by what the store promises
//! ([`Capabilities`](distlock_core::Capabilities)), and [`run`] or a test binary of a few lines runs them:
//!
//! ```no_run
//! use distlock_conformance::{Subject, mimic};
//! # async fn open() -> distlock_core::Result<distlock_core::Store> { Err(distlock_core::Error::new(distlock_core::ErrorKind::Unsupported, "yours")) }
//!
//! // tests/conformance.rs, declared with `harness = false`
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let arguments = libtest_mimic::Arguments::from_args();
//!     let subject = tokio::runtime::Runtime::new()?.block_on(Subject::connect("mystore", open))?;
//!     mimic(&[subject], &arguments).exit()
//! }
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | `subject` | [`Subject`], [`Workers`]: what is tested |
//! | `case` | [`Case`], [`cases`], [`run`], [`run_with`]: choosing and running |
//! | `mimic` | [`trials`], [`mimic`](mimic()): the suite as a test binary |
//! | [`worker`] | the process that holds locks on the suite's behalf, and its client |
//! | [`history`] | who held what and when, and the check that it was legal |
//! | `cases/` | one file per property |
//! | `layer` | [`RecordsLayer`]: records with a difference, for tests of what rests on a store |
//!
//! # Guarantees
//! The suite may run on a shared store: every case uses names of its own that start with
//! `conformance-` (one case also takes a few bare names such as `.` for an instant), and removes
//! what it left. Nothing is skipped in silence, and nothing passes that was not checked: a case
//! declares what it needs, and shows as not applicable, with the reason, where the store does not
//! promise it. One case for each missing feature checks that the answer is
//! [`Unsupported`](distlock_core::ErrorKind::Unsupported).
//!
//! Bounds on time are either the promise itself (a loss is told at most 250 ms of running time after the deadline, a
//! crashed holder's lock becomes free) or seconds long.

mod case;
mod cases;
mod failure;
pub mod history;
mod mimic;
mod records_layer;
mod spec;
mod subject;
mod support;
pub mod worker;

pub use case::{Case, CaseResult, Options, Status, cases, run, run_with};
pub use failure::{Failure, Outcome};
pub use mimic::{mimic, trials};
pub use records_layer::RecordsLayer;
pub use subject::{Subject, Workers};
