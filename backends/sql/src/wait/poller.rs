//! One poller for each handle, for all waiters of the handle.
//!
//! The poller runs as a singleton task on the runtime of the waiter that needed the poller first.
//! The poller ends when no waiter of the handle sleeps.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{queue_entries::renew_queue_entries, waiter_hint::HINT_LIFETIME};
use crate::{
    dialect::{CommonContext, Dialect},
    singleton_task::SingletonTask,
    store::Store,
};

/// The time limit of one poll. A poller that exceeds this limit counts as ended with its runtime.
const LONGEST_POLL: Duration = Duration::from_secs(10);

/// Makes sure that a poller runs for the waiters of this handle.
pub(super) fn ensure_polling<D: Dialect>(store: &Arc<Store<D>>) {
    if let Some(turn) = store.poller.start(store.dialect().context().clock.now()) {
        let task = poll(Arc::clone(store), turn);
        store.track_task(tokio::spawn(task).abort_handle());
    }
}

/// Polls the store for all names that this process waits for, until no waiter of this handle
/// sleeps.
async fn poll<D: Dialect>(store: Arc<Store<D>>, turn: u64) {
    let dialect = store.dialect();
    let CommonContext {
        clock,
        wait_group: group,
        ..
    } = dialect.context();
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
                // The poller notes its end while it holds the mutex. Otherwise a waiter could fall
                // asleep between this check and the note. That waiter would see a running poller
                // and start no other poller, and nobody would poll for this waiter.
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
                    tracing::debug!(%error, "hints were not set; a poll finds the release");
                }
            }
            Err(error) => {
                tracing::debug!(%error, waiters = names.len(), "a poll failed; it is repeated");
                group.waiting().polls.note_failure(clock.now(), &error);
            }
        }
    }
}

/// Notes on drop that a poller has ended, even when the end is a shutdown of its runtime.
struct PollerTurn<'a>(&'a SingletonTask, u64);

impl Drop for PollerTurn<'_> {
    fn drop(&mut self) {
        self.0.finish(self.1);
    }
}
