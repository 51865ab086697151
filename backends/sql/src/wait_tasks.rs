//! The background tasks of a handle with sleeping waiters: one poller for all of them, and one
//! listener if the store notifies of releases.
//!
//! Both are singleton tasks on the runtime of the waiter that needed them first. The poller ends
//! when no waiter of the handle sleeps. The listener never keeps its handle open: it holds a strong
//! reference only between two awaits.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use distlock_backend_kit::queue_entry::ENTRY_LEASE;
use distlock_core::Sleep;

use crate::{
    dialect::{CommonContext, Dialect},
    rows::QueueEntry,
    singleton_task::SingletonTask,
    store::Store,
    wait::{
        sleep::AFTER_FAILURE,
        wait_group::{HINT_LIFETIME, WaitGroup},
    },
};

/// The time limit of one poll. A poller that exceeds this limit counts as ended with its runtime.
const LONGEST_POLL: Duration = Duration::from_secs(10);

/// Makes sure that a poller runs for the waiters of this handle.
pub(crate) fn ensure_polling<D: Dialect>(store: &Arc<Store<D>>) {
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
        let pause = group.waiting.lock().pause(clock.now());
        if !store.poller.extend(turn, clock.now() + pause) {
            return;
        }
        // Even a sleep of no time lasts until the next millisecond.
        if !pause.is_zero() {
            tokio::select! {
                () = clock.sleep(pause) => {}
                () = group.poll_sooner.notified() => continue,
            }
        }
        let (entries, names) = {
            let mut waiting = group.waiting.lock();
            if store.asleep.load(Ordering::Relaxed) == 0 {
                // The poller notes its end while it holds the mutex. Otherwise a waiter could fall
                // asleep between this check and the note. That waiter would see a running poller
                // and start no other poller, and nobody would poll for this waiter. The poller of
                // another handle takes over what is due.
                group.poll_sooner.notify_one();
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
                let unmarked = group.waiting.lock().apply_poll(polled, names, rows);
                if !unmarked.is_empty()
                    && let Err(error) = dialect.set_hints(&unmarked, HINT_LIFETIME).await
                {
                    tracing::debug!(%error, "hints were not set; a poll finds the release");
                }
            }
            Err(error) => {
                tracing::debug!(%error, waiters = names.len(), "a poll failed; it is repeated");
                group.waiting.lock().polls.note_failure(clock.now(), &error);
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

/// The interval between two signs of life of a listener.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(5);

/// Makes sure that a task receives the store's notifications.
pub(crate) fn ensure_listening<D: Dialect>(store: &Arc<Store<D>>) {
    if let Some(turn) = store.listener.start(store.dialect().context().clock.now()) {
        let task = listen(Arc::downgrade(store), turn);
        store.track_task(tokio::spawn(task).abort_handle());
    }
}

/// Receives the store's notifications for as long as the handle exists.
async fn listen<D: Dialect>(store: Weak<Store<D>>, turn: u64) {
    let _running = ListenerTurn(Weak::clone(&store), turn);
    // The strong reference ends within this line: a listener must not keep the handle open.
    while let Some(mut notifications) = store.upgrade().map(|store| store.dialect().listen()) {
        let mut lost = false;
        while !lost {
            let Some(pause) = sign_of_life(&store, turn, SIGN_OF_LIFE_EVERY) else {
                return;
            };
            lost = tokio::select! {
                () = &mut notifications => true,
                () = pause => false,
            };
        }
        drop(notifications);
        let Some(pause) = sign_of_life(&store, turn, AFTER_FAILURE) else {
            return;
        };
        pause.await;
    }
}

/// Gives a sign of life, and returns the pause until the next sign of life. Returns `None` when the
/// listener must end: the handle is closed, or another listener has replaced this listener.
fn sign_of_life<D: Dialect>(store: &Weak<Store<D>>, turn: u64, pause: Duration) -> Option<Sleep> {
    let store = store.upgrade()?;
    let clock = &store.dialect().context().clock;
    let mine = store.listener.extend(turn, clock.now() + pause);
    mine.then(|| clock.sleep(pause))
}

/// Notes on drop that this listener has ended, even when the end is a shutdown of the runtime.
struct ListenerTurn<D: Dialect>(Weak<Store<D>>, u64);

impl<D: Dialect> Drop for ListenerTurn<D> {
    fn drop(&mut self) {
        if let Some(store) = self.0.upgrade() {
            store.listener.finish(self.1);
        }
    }
}

/// Takes or renews queue entries. The waiters of each name whose entry became the first are woken,
/// or a poll becomes due for them.
pub(crate) async fn renew_queue_entries<D: Dialect>(
    group: &WaitGroup,
    dialect: &D,
    entries: &[QueueEntry],
) {
    let kept = dialect.renew_queue_entries(entries, ENTRY_LEASE).await;
    let now = dialect.context().clock.now();
    let gone = group.waiting.lock().note_renewed(entries, kept, now);
    group.poll_sooner.notify_one();
    // A waiter may leave during this request, and give its entry up on another connection. If the
    // renewal arrives after that, the renewal creates the entry again. So the entry is removed
    // here once more.
    if !gone.is_empty()
        && let Err(error) = dialect.leave_queues(&gone).await
    {
        tracing::debug!(%error, "queue entries were not removed; they end with their lease");
    }
}
