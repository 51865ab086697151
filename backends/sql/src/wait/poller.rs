//! One poller for each process and handle, for all waiters of the handle.
//!
//! The poller runs as a singleton task on the runtime of the waiter that needed it first. It ends
//! when no waiter of the handle sleeps.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    queue_entries::renew_queue_entries, wait_state::AFTER_FAILURE, waiter_hint::HINT_LIFETIME,
};
use crate::{dialect::Dialect, singleton_task::SingletonTask, store::Store};

/// How long one poll may take before the poller counts as gone with its runtime.
const LONGEST_POLL: Duration = Duration::from_secs(10);

/// Makes sure that a poller runs for the waiters of this handle.
pub(super) fn ensure_polling<D: Dialect>(store: &Arc<Store<D>>) {
    if let Some(turn) = store.poller.start(store.dialect().clock().now()) {
        let task = poll(Arc::clone(store), turn);
        store.track_task(tokio::spawn(task).abort_handle());
    }
}

/// Polls the store for all names that this process waits for, until no waiter of this handle sleeps
/// any more.
async fn poll<D: Dialect>(store: Arc<Store<D>>, turn: u64) {
    let dialect = store.dialect();
    let (clock, group) = (dialect.clock(), dialect.wait_group());
    let running = PollerTurn(&store.poller, turn);
    loop {
        let pause = group.waiting().pause(clock.now());
        if !store.poller.extend(turn, clock.now() + pause) {
            return;
        }
        tokio::select! {
            () = clock.sleep(pause) => {}
            () = group.poll_sooner.notified() => continue,
        }
        let (entries, names) = {
            let mut waiting = group.waiting();
            if store.asleep.load(Ordering::Relaxed) == 0 {
                // The turn ends under the mutex. Otherwise a waiter that falls asleep between the
                // check and the end would see a poller that still runs, and nobody would poll for
                // it.
                drop(running);
                return;
            }
            let now = clock.now();
            (waiting.entries_due(now), waiting.claim_poll(now))
        };
        let polled = clock.now();
        store.poller.extend(turn, polled + LONGEST_POLL);
        if !entries.is_empty() {
            renew_queue_entries(group, dialect, &entries).await;
        }
        let Some(names) = names.filter(|names| !names.is_empty()) else {
            continue;
        };
        match dialect.read_rows(&names).await {
            Ok(rows) => {
                let rows = rows.into_iter().collect();
                let unmarked = group.waiting().apply_poll(polled, names, rows);
                if !unmarked.is_empty()
                    && let Err(error) = dialect.set_hints(&unmarked, HINT_LIFETIME).await
                {
                    tracing::debug!(%error, "waiter hints were not set");
                }
            }
            Err(error) => {
                tracing::debug!(%error, waiters = names.len(), "polling failed");
                group.waiting().next_poll = Some(clock.now() + AFTER_FAILURE);
            }
        }
    }
}

/// Notes the end of a poller, also when its runtime is shut down.
struct PollerTurn<'a>(&'a SingletonTask, u64);

impl Drop for PollerTurn<'_> {
    fn drop(&mut self) {
        self.0.finish(self.1);
    }
}
