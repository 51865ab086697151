//! A lock with a watchdog, in the manner of Redisson's `RLock` without a lease time.
//!
//! The lock is a hash with its owner as the field. A timer renews the lock at each third of the
//! lease until the owner unlocks it. After a failed renewal the timer tries again at the next
//! third, and after a renewal that finds another owner the timer stops. The owner gets no notice
//! and believes in the lock until `unlock`.
//!
//! Redisson waits for a message from the process that unlocks, and this control polls. Polling
//! changes the times of the requests, but no rule about which request is granted. Redisson's
//! default lease is 30 s.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use distlock::{Clock as _, SystemClock};
use tokio::task::JoinHandle;

use super::{
    kinds::{ControlHold, ControlLock, millis},
    redis_link::{RedisLink, random_value},
};

/// KEYS: lock; ARGV: lease in ms, owner. Returns nil after a grant. Otherwise another owner has the
/// lock, and the script returns the remaining lease in ms.
const LOCK: &str = "\
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
return redis.call('PTTL', KEYS[1])";

/// KEYS: lock; ARGV: lease in ms, owner. Returns 1 if the owner still has the lock.
const RENEW: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1";

/// KEYS: lock; ARGV: owner. Returns nil if the owner does not have the lock.
const UNLOCK: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then return 0 end
redis.call('DEL', KEYS[1])
return 1";

/// The lock on one server.
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
        let others: Option<i64> = self.0.run_script(LOCK, name, &arguments).await.ok()?;
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

/// Renews the lock at each third of the lease, until another owner has the lock.
async fn renew(server: Arc<RedisLink>, key: String, owner: String, ttl: Duration) {
    let lease = millis(ttl).to_string();
    loop {
        SystemClock.sleep(ttl / 3).await;
        let renewed = server
            .run_script::<i64>(RENEW, &key, &[&lease, &owner])
            .await;
        if renewed.is_ok_and(|it| it == 0) {
            break;
        }
    }
}

/// A granted lock, with the task that renews it.
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
        // If the request fails, the key stays until its lease ends.
        self.renewing.abort();
        let owner = [self.owner.as_str()];
        let _ = self
            .server
            .run_script::<Option<i64>>(UNLOCK, &self.key, &owner)
            .await;
    }
}
