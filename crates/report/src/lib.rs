//! The measuring engine: workloads, samples, statistics.
//!
//! One workload is run on one or several *arms* (ways of taking and freeing locks), interleaved in rounds: A B, B A, A B.
//! Each round of each arm gives a [`Sample`]; a [`Report`] holds the samples, their medians with spread, and the ratios
//! of every arm over the first one, taken round by round. Machines change speed while a run lasts; neighbours in time do not.
//!
//! ```no_run
//! # async fn example(lock: std::sync::Arc<dyn distlock_core::DistLock>) -> distlock_core::Result<()> {
//! use distlock_report::{Options, Workload, bench};
//!
//! let options = Options::default().concurrency(64);
//! let report = bench(lock, Workload::Independent, &options).await?;
//! println!("{report}"); // an aligned table; it is also `serde::Serialize`
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//! - [`bench()`] measures one backend; [`measure`] measures any number of [`Arm`]s.
//! - [`Workload`] and [`Options`]: what is done, by how many, for how long.
//! - [`Subject`]: what an arm drives. [`LockerSubject`] drives a backend through [`Locker`](distlock_core::Locker) and guards,
//!   and [`CountingLock`] and [`CountingStore`] count what reaches the backend. A raw driver implements [`Subject`] itself.
//! - [`Sample`], [`Latencies`]: what one round saw. [`Figures`], [`Spread`], [`Ratio`]: what is said about it.
//!
//! - [`TakeoverSample`], [`TakeoverReport`]: the same for the kick-out flow, whose cycle is a login that ends another session.
//! - [`Comparison`]: several stores side by side, as data. [`render`] turns it into a page.
//! - [`render::Document`]: any other report, as the same kind of page.
//!
//! # What the figures mean
//! - A *cycle* is one acquire and one release. Its latency is the time from asking to the answer of the release, except in
//!   [`Workload::Handoff`], where it is the time from one task's release to the next task's grant, and in
//!   [`Workload::Counters`], where it is an increment and, after every fourth, a clear. In [`Workload::Cache`] it is one look.
//! - *Operations per cycle* are calls to the backend's contract. A backend with group commit serves many of them in one
//!   round trip, so *statements per cycle* stand beside them where the backend can tell.
//! - *Fairness* is the cycles of the busiest task over those of the idlest, within a round.
//! - Errors are counted, shown and never retried away.

pub mod compare;
mod measure;
pub mod render;
mod results;

pub use compare::Comparison;
pub use measure::{
    arm::Arm,
    counting::{CountingLock, CountingRecords, CountingStore},
    engine::{measure, measure_round},
    locker::{LockerSubject, bench},
    machine::{machine, too_busy},
    subject::{Counters, Subject},
    timing::keep,
    workload::{Options, Workload},
};
pub use results::{
    report::Report,
    sample::{Latencies, Sample},
    statistics::{Figures, Ratio, Spread},
    takeover::{Ended, Quantiles, TakeoverFigures, TakeoverRatio, TakeoverReport, TakeoverSample},
};
