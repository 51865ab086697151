//! Waiting for a lock over records, by polling.
//!
//! Invariant: the pause is short after the holder changed, and grows while the holder stays the
//! same. No pause ends after the last seen lease would expire.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Clock, Contender, DistLock, FencingToken, Grant, Moment, OwnerId,
    Result, sync::Mutex,
};

/// The shortest pause. With this pause, a waiting process needs less than 20 reads a second even if
/// the holder changes all the time.
const SHORTEST: Duration = Duration::from_millis(60);

/// The longest pause, and so the longest delay after which a waiter sees a release.
const LONGEST: Duration = Duration::from_millis(480);

pub(crate) struct KvContender {
    lock: Arc<dyn DistLock>,
    clock: Arc<dyn Clock>,
    random: Arc<Mutex<fastrand::Rng>>,
    request: AcquireRequest,
    pause: Duration,
    /// The token of the last seen grant, and the end of its lease if nobody renews it.
    seen: Option<(Option<FencingToken>, Moment)>,
    /// The end of the present pause. A dropped wait keeps this moment, so that several short waits
    /// together reach it.
    due: Option<Moment>,
}

impl KvContender {
    pub(crate) fn new(
        lock: Arc<dyn DistLock>,
        clock: Arc<dyn Clock>,
        random: Arc<Mutex<fastrand::Rng>>,
        request: AcquireRequest,
    ) -> Self {
        Self {
            lock,
            clock,
            random,
            request,
            pause: SHORTEST,
            seen: None,
            due: None,
        }
    }

    /// Returns the moment of the next poll: after a pause with jitter, and not after the end of the
    /// last seen lease.
    fn next(&self, now: Moment) -> Moment {
        let factor = {
            let mut random = self.random.lock();
            0.85 + 0.3 * random.f64()
        };
        let next = now + self.pause.mul_f64(factor);
        match self.seen {
            Some((_, expires)) => next.min(expires.max(now + Duration::from_millis(1))),
            None => next,
        }
    }
}

#[async_trait]
impl Contender for KvContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        let before = self.clock.now();
        self.due = None;
        let mut request = self.request.clone();
        request.owner = owner;
        let attempt = self.lock.try_acquire(&request).await?;
        if let Attempt::Busy(Some(holder)) = &attempt {
            let moved = self.seen.is_some_and(|(token, _)| token != holder.token);
            self.pause = if moved {
                SHORTEST
            } else if self.seen.is_some() {
                (self.pause * 2).min(LONGEST)
            } else {
                self.pause
            };
            // The lease is counted from before the request was sent, so the poll is early by up to
            // one round trip and never late.
            let expires = before + holder.expires_in.unwrap_or(LONGEST);
            self.seen = Some((holder.token, expires));
        } else {
            self.seen = None;
            self.pause = SHORTEST;
        }
        Ok(attempt)
    }

    fn is_first(&self) -> bool {
        // The store keeps no queue of waiters, so no contender is ahead of this one.
        true
    }

    async fn wait(&mut self, at_most: Duration) {
        let clock = Arc::clone(&self.clock);
        let until = clock.now() + at_most;
        loop {
            let now = clock.now();
            let due = match self.due {
                Some(due) => due,
                None => *self.due.insert(self.next(now)),
            };
            if now >= due {
                self.due = None;
                return;
            }
            if now >= until {
                return;
            }
            clock.sleep(due.min(until).since(now)).await;
        }
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        // The store keeps no queue of waiters, so there is nothing to remove.
        Ok(())
    }
}
