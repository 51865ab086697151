//! The thing that is measured: a way of taking and releasing locks, with totals of the calls that
//! reached its store.

use std::{fmt, future::Future};

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
