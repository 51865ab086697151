//! Names that are spread over several Redis servers by `hash(name) % n`.
//!
//! The list of the servers is that of the ring in the same run: the active members. Every attempt
//! reads it, so no client uses an old list. A lock is believed for the TTL from its sending, and a
//! release deletes it where it was set.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use distlock::{Clock as _, RecordKey, Store, SystemClock};
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::{
    kinds::{ControlHold, ControlLock, millis},
    redis_link::{RedisLink, random_value, set_nx_command},
    set_nx::Held,
};

/// Locks on several servers.
pub(super) struct HashMod {
    list_url: String,
    list: OnceCell<Store>,
    servers: BTreeMap<String, Arc<RedisLink>>,
}

/// The list of the servers, as the ring store has it.
#[derive(Deserialize)]
struct ServerList {
    members: Vec<String>,
}

impl HashMod {
    /// Reads `ring:?records=URL&member=NAME=URL&..`.
    pub(super) fn new(url: &str) -> Result<Self> {
        let (_, options) = url.split_once('?').context("options")?;
        let mut list_url = None;
        let mut servers = BTreeMap::new();
        for option in options.split('&') {
            match option.split_once('=').context("an option with a value")? {
                ("records", url) => list_url = Some(url.to_owned()),
                (_, member) => {
                    let (name, url) = member.split_once('=').context("a name and a URL")?;
                    servers.insert(name.to_owned(), Arc::new(RedisLink::new(url)?));
                }
            }
        }
        Ok(Self {
            list_url: list_url.context("the URL of the list")?,
            list: OnceCell::new(),
            servers,
        })
    }

    /// Returns the server of a name by the present list.
    async fn server_of(&self, name: &str) -> Result<Option<&Arc<RedisLink>>> {
        let opening = || async { distlock::open(self.list_url.as_str()).await };
        let list = self.list.get_or_try_init(opening).await?;
        let entry = list
            .records()
            .get(&RecordKey::new("distlock-ring")?)
            .await?;
        let list: ServerList = serde_json::from_slice(&entry.context("a list")?.value)?;
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let at = hasher.finish() % u64::try_from(list.members.len())?;
        Ok(self.servers.get(&list.members[usize::try_from(at)?]))
    }
}

#[async_trait]
impl ControlLock for HashMod {
    async fn attempt(
        &self,
        name: &str,
        ttl: Duration,
        _wait: Duration,
    ) -> Option<Box<dyn ControlHold>> {
        let server = Arc::clone(self.server_of(name).await.ok()??);
        let value = random_value();
        let asked = set_nx_command(name, &value, millis(ttl));
        let sent = SystemClock.now();
        let granted: Option<String> = server.query(&asked).await.ok()?;
        granted?;
        Some(Box::new(Held {
            server,
            key: name.to_owned(),
            value,
            until: sent + ttl,
            compares: true,
        }))
    }
}
