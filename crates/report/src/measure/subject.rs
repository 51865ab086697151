//! What is measured: a way of taking and freeing locks, and the totals of what reached its store.

use std::{fmt, future::Future};

/// One way of taking and freeing locks: a locker, a raw driver, another library.
///
/// The workload's loops are compiled once per subject, so a subject that answers in nanoseconds is not measured through
/// boxed futures.
pub trait Subject: Send + Sync + 'static {
    /// What stands for a held lock.
    type Held: Send;
    /// What a failed operation says.
    type Error: fmt::Display + Send;

    /// Takes the lock, waiting while somebody holds it.
    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held, Self::Error>> + Send;

    /// Frees the lock.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Running totals of what reached the store.
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// Running totals of what reached a store; `None` = cannot be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls to the backend's contract, or driver calls of a raw subject.
    pub operations: Option<u64>,
    /// Statements or commands that went to the store.
    pub statements: Option<u64>,
    /// Changes that were begun anew because somebody was in between.
    pub retries: Option<u64>,
    /// Loads behind a cache.
    pub loads: Option<u64>,
}

impl Counters {
    /// What was added since `earlier`.
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
