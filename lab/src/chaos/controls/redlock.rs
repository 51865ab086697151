//! Redlock, as Redis' documentation describes it ("Distributed Locks with Redis").
//!
//! The key is set on all servers at once, each with a short time-out. A majority grants the lock,
//! and its validity is the TTL less the time of the requests and an allowance for clock drift. A
//! lock that was not granted is deleted on all servers. The users believe in the computed validity.
//! A server that has lost its data restarts at once. The documentation recommends to delay the
//! restart after a crash, but most deployments have no such delay. There is no fencing token.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use distlock::{Clock as _, Moment, SystemClock};
use tokio::{task::JoinSet, time::timeout};

use super::{
    kinds::{ControlHold, ControlLock, millis},
    redis_link::{DELETE_OWN, RedisLink, random_value, set_nx_command},
};

/// "If the auto-release time is 10 seconds, the timeout could be in the ~ 5-50 milliseconds range."
const SERVER_TIMEOUT: Duration = Duration::from_millis(50);
/// Allowance for clock drift, in addition to a hundredth of the TTL.
const DRIFT: Duration = Duration::from_millis(2);

/// Redlock over these servers.
pub(super) struct Redlock(Vec<Arc<RedisLink>>);

impl Redlock {
    pub(super) fn new(urls: &[&str]) -> Result<Self> {
        let link = |url: &&str| Ok(Arc::new(RedisLink::new(url)?));
        Ok(Self(urls.iter().map(link).collect::<Result<_>>()?))
    }
}

#[async_trait]
impl ControlLock for Redlock {
    async fn attempt(
        &self,
        name: &str,
        ttl: Duration,
        _wait: Duration,
    ) -> Option<Box<dyn ControlHold>> {
        let value = random_value();
        let started = SystemClock.now();
        let mut asking = JoinSet::new();
        for server in &self.0 {
            let (server, command) = (
                Arc::clone(server),
                set_nx_command(name, &value, millis(ttl)),
            );
            asking.spawn(async move {
                let answer =
                    timeout(SERVER_TIMEOUT, server.query::<Option<String>>(&command)).await;
                matches!(answer, Ok(Ok(Some(_))))
            });
        }
        let granted = asking.join_all().await.into_iter().filter(|it| *it).count();
        let held = Held {
            servers: self.0.clone(),
            key: name.to_owned(),
            value,
            until: started + ttl.saturating_sub(ttl / 100 + DRIFT),
        };
        if granted > self.0.len() / 2 && held.is_believed() {
            return Some(Box::new(held));
        }
        held.delete().await;
        None
    }
}

/// A lock that a majority of the servers has granted.
struct Held {
    servers: Vec<Arc<RedisLink>>,
    key: String,
    value: String,
    until: Moment,
}

impl Held {
    /// Deletes the key on all servers, including the servers that did not answer before.
    async fn delete(&self) {
        let mut deleting = JoinSet::new();
        for server in &self.servers {
            let (server, key, value) = (Arc::clone(server), self.key.clone(), self.value.clone());
            deleting.spawn(async move {
                let _ = server.run_script::<i64>(DELETE_OWN, &key, &[&value]).await;
            });
        }
        deleting.join_all().await;
    }
}

#[async_trait]
impl ControlHold for Held {
    fn is_believed(&self) -> bool {
        SystemClock.now() < self.until
    }

    async fn release(self: Box<Self>) {
        self.delete().await;
    }
}
