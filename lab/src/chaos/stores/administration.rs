//! The steps of an administrator: deleting a lock, ending a session, setting a clock, limiting
//! memory.

use std::time::Duration;

use anyhow::{Result, bail};
use distlock::backend::encode;
use tokio::runtime::Handle;

use super::{
    independent::IndependentServers,
    running::{ROOT, RunningStore, StoreServers},
};
use crate::chaos::{database_file, history::Excuse};

impl RunningStore {
    /// Deletes the key, row or node of a lock without the library. The function blocks, so it needs
    /// a thread that may block.
    pub(crate) fn delete_lock(&self, name: &str) -> Result<()> {
        let delete = format!("DELETE FROM distributed_lock WHERE lock_name = '{name}'");
        match &self.servers {
            StoreServers::File(path) => {
                Handle::current().block_on(database_file::run(path, &delete))
            }
            StoreServers::MySql(it) => it.sql(&delete).map(drop),
            StoreServers::Postgres(it) => it.sql(&delete).map(drop),
            StoreServers::ZooKeeper(it) => {
                let queue = it.queue_of(&lock_container(name))?;
                match queue.first() {
                    Some(holder) => it.servers.remove(holder),
                    None => Ok(()),
                }
            }
            StoreServers::Redis(_)
            | StoreServers::Independent(_)
            | StoreServers::Sentinels(_)
            | StoreServers::Cluster(_) => {
                // Lock names in the lab contain no special characters of a Redis pattern.
                let pattern = format!("*}}:lock:{}", encode(name));
                for server in self.redis_servers() {
                    let found = server.command(&["KEYS", &pattern])?;
                    for key in found.lines().filter(|it| !it.is_empty()) {
                        // A replica refuses the command, and copies the deletion of its primary.
                        server.command(&["DEL", key])?;
                    }
                }
                Ok(())
            }
            StoreServers::InProcess | StoreServers::Served(_) => {
                bail!("nobody reaches the locks of this store but through it")
            }
        }
    }

    /// Ends the session that holds a lock, and with it all locks of that session. Returns the
    /// exception that the documentation allows then, `None` if nobody holds the lock. The function
    /// blocks.
    pub(crate) fn end_session_of(&self, name: &str) -> Result<Option<Excuse>> {
        let StoreServers::ZooKeeper(it) = &self.servers else {
            bail!("this store has no sessions");
        };
        let queue = it.queue_of(&lock_container(name))?;
        let Some(holder) = queue.first() else {
            return Ok(None);
        };
        let owner = it.servers.owner(holder)?;
        // A request without an answer may have ended the session.
        let _ = it.servers.end_session(owner.session);
        Ok(Some(Excuse::EndedSession {
            name: name.to_owned(),
            // The token of a lock is the transaction that created its node.
            token: owner.created,
        }))
    }

    /// Puts a server's clock forward, and returns the exception that the documentation allows then,
    /// if it allows one. The function blocks.
    pub(crate) fn put_clock_forward(&self, by: Duration) -> Result<Option<Excuse>> {
        match &self.servers {
            StoreServers::MySql(it) => it.put_clock_forward(by)?,
            StoreServers::Postgres(it) => it.put_clock_forward(by)?,
            StoreServers::Independent(it) => {
                it.put_clock_forward(by)?;
                if !IndependentServers::counts_beside_others(by) {
                    return Ok(None);
                }
            }
            _ => bail!("this store's server has no clock of its own"),
        }
        let by_us = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        Ok(Some(Excuse::SteppedClock { by_us }))
    }

    /// Repairs a clock that was put forward. The function blocks.
    pub(crate) fn put_clock_back(&self, by: Duration) -> Result<()> {
        match &self.servers {
            StoreServers::Independent(it) => it.put_clock_back(by),
            _ => bail!("the clock of this store stays ahead"),
        }
    }

    /// Leaves the servers no memory for new data, or removes the limit. The function blocks.
    pub(crate) fn limit_memory(&self, none_left: bool) -> Result<()> {
        // Zero means no limit.
        let most = if none_left { "1" } else { "0" };
        for server in self.redis_servers() {
            server.command(&["CONFIG", "SET", "maxmemory", most])?;
        }
        Ok(())
    }
}

/// Returns the ZooKeeper node that contains the store queue of a lock.
fn lock_container(name: &str) -> String {
    format!("{}/locks/{}", ROOT, encode(name))
}
