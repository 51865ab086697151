//! The least cost of fenced locks on Redis, for which the server has to run a script. These arms
//! send distlock's scripts over the connection of the plain way. These arms have no waiting, no
//! renewal and no report of a loss.

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

use crate::peers::raw_redis::RawRedis;

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

/// The scripts, the connection to the server, and the source of new owners.
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

    fn new_owner(&self) -> String {
        format!("{:032x}", self.next_owner.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a free lock. Returns the beginning of the lock's value: its owner and token.
    async fn take_free_lock(&self, name: &str) -> RedisResult<String> {
        let owner = self.new_owner();
        let mut call = self.acquire.key(name);
        call.key(COUNTER);
        call.arg(&owner).arg(ttl_millis()).arg("bench");
        let (token,): (String,) = call
            .invoke_async(&mut self.server.connection_for_command())
            .await?;
        Ok(format!("{owner} {token}"))
    }
}

/// The arm in which each lock is taken by one script and freed by another.
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
        Ok((name.to_owned(), self.0.take_free_lock(name).await?))
    }

    async fn release(&self, (name, value): Self::Held) -> RedisResult<()> {
        let mut call = self.0.release.key(name);
        call.arg(value);
        let (freed,): (i64,) = call
            .invoke_async(&mut self.0.server.connection_for_command())
            .await?;
        check_freed(freed == 1)
    }

    fn counters(&self) -> Counters {
        self.0.server.counters()
    }
}

/// The arm in which one script hands one lock over from each task to the next task. This arm never
/// frees the lock.
#[derive(Debug)]
pub(crate) struct PassOn {
    scripts: Scripts,
    /// The beginning of the lock's value. `None` until the first task takes the lock.
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
            None => self.scripts.take_free_lock(name).await?,
            Some(ours) => {
                let next_owner = self.scripts.new_owner();
                let mut call = self.scripts.hand_over.key(name);
                call.key(COUNTER);
                call.arg(ours)
                    .arg(&next_owner)
                    .arg(ttl_millis())
                    .arg("bench");
                let connection = &mut self.scripts.server.connection_for_command();
                let (token,): (String,) = call.invoke_async(connection).await?;
                format!("{next_owner} {token}")
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

fn ttl_millis() -> u64 {
    u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX)
}

/// Returns an error if the lock was not freed, because the lock had another value.
fn check_freed(freed: bool) -> RedisResult<()> {
    if freed {
        Ok(())
    } else {
        Err(RedisError::from((
            ErrorKind::Client,
            "the lock was not ours any more",
        )))
    }
}
