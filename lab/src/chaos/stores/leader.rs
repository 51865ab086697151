//! The ways to remove a leader (of Redis: a primary), and the state of a removed leader.
//!
//! Removes a leader, and lets it take part again.

use anyhow::{Result, bail};

use super::running::{RunningStore, StoreServers};

/// A way to remove a leader.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaderRemoval {
    /// An administrator orders the failover, or the leader is killed.
    FailOver,
    /// The leader is killed.
    Kill,
    /// The leader is cut off from the servers that choose a leader, and still answers its clients.
    CutOff,
}

/// A leader that another server has replaced, or is about to replace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormerLeader {
    /// The index of the former leader.
    pub(super) at: usize,
    /// The index of the next leader, if it is known in advance.
    pub(super) next: usize,
    pub(super) how: RemovedBy,
}

impl FormerLeader {
    /// Tells whether the former leader still serves clients, because it does not know of its
    /// replacement.
    pub(crate) const fn still_answers(self) -> bool {
        matches!(self.how, RemovedBy::CutOff)
    }
}

/// The action that removes the leader.
#[derive(Clone, Copy, Debug)]
pub(super) enum RemovedBy {
    /// An administrator ordered the failover.
    Command,
    Killed,
    CutOff,
}

impl RunningStore {
    /// Removes the leader. `None` means that this is not possible now. The function blocks.
    pub(crate) fn remove_leader(
        &mut self,
        how: LeaderRemoval,
        pick: usize,
    ) -> Result<Option<FormerLeader>> {
        if !self.is_settled() {
            return Ok(None);
        }
        match &mut self.servers {
            StoreServers::Sentinels(it) => it.remove_leader(how, pick),
            StoreServers::Cluster(it) => it.remove_leader(how, pick),
            StoreServers::ZooKeeper(it) => it.remove_leader(how),
            _ => bail!("this store has one server"),
        }
    }

    /// Tells whether another server has replaced the former leader. The function blocks.
    pub(crate) fn is_replaced(&self, former: FormerLeader) -> bool {
        match &self.servers {
            StoreServers::Sentinels(it) => it.is_replaced(former),
            StoreServers::Cluster(it) => it.is_replaced(former),
            StoreServers::ZooKeeper(it) => it.is_replaced(former),
            _ => true,
        }
    }

    /// Lets the former leader take part again. The function blocks.
    pub(crate) fn rejoin(&mut self, former: FormerLeader) -> Result<()> {
        match &mut self.servers {
            StoreServers::Sentinels(it) => it.rejoin(former),
            StoreServers::Cluster(it) => it.rejoin(former),
            StoreServers::ZooKeeper(it) => it.rejoin(former),
            _ => Ok(()),
        }
    }

    /// Tells whether the servers agree on the leader, and its possible successors are ready. The
    /// function blocks.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.servers {
            StoreServers::Sentinels(it) => it.is_settled(),
            StoreServers::Cluster(it) => it.is_settled(),
            StoreServers::ZooKeeper(it) => it.is_settled(),
            _ => true,
        }
    }

    /// Tells whether [`RunningStore::pause`] and [`RunningStore::kill`] choose a primary of Redis
    /// for `pick`. The replica of that primary may take over without the last acknowledged writes.
    /// The function blocks.
    pub(crate) fn would_hit_primary(&self, pick: usize) -> bool {
        match &self.servers {
            StoreServers::Sentinels(it) => it.leads(pick % it.server_count()),
            StoreServers::Cluster(it) => it.leads(pick % it.nodes().len()),
            _ => false,
        }
    }
}
