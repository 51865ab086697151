//! Several locks at once, all or nothing.
//!
//! This module owns the order of taking and releasing. Invariant: locks are taken in the byte order
//! of their names, so that two sets never wait for each other. A set that is not complete is given
//! back, and never returned.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use crate::{
    client::{
        guard::Guard,
        options::{LockOptions, take},
    },
    contract::LossReason,
    engine::{
        bounded::{CallEnd, bounded},
        clock::Clock,
        parts::LockerParts,
        release::Released,
        wanted::WantedLock,
    },
    types::{
        error::{Error, ErrorKind, Result},
        name::LockName,
    },
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

    /// Releases all of them at the same time, so that a store that hangs costs the time of one
    /// release. Requests and answers are in the reverse order of taking.
    ///
    /// # Cancel safety
    /// Safe: the rest is released in the background.
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

    /// Gives back an incomplete set, in the background once the time is over.
    async fn give_back(self, clock: &dyn Clock, end: CallEnd) {
        let release = async { Ok(self.release().await) };
        let _ = bounded(clock, end.left(clock.now()), release).await;
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
    let until = options.wait.map(|wait| clock.now() + wait);
    let end = CallEnd::after(options.wait, clock);
    let all: Vec<_> = names
        .into_iter()
        .map(|name| options.wanted(parts, name))
        .collect::<Result<_>>()?;
    let mut set = GuardSet {
        guards: Vec::with_capacity(all.len()),
    };
    // A minimum hold counts once all locks are held: an incomplete set is free at once.
    let mut each = options.clone();
    each.min_hold = Duration::ZERO;
    for mut wanted in all {
        wanted.wait = until.map(|until| until.since(clock.now()));
        wanted.end = end;
        let taken = if end.left(clock.now()).is_zero() {
            Err(too_slow(&wanted, &set))
        } else {
            take(parts, &each, wanted).await
        };
        match taken {
            Ok(guard) => set.guards.push(guard),
            Err(error) => {
                set.give_back(clock, end).await;
                return Err(error);
            }
        }
    }
    // The first lock may have been lost during the wait for the last one.
    if let Some(reason) = set.guards.iter().find_map(|guard| guard.check().err()) {
        set.give_back(clock, end).await;
        return Err(reason);
    }
    for guard in &set.guards {
        guard.hold_at_least(options.min_hold);
    }
    Ok(set)
}

/// The error of a wait that is over although no lock was busy.
fn too_slow(wanted: &WantedLock, set: &GuardSet) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!(
            "the store is slow: the wait was over after {} of the locks",
            set.guards.len()
        ),
    )
    .about(&wanted.request.name)
}
