//! Waiting without polling: the server tells when a lock changes.
//!
//! The connection's tracking makes the server remember which locks were found held, and push a message when one of them is
//! changed or deleted; then it forgets it. So each attempt that finds the lock held arms the next wake-up in the same step,
//! and nothing is missed in between. Who waits before it has asked arms it first. An expiry is pushed late on a busy server,
//! which is why the core also asks again when the holder's lease should be over.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{AcquireRequest, Attempt, Contender, Grant, Result};

use crate::{
    exchange::Call,
    names::{Bucket, Target},
    op::{Answer, What},
    store::Store,
    waiters::Place,
};

/// After this it asks again without a reason. What brings the pushes may stand still and not be broken: the runtime that
/// carries the connection, when somebody blocks its threads. One question of each process for a name, it costs next to nothing.
const PATROL: Duration = Duration::from_secs(10);

/// After this it asks again when nobody will tell, as while the lock's slot is on its way to another server.
const UNTOLD: Duration = Duration::from_millis(100);

pub(crate) struct RedisContender {
    store: Arc<Store>,
    request: AcquireRequest,
    place: Place,
    bucket: Bucket,
    /// Whether the server was asked to tell.
    armed: bool,
}

impl RedisContender {
    pub(crate) fn join(store: Arc<Store>, request: AcquireRequest) -> Self {
        let ways = store.ways();
        let Target { key, bucket } = ways.names.lock(&request.name);
        let place = ways.waiters.join(&key);
        Self {
            store,
            request,
            place,
            bucket,
            armed: false,
        }
    }

    /// Arranges to be told when the lock changes, whether somebody has it or not.
    async fn arm(&mut self) -> bool {
        let look = Call::plain(self.bucket, vec![]).tracking([self.place.key()].into_iter());
        // Whoever asks next learns what is wrong.
        let heard = self.store.ways().router.ask(look).await;
        self.armed = heard.is_ok_and(|heard| heard.tells);
        self.armed
    }
}

#[async_trait]
impl Contender for RedisContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.store.check_open()?;
        let asked = What::Contend(self.request.clone());
        let answer = self.store.submit(asked).await?;
        self.armed = !matches!(answer, Answer::BusyUntold(_));
        match answer {
            Answer::Acquired(attempt) => Ok(attempt),
            Answer::BusyUntold(holder) => Ok(Attempt::Busy(holder)),
            other => Err(other.unexpected()),
        }
    }

    async fn wait(&mut self, at_most: Duration) {
        let clock = Arc::clone(self.store.clock());
        let over = clock.sleep(at_most.min(PATROL));
        let woken = async {
            let told = self.armed || self.arm().await;
            tokio::select! {
                biased;
                () = self.place.woken() => {}
                () = clock.sleep(UNTOLD), if !told => {}
            }
        };
        tokio::select! {
            biased;
            () = woken => {}
            () = over => {}
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
