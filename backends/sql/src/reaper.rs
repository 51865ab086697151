//! Removes rows that nobody has used for `reap_after`, page by page. Without the reaper, the number
//! of unused rows would grow without limit.
//!
//! One process at a time reaps a store: each run first claims its turn in the store's meta row. The
//! reaper never keeps a store open: between two runs, the reaper holds only a weak reference.

use std::{sync::Weak, time::Duration};

use distlock_core::Result;

use crate::{
    dialect::{Dialect, Reaped},
    store::Store,
};

/// The time from the opening of a handle to its first run, in milliseconds. The time is random, so
/// that processes that start together reap at different times.
const FIRST: std::ops::Range<u64> = 200..1500;

/// The pause between two pages, so that other writers can use the store in between.
const BETWEEN_PAGES: Duration = Duration::from_millis(10);

/// Reaps after `pause`, and then about four times in each `reap_after`. A run does nothing if
/// another process or handle has reaped shortly before.
pub(crate) async fn reap_periodically<D: Dialect>(store: Weak<Store<D>>, mut pause: Duration) {
    loop {
        let sleep = match store.upgrade() {
            Some(store) => store.dialect().context().clock.sleep(pause),
            None => return,
        };
        sleep.await;
        let Some(store) = store.upgrade() else { return };
        pause = self::pause(store.dialect());
        match reap(store.dialect(), every(store.dialect())).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "idle rows were removed"),
            Err(error) => tracing::debug!(%error, "idle rows stay until the next run"),
        }
    }
}

pub(crate) fn first_pause() -> Duration {
    Duration::from_millis(fastrand::u64(FIRST))
}

/// The time until the next run, with a random change of up to 25 % in both directions. So processes
/// that were started together soon reap at different times.
pub(crate) fn pause<D: Dialect>(dialect: &D) -> Duration {
    every(dialect).mul_f64(0.75 + fastrand::f64() / 2.0)
}

fn every<D: Dialect>(dialect: &D) -> Duration {
    dialect.context().reap_after / 4
}

/// Removes the idle rows of all tables, unless another process did so within half of `every`.
/// Returns the number of removed rows.
pub(crate) async fn reap<D: Dialect>(dialect: &D, every: Duration) -> Result<u64> {
    // Half of `every`: with the whole of it, a run that starts a little early would be refused, and
    // the next run would come a whole period later.
    if !dialect.claim_reaping(every / 2).await? {
        return Ok(0);
    }
    let mut removed = 0;
    for table in [Reaped::Locks, Reaped::Records] {
        let mut after = None;
        loop {
            let page = dialect.reap_page(table, after).await?;
            removed += page.removed;
            after = page.next;
            if after.is_none() {
                break;
            }
            dialect.context().clock.sleep(BETWEEN_PAGES).await;
        }
    }
    // The queue may be unusable for this user, and it decides nothing about a lock. So its error
    // must not fail a run that has removed the idle rows.
    match dialect.remove_expired_entries().await {
        Ok(expired) => removed += expired,
        Err(error) => tracing::debug!(%error, "expired queue entries stay until the next run"),
    }
    Ok(removed)
}
