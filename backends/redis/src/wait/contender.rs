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
    connection::Place,
    error::BACKEND,
    format::names::{Bucket, Target},
    operations::{Answer, What},
    routing::Call,
    store::Store,
    wait::line::RedisLine,
};

use crate::wait::pushes::{Pushes, UNTOLD};

/// After this it asks again without a reason. What brings the pushes may stand still and not be broken: the runtime that
/// carries the connection, when somebody blocks its threads. One question of each process for a name, it costs next to nothing.
const PATROL: Duration = Duration::from_secs(10);

pub(crate) struct RedisContender {
    store: Arc<Store>,
    open: OpenFlag,
    request: AcquireRequest,
    line: RedisLine,
    place: Place,
    bucket: Bucket,
    /// Whether the server was asked to tell.
    armed: bool,
    /// Whether the server has told of a change since it was asked.
    told: bool,
    pushes: Pushes,
}

impl RedisContender {
    pub(crate) async fn join(store: Arc<Store>, open: OpenFlag, request: AcquireRequest) -> Self {
        let ways = store.ways();
        let Target { key, bucket } = ways.names.lock(&request.name);
        let place = ways.waiters.join(&key);
        let mut line = RedisLine::new(Arc::clone(&store), &request);
        line.keep().await;
        Self {
            line,
            store,
            open,
            request,
            place,
            bucket,
            armed: false,
            told: false,
            pushes: Pushes::default(),
        }
    }

    /// Waits until the lock may have changed.
    async fn lock_changed(&mut self) {
        let clock = Arc::clone(self.store.clock());
        if !self.armed {
            let is_held = self.arm().await;
            // Freed since it was asked without tracking: nobody will tell of that.
            if is_held == Some(false) && self.pushes.asked.is_some() {
                return;
            }
        }
        tokio::select! {
            biased;
            () = self.place.woken() => {
                self.told = true;
                if let Some(pause) = self.pushes.came(clock.now()) {
                    clock.sleep(pause).await;
                }
            }
            () = clock.sleep(UNTOLD), if !self.armed => {}
        }
    }

    /// Has the server tell when the lock changes, whether somebody has it or not. Says which it is,
    /// if the server has answered.
    async fn arm(&mut self) -> Option<bool> {
        let look = Call::plain(self.bucket, vec![]).tracking([self.place.key()].into_iter());
        // The next attempt tells what is wrong.
        let heard = self.store.ways().router.ask(look).await.ok()?;
        self.armed = heard.tells;
        match &*heard.replies {
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
        let asked = if std::mem::take(&mut self.told) {
            What::Acquire(self.request.clone())
        } else {
            What::Contend(self.request.clone())
        };
        let tracks = matches!(asked, What::Contend(_));
        let at = self.store.clock().now();
        let answer = self.store.submit(Some(&self.request.name), asked).await?;
        self.armed = tracks && !matches!(answer, Answer::BusyUntold(_));
        let attempt = match answer {
            Answer::Acquired(attempt) => attempt,
            Answer::BusyUntold(holder) => Attempt::Busy(holder),
            other => return Err(other.unexpected()),
        };
        if let Attempt::Busy(holder) = &attempt {
            self.pushes.busy(at, holder.as_ref());
        }
        Ok(attempt)
    }

    fn is_first(&self) -> bool {
        self.line.place().is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        let clock = Arc::clone(self.store.clock());
        let mut over = clock.sleep(at_most.min(PATROL));
        loop {
            let was_first = self.is_first();
            let due = self.line.place().due_in(clock.now());
            if due.is_zero() {
                tokio::select! {
                    biased;
                    () = self.line.keep() => {}
                    () = &mut over => return,
                }
                if self.is_first() && !was_first {
                    return;
                }
                continue;
            }
            let due = if self.line.is_told() {
                due
            } else {
                due.min(UNTOLD)
            };
            if was_first {
                tokio::select! {
                    biased;
                    () = self.lock_changed() => return,
                    () = clock.sleep(due) => {
                        // A push that was heard is not heard again.
                        if self.told {
                            return;
                        }
                        self.line.look_again();
                    }
                    () = &mut over => return,
                }
            } else {
                tokio::select! {
                    biased;
                    () = self.line.ahead_left() => {}
                    () = clock.sleep(due) => self.line.look_again(),
                    () = &mut over => return,
                }
            }
        }
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        // The server forgets what it remembers of the lock for us at the lock's next change.
        self.line.leave().await;
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
