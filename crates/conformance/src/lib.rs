//! The conformance suite of distlock's backends, as a library. Test your own backend with it.
//!
//! A [`Subject`] knows how to open the store. [`cases`] chooses the cases by the store's
//! [`Capabilities`](distlock_core::Capabilities), and [`run`] or a test binary of a few lines runs
//! them:
//!
//! ```no_run
//! use distlock_conformance::{Subject, mimic};
//! # use distlock_core::{Error, ErrorKind, Result, Store};
//! # async fn open() -> Result<Store> { Err(Error::new(ErrorKind::Unsupported, "yours")) }
//!
//! // tests/conformance.rs, declared with `harness = false`
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let arguments = libtest_mimic::Arguments::from_args();
//!     let subject = tokio::runtime::Runtime::new()?.block_on(Subject::connect("mystore", open))?;
//!     mimic(&[subject], &arguments).exit()
//! }
//! ```
//!
//! | module | content |
//! |---|---|
//! | `subject` | [`Subject`], [`Workers`]: the store under test and its worker processes |
//! | `spec` | the declaration of a case, and the features that it needs |
//! | `case` | [`Case`], [`cases`], [`run`], [`run_with`]: choosing and running cases |
//! | `mimic` | [`trials`], [`mimic`](mimic()): the suite as a test binary |
//! | [`worker`] | the process that holds locks on the suite's behalf, and its client |
//! | [`history`] | all recorded holds in order of time, and the check that no two overlap |
//! | `cases/` | one file per property |
//! | `support/` | clients, names, steps and time for the cases |
//! | `lock_layer` | [`LockLayer`]: a lock with injected faults, planted bugs or recorded calls |
//! | `records_layer` | [`RecordsLayer`]: records with injected faults, for tests above a store |
//!
//! # Guarantees
//! The suite may run on a shared store. Every case uses its own names, which start with
//! `conformance-` (one case also takes a few bare names such as `.` for a moment), and removes its
//! leftovers. No case is skipped in silence, and no case passes without a check: a case declares
//! the features that it needs, and shows as not applicable, with the reason, where the store lacks
//! one. For each feature that may be missing, one case checks that the answer is
//! [`Unsupported`](distlock_core::ErrorKind::Unsupported).
//!
//! A bound on time is either the promise itself (a loss is reported at most 250 ms of running time
//! after the deadline; a crashed holder's lock becomes free), or seconds long, so that a busy
//! machine does not fail a case.

mod case;
mod cases;
mod failure;
pub mod history;
mod lock_layer;
mod mimic;
mod records_layer;
mod spec;
mod subject;
mod support;
mod time;
pub mod worker;

pub use case::{Case, CaseResult, Options, Status, cases, run, run_with};
pub use failure::{Failure, Outcome};
pub use lock_layer::LockLayer;
pub use mimic::{mimic, trials};
pub use records_layer::RecordsLayer;
pub use subject::{Subject, Workers};
