//! Waiting without polling: the server tells when a lock changes.
//!
//! The connection's tracking makes the server remember which locks were found held, and push a message when one of them is
//! changed or deleted; then it forgets it. So each attempt that finds the lock held arms the next wake-up in the same step,
//! and nothing is missed in between. An expiry is pushed late on a busy server, which is why the core also asks again when
//! the holder's lease should be over.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{AcquireRequest, Attempt, Contender, Grant, Result};

use crate::{
    exchange::Call,
    names::Target,
    op::{Answer, What},
    store::Store,
    waiters::Place,
};

/// Longest sleep of one wait. Waking without a reason is allowed; a duration near the largest one overflows clocks.
const LONGEST: Duration = Duration::from_secs(3600);

pub(crate) struct RedisContender {
    store: Arc<Store>,
    request: AcquireRequest,
    place: Place,
}

impl RedisContender {
    /// Arms the wake-up.
    pub(crate) async fn join(store: Arc<Store>, request: AcquireRequest) -> Result<Self> {
        let ways = store.ways();
        let Target { key, bucket } = ways.names.lock(&request.name);
        let place = ways.waiters.join(&key);
        let arm = Call::plain(bucket, vec![]).tracking([place.key()].into_iter());
        ways.router
            .ask(arm)
            .await
            .map_err(|error| error.during("acquire").about(&request.name))?;
        Ok(Self {
            store,
            request,
            place,
        })
    }
}

#[async_trait]
impl Contender for RedisContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.store.check_open()?;
        match self
            .store
            .submit(What::Contend(self.request.clone()))
            .await?
        {
            Answer::Acquired(attempt) => Ok(attempt),
            other => Err(other.unexpected()),
        }
    }

    async fn wait(&mut self, at_most: Duration) {
        let clock = self.store.clock();
        tokio::select! {
            biased;
            () = self.place.woken() => {}
            () = clock.sleep(at_most.min(LONGEST)) => {}
        }
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        // The server forgets what it remembers of us at the next change of the lock.
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
