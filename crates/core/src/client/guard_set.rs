//! Several locks at once, all or nothing.
//!
//! This module owns the order in which the locks of a set are taken and released. Invariant: locks
//! are taken in the byte order of their names, so that two sets never wait for each other. An
//! incomplete set is never returned: its locks are released.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use crate::{
    client::{
        builder::{LockOptions, take},
        guard::Guard,
    },
    clock::Clock,
    contract::LossReason,
    engine::{
        acquire::WantedLock,
        bounded::{Wait, at_most},
        parts::LockerParts,
        release::Released,
    },
    types::{
        error::{Error, ErrorKind, Result},
        name::LockName,
    },
};

/// Several held locks that are released together.
#[derive(Debug)]
#[must_use = "the locks are released when the set is dropped"]
pub struct GuardSet {
    guards: Vec<Guard>,
}

impl GuardSet {
    /// The guards, in the byte order of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Whether all locks of the set are certainly held.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(Guard::is_valid)
    }

    /// Resolves when the first lock of the set is lost, with its name and the reason. Never
    /// resolves if no lock is lost.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> (LockName, LossReason) {
        let mut watches: Vec<_> = self
            .guards
            .iter()
            .map(|guard| (guard.name(), Box::pin(guard.lost())))
            .collect();
        poll_fn(|context| {
            for (name, loss) in &mut watches {
                if let Poll::Ready(reason) = Pin::new(loss).poll(context) {
                    return Poll::Ready(((*name).clone(), reason));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Releases all locks of the set at the same time, so that a hanging store delays the caller by
    /// the time of one release only. Requests and results are in the reverse order of the names.
    ///
    /// # Cancel safety
    /// Safe: locks that are not released by then are released in the background.
    pub async fn release(self) -> Vec<(LockName, Released)> {
        let one = |guard: Guard| async move { (guard.name().clone(), guard.release().await) };
        let mut waiting: Vec<_> = self
            .guards
            .into_iter()
            .rev()
            .map(|guard| (Box::pin(one(guard)), None))
            .collect();
        poll_fn(|context| {
            for (release, answer) in waiting.iter_mut().filter(|(_, answer)| answer.is_none()) {
                if let Poll::Ready(released) = release.as_mut().poll(context) {
                    *answer = Some(released);
                }
            }
            if waiting.iter().all(|(_, answer)| answer.is_some()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let answers = waiting.into_iter().filter_map(|(_, answer)| answer);
        answers.collect()
    }

    /// Releases an incomplete set. Locks without an answer by the end of the call are released in
    /// the background.
    async fn release_incomplete(self, clock: &dyn Clock, wait: Wait) {
        let _ = at_most(clock, wait.left_at_store(clock.now()), self.release()).await;
    }
}

pub(crate) async fn acquire(
    parts: &Arc<LockerParts>,
    mut names: Vec<LockName>,
    options: &LockOptions,
) -> Result<GuardSet> {
    if names.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "no lock names were given",
        ));
    }
    names.sort_unstable();
    names.dedup();
    let clock = &**parts.timing.clock();
    let wait = Wait::start(options.wait, clock.now());
    let all: Vec<_> = names
        .into_iter()
        .map(|name| options.wanted(parts, name))
        .collect::<Result<_>>()?;
    let mut set = GuardSet {
        guards: Vec::with_capacity(all.len()),
    };
    // The minimum hold is set below, when all locks are held. So the locks of an incomplete set are
    // free at once.
    let mut each = options.clone();
    each.min_hold = Duration::ZERO;
    for mut wanted in all {
        wanted.wait = wait;
        let taken = if wait.left_at_store(clock.now()).is_zero() {
            Err(slow_store_error(&wanted, &set))
        } else {
            take(parts, &each, wanted).await
        };
        match taken {
            Ok(guard) => set.guards.push(guard),
            Err(error) => {
                set.release_incomplete(clock, wait).await;
                return Err(error);
            }
        }
    }
    // The first lock may have been lost during the wait for the last one.
    if let Some(reason) = set.guards.iter().find_map(|guard| guard.check().err()) {
        set.release_incomplete(clock, wait).await;
        return Err(reason);
    }
    for guard in &set.guards {
        guard.hold_at_least(options.min_hold);
    }
    Ok(set)
}

/// The error of a set whose wait ended because the store is slow, although no lock was busy.
fn slow_store_error(wanted: &WantedLock, set: &GuardSet) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!(
            "the store is slow: the wait was over after {} of the locks",
            set.guards.len()
        ),
    )
    .about(&wanted.request.name)
}
