//! A lock with a watchdog, in the manner of Redisson's `RLock` without a lease time.
//!
//! The lock is a hash of its owner. A timer renews it at each third of the lease while its owner
//! has not unlocked it; a renewal that failed is tried again at the next third, and one that finds
//! another owner is the last. Nobody tells the owner, who believes in the lock until `unlock`.
//!
//! Redisson waits for a message of the one who unlocks, and this one asks again and again: that
//! changes when it asks, not what it is granted. Redisson's lease is 30 s unless told otherwise.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use distlock::{Clock as _, SystemClock};
use tokio::task::JoinHandle;

use super::{
    lock::{ControlHold, ControlLock, millis},
    redis_link::{RedisLink, random_value},
};

/// KEYS: lock; ARGV: lease in ms, owner. Answers nothing, or how long somebody else still has it.
const LOCK: &str = "\
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
return redis.call('PTTL', KEYS[1])";

/// KEYS: lock; ARGV: lease in ms, owner. Answers 1 if the owner still has it.
const RENEW: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1";

/// KEYS: lock; ARGV: owner. Answers nothing if the owner does not have it.
const UNLOCK: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 0 end
redis.call('DEL', KEYS[1])
return 1";

pub(super) struct Watchdog(Arc<RedisLink>);

impl Watchdog {
    pub(super) fn new(url: &str) -> Result<Self> {
        Ok(Self(Arc::new(RedisLink::new(url)?)))
    }
}

#[async_trait]
impl ControlLock for Watchdog {
    async fn attempt(
        &self,
        name: &str,
        ttl: Duration,
        _wait: Duration,
    ) -> Option<Box<dyn ControlHold>> {
        let (owner, lease) = (random_value(), millis(ttl).to_string());
        let arguments = [lease.as_str(), &owner];
        let others: Option<i64> = self.0.run(LOCK, name, &arguments).await.ok()?;
        if others.is_some() {
            return None;
        }
        let renewing = renew(Arc::clone(&self.0), name.to_owned(), owner.clone(), ttl);
        Some(Box::new(Held {
            server: Arc::clone(&self.0),
            key: name.to_owned(),
            owner,
            renewing: tokio::spawn(renewing),
        }))
    }
}

async fn renew(server: Arc<RedisLink>, key: String, owner: String, ttl: Duration) {
    let lease = millis(ttl).to_string();
    loop {
        SystemClock.sleep(ttl / 3).await;
        let renewed = server.run::<i64>(RENEW, &key, &[&lease, &owner]).await;
        if renewed.is_ok_and(|it| it == 0) {
            break;
        }
    }
}

struct Held {
    server: Arc<RedisLink>,
    key: String,
    owner: String,
    renewing: JoinHandle<()>,
}

#[async_trait]
impl ControlHold for Held {
    fn is_believed(&self) -> bool {
        true
    }

    async fn release(self: Box<Self>) {
        // Without an answer the key is left to its lease.
        self.renewing.abort();
        let owner = [self.owner.as_str()];
        let _ = self
            .server
            .run::<Option<i64>>(UNLOCK, &self.key, &owner)
            .await;
    }
}
