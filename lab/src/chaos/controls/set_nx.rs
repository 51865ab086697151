//! `SET key value NX PX ttl`, and `DEL` at the end.
//!
//! The users believe in the TTL from the moment of the answer. The first form deletes the key even
//! if another holder has the lock at that time. The second form compares the value first, as Redis'
//! documentation says.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use distlock::{Clock as _, Moment, SystemClock};

use super::{
    kinds::{ControlHold, ControlLock, millis},
    redis_link::{DELETE_OWN, RedisLink, random_value, set_nx_command},
};

/// The lock. `compares` means that a release compares the value before it deletes the key.
pub(super) struct SetNx {
    server: Arc<RedisLink>,
    compares: bool,
}

impl SetNx {
    pub(super) fn new(url: &str, compares: bool) -> Result<Self> {
        let server = Arc::new(RedisLink::new(url)?);
        Ok(Self { server, compares })
    }
}

#[async_trait]
impl ControlLock for SetNx {
    async fn attempt(
        &self,
        name: &str,
        ttl: Duration,
        _wait: Duration,
    ) -> Option<Box<dyn ControlHold>> {
        let value = random_value();
        let asked = set_nx_command(name, &value, millis(ttl));
        let granted: Option<String> = self.server.query(&asked).await.ok()?;
        granted?;
        Some(Box::new(Held {
            server: Arc::clone(&self.server),
            key: name.to_owned(),
            value,
            until: SystemClock.now() + ttl,
            compares: self.compares,
        }))
    }
}

/// A granted lock, believed until `until`.
pub(super) struct Held {
    pub(super) server: Arc<RedisLink>,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) until: Moment,
    pub(super) compares: bool,
}

#[async_trait]
impl ControlHold for Held {
    fn is_believed(&self) -> bool {
        SystemClock.now() < self.until
    }

    async fn release(self: Box<Self>) {
        // If the request fails, the key stays until its TTL ends.
        if self.compares {
            let value = [self.value.as_str()];
            let _ = self
                .server
                .run_script::<i64>(DELETE_OWN, &self.key, &value)
                .await;
        } else {
            let mut delete = redis::cmd("DEL");
            delete.arg(&self.key);
            let _ = self.server.query::<i64>(&delete).await;
        }
    }
}
