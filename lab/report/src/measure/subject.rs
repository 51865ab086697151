//! The thing that is measured: a way of taking and releasing locks, with totals of the calls that
//! reached its store.
//!
//! An arm: a subject with a name, ready to be measured.
//!
//! Real time. Only this module reads the machine's clock or sleeps: the measured times are real
//! times, and no lease depends on them.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use super::round::{Round, run_round};
use crate::results::sample::Sample;

/// One way of taking and releasing locks: a locker, a raw driver, another library.
///
/// The loops of a workload are compiled once per subject, without boxed futures. A box would
/// falsify the times of a subject that answers in nanoseconds.
pub trait Subject: Send + Sync + 'static {
    /// The value of a held lock.
    type Held: Send;
    /// The error of a failed operation.
    type Error: fmt::Display + Send;

    /// Takes the lock; waits while it is held.
    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held, Self::Error>> + Send;

    /// Releases the lock.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Running totals of the calls that reached the store.
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// Running totals of the calls that reached a store; `None` = unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls to the backend's contract, or driver calls of a raw subject.
    pub operations: Option<u64>,
    /// Statements or commands that went to the store.
    pub statements: Option<u64>,
    /// Changes that were started again, because another caller changed the same data in between.
    pub retries: Option<u64>,
    /// Values that were loaded because the cache had none that was fresh.
    pub loads: Option<u64>,
}

impl Counters {
    /// How much each total has grown since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        let grown = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            operations: grown(self.operations, earlier.operations),
            statements: grown(self.statements, earlier.statements),
            retries: grown(self.retries, earlier.retries),
            loads: grown(self.loads, earlier.loads),
        }
    }
}

/// A named subject, ready to be measured together with others.
pub struct Arm {
    name: String,
    run: Box<dyn Fn(Round) -> RunningRound + Send + Sync>,
}

/// A running round of one arm.
type RunningRound = Pin<Box<dyn Future<Output = Sample> + Send>>;

impl Arm {
    /// Gives a subject its name in the report.
    pub fn new<S: Subject>(name: impl Into<String>, subject: S) -> Self {
        Self::shared(name, Arc::new(subject))
    }

    /// As [`new`](Self::new), for a subject that the caller still uses.
    pub fn shared<S: Subject>(name: impl Into<String>, subject: Arc<S>) -> Self {
        Self {
            name: name.into(),
            run: Box::new(move |round| Box::pin(run_round(Arc::clone(&subject), round))),
        }
    }

    /// The name of the arm.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs one round, and returns its sample.
    pub(crate) async fn run(&self, round: Round) -> Sample {
        (self.run)(round).await
    }
}

impl fmt::Debug for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arm").field(&self.name).finish()
    }
}

/// The present moment.
#[expect(
    clippy::disallowed_methods,
    reason = "throughput and latency are measured in real time; no lease depends on it"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Pauses after an error, so that a run against a dead store does not spin.
#[expect(
    clippy::disallowed_methods,
    reason = "a pause between failures in real time; no lease depends on it"
)]
pub(crate) async fn pause_after_error() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// Waits for the given time while a lock is held, exact to less than a millisecond.
///
/// # Cancel safety
/// Safe to drop: nothing is changed.
pub async fn hold_for(time: Duration) {
    if !time.is_zero() {
        // Tokio's timers have a resolution of one millisecond and round up, so a wait of one
        // millisecond could take two.
        async_io::Timer::after(time).await;
    }
}
