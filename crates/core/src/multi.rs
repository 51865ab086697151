//! Several locks at once, all or nothing.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use crate::{
    builder::{Options, take},
    contract::LossReason,
    error::{Error, ErrorKind, Result},
    guard::Guard,
    locker::Inner,
    name::LockName,
    release::Released,
};

/// Several held locks, released together.
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

    /// Whether all of them are held for sure.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(Guard::is_valid)
    }

    /// Resolves when one of them is lost.
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
            for (name, lost) in &mut watches {
                if let Poll::Ready(reason) = Pin::new(lost).poll(context) {
                    return Poll::Ready(((*name).clone(), reason));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Releases all of them, in the reverse order of taking.
    ///
    /// # Cancel safety
    /// Safe: what is left is released in the background.
    pub async fn release(self) -> Vec<(LockName, Released)> {
        let mut answers = Vec::with_capacity(self.guards.len());
        // `into_iter` owns the rest: dropping this future drops the guards that are left.
        for guard in self.guards.into_iter().rev() {
            let name = guard.name().clone();
            answers.push((name, guard.release().await));
        }
        answers
    }
}

pub(crate) async fn acquire(
    inner: &Arc<Inner>,
    mut names: Vec<LockName>,
    options: &Options,
) -> Result<GuardSet> {
    if names.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "no lock names were given",
        ));
    }
    names.sort_unstable();
    names.dedup();
    let until = options.wait.map(|wait| inner.clock().now() + wait);
    let all: Vec<_> = names
        .into_iter()
        .map(|name| options.wanted(inner, name))
        .collect::<Result<_>>()?;
    let mut set = GuardSet {
        guards: Vec::with_capacity(all.len()),
    };
    // A minimum counts once all are held: what was taken for nothing is free at once.
    let mut each = options.clone();
    each.min_hold = Duration::ZERO;
    for mut wanted in all {
        wanted.wait = until.map(|until| until.since(inner.clock().now()));
        match take(inner, &each, wanted).await {
            Ok(guard) => set.guards.push(guard),
            Err(error) => {
                let _ = set.release().await;
                return Err(error);
            }
        }
    }
    // The first may have been lost while the last was waited for.
    if let Some(reason) = set.guards.iter().find_map(|guard| guard.check().err()) {
        let _ = set.release().await;
        return Err(reason);
    }
    for guard in &set.guards {
        guard.hold_at_least(options.min_hold);
    }
    Ok(set)
}
