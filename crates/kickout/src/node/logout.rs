//! Logout: removes a session from the directory once, by compare-and-delete.
//!
//! A delete that the store did not confirm is repeated until its outcome is known. A logout changes
//! nothing unless the record names exactly this session.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::sync::Mutex;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    directory::accounts::CONCURRENT_CHANGES,
    locks::{renewing, wanted_lock},
    model::{
        event::Transition,
        ident::{SessionKey, Uid},
    },
    node::{Node, end::GrantWrite},
    state::live_session::LiveSession,
    tasks::jitter,
};

/// Most deletes that may wait for the store. If there are more, the sweeper finds the remaining
/// sessions and deletes them.
const MAX_WAITING: usize = 4096;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Longest wait of a logout for the account's lock. The delete is correct without the lock. With
/// the lock, a logout does not overlap with a login of the account. The wait is short, so that a
/// held lock delays a logout only a little.
const LOCK_WAIT: Duration = Duration::from_millis(20);

/// The outcome of a logout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LoggedOut {
    /// The directory named this session before, and does not name it now.
    Deleted,
    /// The directory did not name this session. Nothing was changed.
    AlreadyGone,
    /// The store did not answer. The delete is repeated in the background.
    Queued,
}

/// Deletes that the store did not confirm.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    waiting: Mutex<VecDeque<PendingDelete>>,
    added: Notify,
    overflowed: AtomicBool,
}

type PendingDelete = (Uid, SessionKey, GrantWrite);

impl Retries {
    /// Queues a failed delete, or notes that the queue is full.
    fn push(&self, delete: PendingDelete) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < MAX_WAITING {
            waiting.push_back(delete);
        } else {
            self.overflowed.store(true, Ordering::Release);
        }
        drop(waiting);
        self.added.notify_one();
    }

    fn pop(&self) -> Option<PendingDelete> {
        let mut waiting = self.waiting.lock();
        waiting.pop_front()
    }

    /// Whether a delete waits, or was dropped because too many deletes waited.
    pub(crate) fn has_pending(&self) -> bool {
        let waiting = self.waiting.lock();
        !waiting.is_empty() || self.overflowed.load(Ordering::Acquire)
    }

    /// Whether deletes were dropped since the last call, because too many deletes waited.
    pub(crate) fn take_overflow(&self) -> bool {
        self.overflowed.swap(false, Ordering::AcqRel)
    }
}

impl Node {
    /// Ends a session and removes it from the directory. Only the first call has an effect.
    pub(crate) async fn retire(&self, live: &LiveSession) -> LoggedOut {
        self.retire_after_grant(live, GrantWrite::Known).await
    }

    /// Same as [`retire`](Self::retire). `grant` says whether the write of the grant may still
    /// arrive at the store.
    pub(crate) async fn retire_after_grant(
        &self,
        live: &LiveSession,
        grant: GrantWrite,
    ) -> LoggedOut {
        let Some(listed) = live.begin_close(&self.changes) else {
            return LoggedOut::AlreadyGone;
        };
        self.registry.remove(live);
        let outcome = if listed {
            self.delete_with_lock(live, grant).await
        } else {
            LoggedOut::AlreadyGone
        };
        self.finish_retire(live, outcome);
        outcome
    }

    /// Retires all sessions when this node shuts down.
    pub(crate) async fn retire_all(&self) {
        let mut is_away = false;
        for some in self.registry.all().chunks(CONCURRENT_CHANGES) {
            if is_away {
                // The node releases its lease after this, and then its sessions in the directory
                // are void. So the node does not ask an unreachable store about each session.
                for live in some
                    .iter()
                    .filter(|live| live.begin_close(&self.changes).is_some())
                {
                    self.registry.remove(live);
                    self.finish_retire(live, LoggedOut::Queued);
                }
                continue;
            }
            let retired = join_all(some.iter().map(|live| self.retire(live))).await;
            is_away = store_takes_no_write(&retired);
        }
    }

    /// Marks the session as closed, and records the outcome of its logout.
    fn finish_retire(&self, live: &LiveSession, outcome: LoggedOut) {
        live.mark_closed();
        self.events.emit(Transition::Closed, |event| {
            live.describe(event);
            event.result = Some(format!("{outcome:?}"));
        });
    }

    /// Removes a session that the directory certainly never named.
    pub(crate) fn discard(&self, live: &LiveSession) {
        live.begin_close(&self.changes);
        self.registry.remove(live);
        live.mark_closed();
    }

    /// Deletes the session from the directory, under the account's lock if the lock is free soon. A
    /// failed delete is queued.
    async fn delete_with_lock(&self, live: &LiveSession, grant: GrantWrite) -> LoggedOut {
        let ttl = self.settings.timers.lock_ttl;
        let guard = match live.uid.lock_name() {
            Ok(name) => wanted_lock(&self.locker, &name, ttl, &self.this.id)
                .wait(LOCK_WAIT)
                .give_up_when_unreachable()
                .acquire()
                .await
                .ok(),
            Err(_) => None,
        };
        let deleting = self.delete_after_grant(&live.uid, &live.key, grant);
        let deleted = match guard {
            None => deleting.await,
            Some(guard) => {
                let deleted = renewing(&*self.clock, &guard, ttl, deleting).await;
                // The delete is correct without the lock, so the outcome of the release does not
                // matter.
                let _ = guard.release().await;
                deleted
            }
        };
        match deleted {
            Ok(true) => LoggedOut::Deleted,
            Ok(false) => LoggedOut::AlreadyGone,
            Err(error) => {
                tracing::warn!(
                    uid = ?live.uid, session = %live.key.session, %error,
                    "the store did not confirm a logout, which is tried again"
                );
                let delete = (live.uid.clone(), live.key.clone(), grant);
                self.retries.push(delete);
                LoggedOut::Queued
            }
        }
    }

    /// Repeats the deletes that the store did not confirm.
    pub(crate) async fn retry_logouts(self: Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        loop {
            tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => return,
                () = self.retries.added.notified() => {}
            }
            while let Some((uid, key, grant)) = self.retries.pop() {
                if self.delete_after_grant(&uid, &key, grant).await.is_ok() {
                    pause = FIRST_PAUSE;
                    continue;
                }
                self.retries.push((uid, key, grant));
                tokio::select! {
                    biased;
                    () = self.tasks.stop.cancelled() => return,
                    () = self.clock.sleep(pause + jitter(pause)) => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Whether these outcomes show that the store takes no write. A logout that found nothing to delete
/// wrote nothing, so its outcome shows neither.
fn store_takes_no_write(outcomes: &[LoggedOut]) -> bool {
    outcomes.contains(&LoggedOut::Queued) && !outcomes.contains(&LoggedOut::Deleted)
}

#[cfg(test)]
mod tests {
    use super::{LoggedOut::*, store_takes_no_write};

    #[test]
    fn a_logout_shows_that_the_store_takes_writes_only_if_it_deleted() {
        assert!(store_takes_no_write(&[Queued, Queued]));
        assert!(store_takes_no_write(&[Queued, AlreadyGone]));
        assert!(!store_takes_no_write(&[Queued, Deleted]));
        assert!(!store_takes_no_write(&[AlreadyGone, AlreadyGone]));
        assert!(!store_takes_no_write(&[]));
    }
}
