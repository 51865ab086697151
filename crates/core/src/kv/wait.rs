//! Waiting for a lock over records: asking now and then, often while things move, seldom while they do not.

use std::{sync::PoisonError, time::Duration};

use async_trait::async_trait;

use super::KvLock;
use crate::{
    contract::{AcquireRequest, Attempt, Contender, DistLock, Grant},
    engine::clock::Moment,
    types::{error::Result, token::FencingToken},
};

/// The shortest pause: even a lock that changes hands all the time costs a waiting process less than 20 reads a second.
const SHORTEST: Duration = Duration::from_millis(60);

/// The longest pause: how late a release is noticed while nothing has moved for long.
const LONGEST: Duration = Duration::from_millis(480);

pub(super) struct KvContender {
    lock: KvLock,
    request: AcquireRequest,
    pause: Duration,
    /// Whose grant was seen last, and when it ends unless renewed.
    seen: Option<(Option<FencingToken>, Moment)>,
    /// When the present pause ends; kept when a wait is dropped, so that waiting in small portions gets there too.
    due: Option<Moment>,
}

impl KvContender {
    pub(super) fn new(lock: KvLock, request: AcquireRequest) -> Self {
        Self {
            lock,
            request,
            pause: SHORTEST,
            seen: None,
            due: None,
        }
    }

    /// When to ask next: after a pause with some jitter, but not after the lease that was seen has ended.
    fn next(&self, now: Moment) -> Moment {
        let factor = {
            let mut random = self
                .lock
                .random
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
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
        let before = self.lock.clock.now();
        self.due = None;
        let attempt = self.lock.try_acquire(&self.request).await?;
        if let Attempt::Busy(Some(holder)) = &attempt {
            let moved = self.seen.is_some_and(|(token, _)| token != holder.token);
            self.pause = if moved {
                SHORTEST
            } else if self.seen.is_some() {
                (self.pause * 2).min(LONGEST)
            } else {
                self.pause
            };
            // Counted from when we asked, so rather early than late.
            let expires = before + holder.expires_in.unwrap_or(LONGEST);
            self.seen = Some((holder.token, expires));
        } else {
            self.seen = None;
            self.pause = SHORTEST;
        }
        Ok(attempt)
    }

    fn is_first(&self) -> bool {
        true
    }

    async fn wait(&mut self, at_most: Duration) {
        let clock = std::sync::Arc::clone(&self.lock.clock);
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
        // The store knows nothing of those who wait.
        Ok(())
    }
}
