//! Waits for a lock by the server's pushes instead of by polling.
//!
//! All contenders for a lock have entries in a queue on the server (`queue_entry.rs`). Only the
//! first contender makes the server track the lock's key. The attempt that finds the lock held also
//! switches tracking on, in the same step, so no change in between is missed. A contender that
//! waits before its first attempt switches tracking on first. A busy server may push an expiry
//! late. So the core also asks again when the holder's lease should have expired.
//!
//! The server's table of tracked keys has one limit for all clients (`tracking-table-max-keys`).
//! When the table is full, the server removes an entry at every command, and sends a push as if
//! that key had changed. An attempt then makes the server track the key again and remove another
//! entry. So an attempt after every such push would saturate the server.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::{
    OpenFlag,
    operation::{Answer, Operation},
};
use distlock_core::{
    AcquireRequest, Attempt, Contender, FencingToken, Grant, HolderInfo, Moment, OwnerId, Result,
};

use redis::Value;

use crate::{
    connection::RegisteredWaiter,
    error::BACKEND,
    format::keys::{Bucket, Target},
    routing::Call,
    store::Store,
    wait::queue_entry::QueueEntry,
};

/// The time after which a contender asks without any push. If the runtime that carries the
/// connection is blocked, no push arrives although nothing is broken. This poll costs one request
/// of each process for each name.
const SAFETY_POLL: Duration = Duration::from_secs(10);

/// The pause between two attempts if no push will come, for example while the lock's slot migrates.
pub(super) const UNTRACKED_POLL: Duration = Duration::from_millis(100);

/// The number of spurious pushes in a row after which a contender asks as rarely as one without
/// tracking.
pub(super) const MAX_SPURIOUS: u32 = 3;

pub(crate) struct RedisContender {
    store: Arc<Store>,
    open: OpenFlag,
    request: AcquireRequest,
    queue_entry: QueueEntry,
    registration: RegisteredWaiter,
    bucket: Bucket,
    /// Whether the server tracks the lock's key for this contender.
    tracked: bool,
    /// Whether a push came after the last attempt.
    was_notified: bool,
    spurious_pushes: SpuriousPushes,
}

impl RedisContender {
    pub(crate) async fn join(store: Arc<Store>, open: OpenFlag, request: AcquireRequest) -> Self {
        let access = store.access();
        let Target { key, bucket } = access.layout.lock(&request.name);
        let registration = access.waiters.register(&key);
        let mut queue_entry = QueueEntry::new(Arc::clone(&store), &request);
        queue_entry.renew().await;
        Self {
            queue_entry,
            store,
            open,
            request,
            registration,
            bucket,
            tracked: false,
            was_notified: false,
            spurious_pushes: SpuriousPushes::default(),
        }
    }

    /// Waits until the lock may have changed.
    async fn lock_changed(&mut self) {
        let clock = Arc::clone(self.store.clock());
        if !self.tracked {
            let is_held = self.track().await;
            // The lock became free after an attempt without tracking, so no push will report this.
            if is_held == Some(false) && self.spurious_pushes.asked.is_some() {
                return;
            }
        }
        tokio::select! {
            biased;
            () = self.registration.notified() => {
                self.was_notified = true;
                if let Some(pause) = self.spurious_pushes.on_push(clock.now()) {
                    clock.sleep(pause).await;
                }
            }
            () = clock.sleep(UNTRACKED_POLL), if !self.tracked => {}
        }
    }

    /// Makes the server track the lock's key. Returns whether the lock is held; `None` without an
    /// answer of the server.
    async fn track(&mut self) -> Option<bool> {
        let read = Call::plain(self.bucket, vec![]).tracking([self.registration.key()].into_iter());
        // The error is not reported here, because the next attempt gets the same error.
        let response = self.store.access().router.ask(read).await.ok()?;
        self.tracked = response.is_tracked;
        match &*response.replies {
            [Value::Int(held)] => Some(*held > 0),
            _ => None,
        }
    }
}

