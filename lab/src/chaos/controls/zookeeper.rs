//! The lock recipe of the crate `zookeeper-client`, as its readme shows it.
//!
//! The users believe in the lock until they drop it or the client reports the end of its session.
//! The readme of the crate uses the lock for writes to ZooKeeper; these workers write to the
//! referee.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use tokio::{sync::Mutex, time::timeout};
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use super::kinds::{ControlHold, ControlLock};

/// The session time-out of the twin; see `RunningStore::url`.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);

/// The recipe on one ensemble. The client connects when it is used.
pub(super) struct ZooKeeperRecipe {
    /// `user:password`, if the ensemble requires one.
    account: Option<String>,
    hosts: String,
    client: Mutex<Option<Client>>,
}

impl ZooKeeperRecipe {
    pub(super) fn new(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("zookeeper://").context("an ensemble")?;
        let servers = rest.split('/').next().unwrap_or(rest);
        let (account, hosts) = match servers.rsplit_once('@') {
            Some((account, hosts)) => (Some(account.to_owned()), hosts),
            None => (None, servers),
        };
        Ok(Self {
            account,
            hosts: hosts.to_owned(),
            client: Mutex::new(None),
        })
    }

    /// Returns the client of this process, or a new one if the session of the old client has ended.
    async fn client(&self) -> Option<Client> {
        let mut kept = self.client.lock().await;
        if let Some(client) = &*kept
            && !client.state().is_terminated()
        {
            return Some(client.clone());
        }
        let mut connector = Client::connector().with_session_timeout(SESSION_TIMEOUT);
        if let Some(account) = &self.account {
            connector = connector.with_auth("digest", account.as_bytes());
        }
        let client = connector.connect(&self.hosts).await.ok()?;
        *kept = Some(client.clone());
        Some(client)
    }

    /// Waits for the lock in a folder. `None` means that the client returned an error.
    async fn take_lock(&self, folder: &str, client: &Client) -> Option<OwnedLockClient> {
        let acls = match self.account {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        };
        let prefix = LockPrefix::new_curator(folder, "lock-").ok()?;
        let ancestors = CreateMode::Persistent.with_acls(acls);
        let options = LockOptions::new(acls)
            .with_ancestor_options(ancestors)
            .ok()?;
        let lock = client.lock(prefix, b"", options).await.ok()?;
        Some(lock.into_owned())
    }
}

#[async_trait]
impl ControlLock for ZooKeeperRecipe {
    async fn attempt(
        &self,
        name: &str,
        _ttl: Duration,
        wait: Duration,
    ) -> Option<Box<dyn ControlHold>> {
        let folder = format!("/controls/{}", name.replace(' ', "-"));
        let client = self.client().await?;
        let lock = timeout(wait, self.take_lock(&folder, &client))
            .await
            .ok()??;
        Some(Box::new(Held(lock)))
    }
}

/// A granted lock. Dropping the value releases the lock.
struct Held(OwnedLockClient);

#[async_trait]
impl ControlHold for Held {
    fn is_believed(&self) -> bool {
        !self.0.client().state().is_terminated()
    }

    async fn release(self: Box<Self>) {
        // The client deletes the lock's node in the background.
        drop(self);
    }
}
