//! Measures a backend the way callers use it: through a locker and its guards.

use std::{sync::Arc, time::Duration};

use distlock_core::{DistLock, Guard, Locker, Released, Result};

use super::{
    counting::CountingLock,
    engine::measure,
    subject::{Arm, Counters, Subject},
};
use crate::{
    results::report::Report,
    workload::{Options, Workload},
};

/// Measures one backend through [`Locker`] and [`Guard`]. The arm has the name of the backend.
///
/// The function opens a handle of its own and closes it at the end; `lock` stays open. All locks
/// that it takes have names that start with `bench:`, and all are released. Rows that a store keeps
/// for a while after a release are left to its reaper.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) when the options do
/// not fit the workload, and any error of opening a handle. Later failures are counted in the
/// report.
///
/// # Cancel safety
/// Safe to drop: held locks are released in the background, as when a guard is dropped.
///
/// # Panics
/// When the backend panics.
pub async fn bench(
    lock: Arc<dyn DistLock>,
    workload: Workload,
    options: &Options,
) -> Result<Report> {
    options.checked_callers(workload)?;
    let name = lock.capabilities().backend;
    let subject = LockerSubject::new(lock.reopen().await?);
    let locker = subject.locker().clone();
    locker.ready().await?;
    let report = measure(&[Arm::new(name, subject)], workload, options).await;
    locker.close().await;
    report
}

/// A backend that is used through [`Locker`] and [`Guard`]. Every call to the backend is counted.
#[derive(Debug)]
pub struct LockerSubject {
    locker: Locker,
    calls: CountingLock,
    ttl: Duration,
}

impl LockerSubject {
    /// Makes a new locker on `lock`.
    #[must_use]
    pub fn new(lock: Arc<dyn DistLock>) -> Self {
        let ttl = lock.capabilities().default_ttl;
        let calls = CountingLock::new(lock);
        Self {
            locker: Locker::new(Arc::new(calls.clone())),
            calls,
            ttl,
        }
    }

    /// The locker that is measured.
    #[must_use]
    pub const fn locker(&self) -> &Locker {
        &self.locker
    }
}

impl Subject for LockerSubject {
    type Held = Guard;
    type Error = String;

    async fn acquire(&self, name: &str) -> Result<Guard, String> {
        let lock = self.locker.lock(name).ttl(self.ttl);
        lock.acquire().await.map_err(|error| error.to_string())
    }

    async fn release(&self, guard: Guard) -> Result<(), String> {
        match guard.release().await {
            Released::Clean => Ok(()),
            Released::AlreadyLost(reason) => Err(format!("lost while held: {reason}")),
            Released::Unconfirmed(error) => Err(format!("release not confirmed: {error}")),
            other => Err(format!("unknown answer to a release: {other:?}")),
        }
    }

    fn counters(&self) -> Counters {
        Counters {
            operations: Some(self.calls.calls()),
            statements: self.calls.requests_sent(),
            ..Counters::default()
        }
    }
}
