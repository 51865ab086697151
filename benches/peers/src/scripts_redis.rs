//! The least cost of fenced locks on Redis, where the server has to run a script. It sends
//! distlock's scripts as plainly as the plain way sends its commands, without waiting, renewal or
//! loss notice around them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ::redis::{ErrorKind, RedisError, RedisResult, Script};
use distlock_report::{Counters, Subject};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::raw_redis::RawRedis;

const ACQUIRE: &str = concat!(
    include_str!("../../../backends/redis/src/scripts/prelude.lua"),
    include_str!("../../../backends/redis/src/scripts/acquire.lua")
);
const RELEASE: &str = concat!(
    include_str!("../../../backends/redis/src/scripts/prelude.lua"),
    include_str!("../../../backends/redis/src/scripts/release.lua")
);
const HAND_OVER: &str = concat!(
    include_str!("../../../backends/redis/src/scripts/prelude.lua"),
    include_str!("../../../backends/redis/src/scripts/hand_over.lua")
);

const TTL: Duration = Duration::from_secs(10);
const COUNTER: &str = "bench:counter";

/// The scripts, and the owner of the lock.
#[derive(Debug)]
struct Scripts {
    server: RawRedis,
    acquire: Script,
    release: Script,
    hand_over: Script,
    next_owner: AtomicU64,
}

impl Scripts {
    fn new(server: RawRedis) -> Self {
        Self {
            server,
            acquire: Script::new(ACQUIRE),
            release: Script::new(RELEASE),
            hand_over: Script::new(HAND_OVER),
            next_owner: AtomicU64::new(0),
        }
    }

    fn owner(&self) -> String {
        format!("{:032x}", self.next_owner.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a free lock, and returns the beginning of its value.
    async fn take(&self, name: &str) -> RedisResult<String> {
        let owner = self.owner();
        let mut call = self.acquire.key(name);
        call.key(COUNTER);
        call.arg(&owner).arg(millis()).arg("bench");
        let (token,): (String,) = call.invoke_async(&mut self.server.connection()).await?;
        Ok(format!("{owner} {token}"))
    }
}

/// Locks that are taken and freed.
#[derive(Debug)]
pub(crate) struct TakeAndFree(Scripts);

impl TakeAndFree {
    pub(crate) fn new(server: RawRedis) -> Self {
        Self(Scripts::new(server))
    }
}

impl Subject for TakeAndFree {
    type Held = (String, String);
    type Error = RedisError;

    async fn acquire(&self, name: &str) -> RedisResult<Self::Held> {
        Ok((name.to_owned(), self.0.take(name).await?))
    }

    async fn release(&self, (name, value): Self::Held) -> RedisResult<()> {
        let mut call = self.0.release.key(name);
        call.arg(value);
        let (freed,): (i64,) = call.invoke_async(&mut self.0.server.connection()).await?;
        ensure(freed == 1)
    }

    fn counters(&self) -> Counters {
        self.0.server.counters()
    }
}

/// A lock that the server passes on from turn to turn, and that nobody frees.
#[derive(Debug)]
pub(crate) struct PassOn {
    scripts: Scripts,
    /// The beginning of its value, once it was taken.
    value: Arc<Mutex<Option<String>>>,
}

impl PassOn {
    pub(crate) fn new(server: RawRedis) -> Self {
        Self {
            scripts: Scripts::new(server),
            value: Arc::default(),
        }
    }
}

impl Subject for PassOn {
    type Held = OwnedMutexGuard<Option<String>>;
    type Error = RedisError;

    async fn acquire(&self, name: &str) -> RedisResult<Self::Held> {
        let mut value = Arc::clone(&self.value).lock_owned().await;
        let next = match value.take() {
            None => self.scripts.take(name).await?,
            Some(ours) => {
                let heir = self.scripts.owner();
                let mut call = self.scripts.hand_over.key(name);
                call.key(COUNTER);
                call.arg(ours).arg(&heir).arg(millis()).arg("bench");
                let connection = &mut self.scripts.server.connection();
                let (token,): (String,) = call.invoke_async(connection).await?;
                format!("{heir} {token}")
            }
        };
        *value = Some(next);
        Ok(value)
    }

    async fn release(&self, turn: Self::Held) -> RedisResult<()> {
        drop(turn);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.scripts.server.counters()
    }
}

fn millis() -> u64 {
    u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX)
}

fn ensure(freed: bool) -> RedisResult<()> {
    if freed {
        Ok(())
    } else {
        Err(RedisError::from((
            ErrorKind::Client,
            "the lock was not ours any more",
        )))
    }
}
