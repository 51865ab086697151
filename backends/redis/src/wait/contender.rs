//! Waiting without polling: the server tells when a lock changes.
//!
//! Those who wait stand in a line at the server (`line.rs`). Only the first of them has the server
//! track the lock: the attempt that finds it held arms the next wake-up in the same step, so nothing
//! is missed in between. Whoever waits before it has asked arms it first. An expiry is pushed late on
//! a busy server, so the core also asks again when the holder's lease should be over.
//!
//! A server that has more to remember than it may (`tracking-table-max-keys`, for all of its clients
//! together) forgets some of it at every command, and pushes as if those keys had changed. Asking has
//! it remember again and forget something else for that, so re-asking after every such push would
//! saturate the server.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{AcquireRequest, Attempt, Contender, Grant, OpenFlag, Result};

use redis::Value;

use crate::{
    connection::RegisteredWaiter,
    error::BACKEND,
    format::keys::{Bucket, Target},
    operations::{Action, Answer},
    routing::Call,
    store::Store,
    wait::queue_entry::QueueEntry,
};

use crate::wait::spurious_pushes::{SpuriousPushes, UNTRACKED_POLL};

/// After this it asks again without a reason. What brings the pushes may stand still and not be broken: the runtime that
/// carries the connection, when somebody blocks its threads. One question of each process for a name, it costs next to nothing.
const SAFETY_POLL: Duration = Duration::from_secs(10);

pub(crate) struct RedisContender {
    store: Arc<Store>,
    open: OpenFlag,
    request: AcquireRequest,
    queue_entry: QueueEntry,
    registration: RegisteredWaiter,
    bucket: Bucket,
    /// Whether the server was asked to tell.
    tracked: bool,
    /// Whether the server has told of a change since it was asked.
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
            // Freed since it was asked without tracking: nobody will tell of that.
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

    /// Has the server tell when the lock changes, whether somebody has it or not. Says which it is,
    /// if the server has answered.
    async fn track(&mut self) -> Option<bool> {
        let look = Call::plain(self.bucket, vec![]).tracking([self.registration.key()].into_iter());
        // The next attempt tells what is wrong.
        let response = self.store.access().router.ask(look).await.ok()?;
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
        self.open.check(BACKEND)?;
        // A push most often says that the lock is free: then there is nothing to track, which costs
        // the server two commands.
        let asked = if std::mem::take(&mut self.was_notified) {
            Action::Acquire(self.request.clone())
        } else {
            Action::Contend(self.request.clone())
        };
        let tracks = matches!(asked, Action::Contend(_));
        let at = self.store.clock().now();
        let answer = self.store.submit(Some(&self.request.name), asked).await?;
        self.tracked = tracks && !matches!(answer, Answer::BusyUntracked(_));
        let attempt = match answer {
            Answer::Acquired(attempt) => attempt,
            Answer::BusyUntracked(holder) => Attempt::Busy(holder),
            other => return Err(other.unexpected()),
        };
        if let Attempt::Busy(holder) = &attempt {
            self.spurious_pushes.on_busy(at, holder.as_ref());
        }
        Ok(attempt)
    }

    fn is_first(&self) -> bool {
        self.queue_entry.position().is_first()
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
                        // A push that was heard is not heard again.
                        if self.was_notified {
                            return;
                        }
                        self.queue_entry.look_again();
                    }
                    () = &mut over => return,
                }
            } else {
                tokio::select! {
                    biased;
                    () = self.queue_entry.ahead_left() => {}
                    () = clock.sleep(due) => self.queue_entry.look_again(),
                    () = &mut over => return,
                }
            }
        }
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        // The server forgets what it remembers of the lock for us at the lock's next change.
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
