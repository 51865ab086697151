//! Waiting without polling: the server tells when a lock changes.
//!
//! The connection's tracking makes the server remember which locks were found held, and push a message when one of them is
//! changed or deleted; then it forgets it. So each attempt that finds the lock held arms the next wake-up in the same step,
//! and nothing is missed in between. Who waits before it has asked arms it first. An expiry is pushed late on a busy server,
//! which is why the core also asks again when the holder's lease should be over.
//!
//! A server that has more to remember than it may (`tracking-table-max-keys`, for all of its clients together) forgets some
//! of it at every command, and pushes as if those keys had changed. Asking has it remember again, and forget something else
//! for that: who were to ask at each such push would keep the server busy with nothing else.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Contender, FencingToken, Grant, HolderInfo, Moment, OpenFlag, Result,
};

use crate::{
    error::BACKEND,
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

/// After so many pushes in a row that came at once and meant nothing, it asks as seldom as when nobody will tell.
const IN_VAIN: u32 = 3;

pub(crate) struct RedisContender {
    store: Arc<Store>,
    open: OpenFlag,
    request: AcquireRequest,
    place: Place,
    bucket: Bucket,
    /// Whether the server was asked to tell.
    armed: bool,
    pushes: Pushes,
}

/// What the pushes were worth so far.
#[derive(Debug, Default)]
struct Pushes {
    /// When the server was asked last, and under which token the lock was held.
    asked: Option<(Moment, Option<FencingToken>)>,
    /// Whether a push has come since, sooner than who is untold would have asked.
    at_once: bool,
    /// How many of these were in vain, one after the other.
    in_vain: u32,
}

impl Pushes {
    /// The server was asked, and somebody holds the lock.
    fn busy(&mut self, at: Moment, holder: Option<&HolderInfo>) {
        let token = holder.and_then(|holder| holder.token);
        let same = self.asked.is_some_and(|(_, before)| before == token);
        self.in_vain = if same && self.at_once {
            self.in_vain + 1
        } else {
            0
        };
        (self.asked, self.at_once) = (Some((at, token)), false);
    }

    /// One has come: how long to wait before asking, if at all. A sleep takes a millisecond, however short it is.
    fn came(&mut self, now: Moment) -> Option<Duration> {
        let (asked, _) = self.asked?;
        let left = (asked + UNTOLD).since(now);
        self.at_once = !left.is_zero();
        (self.in_vain >= IN_VAIN && self.at_once).then_some(left)
    }
}

impl RedisContender {
    pub(crate) fn join(store: Arc<Store>, open: OpenFlag, request: AcquireRequest) -> Self {
        let ways = store.ways();
        let Target { key, bucket } = ways.names.lock(&request.name);
        let place = ways.waiters.join(&key);
        Self {
            store,
            open,
            request,
            place,
            bucket,
            armed: false,
            pushes: Pushes::default(),
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
        self.open.check(BACKEND)?;
        let asked = What::Contend(self.request.clone());
        let at = self.store.clock().now();
        let answer = self.store.submit(Some(&self.request.name), asked).await?;
        self.armed = !matches!(answer, Answer::BusyUntold(_));
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

    async fn wait(&mut self, at_most: Duration) {
        let clock = Arc::clone(self.store.clock());
        let over = clock.sleep(at_most.min(PATROL));
        let woken = async {
            let told = self.armed || self.arm().await;
            tokio::select! {
                biased;
                () = self.place.woken() => {
                    if let Some(pause) = self.pushes.came(clock.now()) {
                        clock.sleep(pause).await;
                    }
                }
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
