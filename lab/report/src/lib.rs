//! The measuring engine: workloads, samples, statistics, and the pages that show the results.
//!
//! One workload runs on one or several *arms* (ways of taking and releasing locks), interleaved in
//! rounds: A B, B A, A B. Each round of each arm gives a [`Sample`]. A [`Report`] holds the
//! samples, their medians with spread, and the ratios of every arm over the first one, taken round
//! by round. The speed of a machine changes while a run lasts, but hardly between two neighbouring
//! rounds.
//!
//! ```no_run
//! # async fn example(
//! #     lock: std::sync::Arc<dyn distlock_core::DistLock>,
//! # ) -> distlock_core::Result<()> {
//! use distlock_report::{Options, Workload, bench};
//!
//! let options = Options { concurrency: Some(64), ..Options::default() };
//! let report = bench(lock, Workload::Independent, &options).await?;
//! println!("{report}"); // an aligned table; it is also `serde::Serialize`
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//! - [`bench()`] measures one backend; [`measure()`] measures any number of [`Arm`]s.
//! - [`Workload`] and [`Options`]: the work, the number of callers, the time.
//! - [`Subject`]: the thing that an arm measures. [`LockerSubject`] drives a backend through
//!   [`Locker`](distlock_core::Locker) and guards. [`CountingLock`] and [`CountingStore`] count the
//!   calls that reach the backend. A raw driver implements [`Subject`] itself.
//! - [`Sample`], [`Latencies`]: the results of one round. [`Figures`], [`Spread`], [`Ratio`]: the
//!   figures computed from them.
//! - [`Comparison`]: several stores side by side, as data; [`render::comparison()`] makes its page.
//! - [`render::Document`]: a page of any report.
//!
//! # Meaning of the figures
//! - A *figure* is a number that is measured, or computed from measurements. A drawing of figures
//!   is called a *chart*.
//! - A *cycle* is one acquire and one release. The latency of a cycle is the time from the request
//!   of the acquire to the answer of the release. In [`Workload::Handoff`] the latency is the time
//!   from one task's release to the next task's grant. In [`Workload::Counters`] a cycle is an
//!   increment and, in one cycle of four, also a clear. In [`Workload::Cache`] a cycle is one read
//!   of the cached value. In [`Workload::Takeover`] a cycle is a login that ends another session,
//!   or a message, and each of the times that are measured on the way is an arm.
//! - *Operations per cycle* are calls to the backend's contract. A backend with batches serves many
//!   of them in one round trip, so the report also shows *statements per cycle* where the backend
//!   reports them.
//! - *Fairness* is the cycles of the busiest task over the cycles of the idlest one, within a
//!   round.
//! - Errors are counted and shown, and no error is hidden by a retry.

pub mod compare;
mod measure;
pub mod render;
mod results;
mod text;
mod workload;

pub use compare::Comparison;
pub use measure::{
    counting::{CountingLock, CountingRecords, CountingStore},
    engine::{measure, measure_round},
    locker::{LockerSubject, bench},
    machine::{load_warning, machine},
    subject::{Arm, Counters, Subject, hold_for},
};
pub use results::{
    report::Report,
    sample::{Latencies, Sample},
    statistics::{Figures, Ratio, Spread},
};
pub use workload::{Options, Workload};