#[async_trait]
impl Contender for RedisContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.open.check(BACKEND)?;
        // The server reserves no lock for the first entry of the queue, so any owner may ask.
        let mut request = self.request.clone();
        request.owner = owner;
        // After a push the lock is usually free. An attempt without tracking then saves the server
        // two commands.
        let (name, op) = (&self.request.name, Operation::Acquire(request));
        let at = self.store.clock().now();
        let answer = if std::mem::take(&mut self.was_notified) {
            self.store.submit(Some(name), op).await?
        } else {
            self.store.submit_with_waiters(name, op).await?
        };
        self.tracked = matches!(answer, Answer::BusyNotified(_));
        let attempt = answer.acquired()?;
        if let Attempt::Busy(holder) = &attempt {
            self.spurious_pushes.on_busy(at, holder.as_ref());
        }
        Ok(attempt)
    }

    fn is_first(&self) -> bool {
        self.queue_entry.is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        let clock = Arc::clone(self.store.clock());
        let mut over = clock.sleep(at_most.min(SAFETY_POLL));
        loop {
            let was_first = self.is_first();
            let due = self.queue_entry.position().due_in(clock.now());
            if due.is_zero() {
                tokio::select! {
                    biased;
                    () = self.queue_entry.renew() => {}
                    () = &mut over => return,
                }
                if self.is_first() && !was_first {
                    return;
                }
                continue;
            }
            let due = if self.queue_entry.is_tracked() {
                due
            } else {
                due.min(UNTRACKED_POLL)
            };
            if was_first {
                tokio::select! {
                    biased;
                    () = self.lock_changed() => return,
                    () = clock.sleep(due) => {
                        // The push is used up and will not come again, so the caller must make an
                        // attempt.
                        if self.was_notified {
                            return;
                        }
                        self.queue_entry.renew_soon();
                    }
                    () = &mut over => return,
                }
            } else {
                tokio::select! {
                    biased;
                    () = self.queue_entry.ahead_left() => if self.is_first() {
                        return;
                    },
                    () = clock.sleep(due) => self.queue_entry.renew_soon(),
                    () = &mut over => return,
                }
            }
        }
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        // The server tracks the lock's key until the next change of the key.
        self.queue_entry.leave().await;
        Ok(())
    }
}

impl fmt::Debug for RedisContender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisContender")
            .field("lock", &self.request.name)
            .finish_non_exhaustive()
    }
}

/// The history of one contender's pushes.
#[derive(Debug, Default)]
struct SpuriousPushes {
    /// The moment of the last attempt, and the token of the holder that it found.
    asked: Option<(Moment, Option<FencingToken>)>,
    /// Whether a push came within [`UNTRACKED_POLL`] after the last attempt.
    at_once: bool,
    /// The number of such pushes in a row after which the holder was unchanged.
    spurious: u32,
}

impl SpuriousPushes {
    /// Records an attempt that found the lock held.
    fn on_busy(&mut self, at: Moment, holder: Option<&HolderInfo>) {
        let token = holder.and_then(|holder| holder.token);
        let same = self.asked.is_some_and(|(_, before)| before == token);
        self.spurious = if same && self.at_once {
            self.spurious + 1
        } else {
            0
        };
        (self.asked, self.at_once) = (Some((at, token)), false);
    }

    /// Records a push. Returns the pause before the next attempt; `None` = no pause. Before the
    /// limit of spurious pushes there is no pause at all, because even the shortest sleep takes at
    /// least a millisecond.
    fn on_push(&mut self, now: Moment) -> Option<Duration> {
        let (asked, _) = self.asked?;
        let left = (asked + UNTRACKED_POLL).since(now);
        self.at_once = !left.is_zero();
        (self.spurious >= MAX_SPURIOUS && self.at_once).then_some(left)
    }
}
