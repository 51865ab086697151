//! Removes rows that nobody has used for long, in pages, so that the number of left-over rows is
//! bounded.
//!
//! One process at a time reaps a store, in turns that the store hands out. The reaper never keeps a
//! store open: it holds only a weak reference between two turns.

use std::{sync::Weak, time::Duration};

use distlock_core::Result;

use crate::{
    dialect::{Dialect, Reaped},
    store::Store,
};

/// The first turn of a handle, in milliseconds after opening. It is random, so that processes that
/// start together reap at different times.
const FIRST: std::ops::Range<u64> = 200..1500;

/// The pause between two pages, so that waiting writers get their turn.
const BETWEEN_PAGES: Duration = Duration::from_millis(10);

/// Reaps after this pause, and then four times in `reap_after`, unless another process or handle
/// did.
pub(crate) async fn reap_periodically<D: Dialect>(store: Weak<Store<D>>, mut pause: Duration) {
    loop {
        let sleep = match store.upgrade() {
            Some(store) => store.dialect().clock().sleep(pause),
            None => return,
        };
        sleep.await;
        let Some(store) = store.upgrade() else { return };
        pause = self::pause(store.dialect());
        match reap(store.dialect(), every(store.dialect())).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "idle rows were removed"),
            Err(error) => tracing::debug!(%error, "idle rows were not removed; the next turn will"),
        }
    }
}

pub(crate) fn first_pause() -> Duration {
    Duration::from_millis(fastrand::u64(FIRST))
}

/// The time until the next turn. It varies by a quarter each way, so that processes that were
/// started together drift apart.
pub(crate) fn pause<D: Dialect>(dialect: &D) -> Duration {
    every(dialect).mul_f64(0.75 + fastrand::f64() / 2.0)
}

fn every<D: Dialect>(dialect: &D) -> Duration {
    dialect.reap_after() / 4
}

/// One turn, unless another process had one within `every`. Returns the number of removed rows.
pub(crate) async fn reap<D: Dialect>(dialect: &D, every: Duration) -> Result<u64> {
    // Half of `every`, so that a turn that comes a little early is not refused for a whole round.
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
            dialect.clock().sleep(BETWEEN_PAGES).await;
        }
    }
    // A store whose tables are of version 1 has no queue entries.
    match dialect.remove_expired_entries().await {
        Ok(lapsed) => removed += lapsed,
        Err(error) => tracing::debug!(%error, "expired queue entries were not removed"),
    }
    Ok(removed)
}
