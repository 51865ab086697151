//! Takes the place of a leader from it, and lets it take part again.

use anyhow::{Result, bail};

use super::{
    leader::{FormerLeader, LeaderRemoval},
    running::{RunningStore, StoreServers},
};

impl RunningStore {
    /// Takes the leader's place from it. `None` = it cannot be done now. Blocks.
    pub(crate) fn remove_leader(
        &mut self,
        how: LeaderRemoval,
        any: usize,
    ) -> Result<Option<FormerLeader>> {
        if !self.is_settled() {
            return Ok(None);
        }
        match &mut self.servers {
            StoreServers::Sentinels(it) => it.remove_leader(how, any),
            StoreServers::Cluster(it) => it.remove_leader(how, any),
            StoreServers::ZooKeeper(it) => it.remove_leader(how),
            _ => bail!("this store has one server"),
        }
    }

    /// Whether another server has taken its place. Blocks.
    pub(crate) fn is_replaced(&self, former: FormerLeader) -> bool {
        match &self.servers {
            StoreServers::Sentinels(it) => it.is_replaced(former),
            StoreServers::Cluster(it) => it.is_replaced(former),
            StoreServers::ZooKeeper(it) => it.is_replaced(former),
            _ => true,
        }
    }

    /// Lets the former leader take part again. Blocks.
    pub(crate) fn rejoin(&mut self, former: FormerLeader) -> Result<()> {
        match &mut self.servers {
            StoreServers::Sentinels(it) => it.rejoin(former),
            StoreServers::Cluster(it) => it.rejoin(former),
            StoreServers::ZooKeeper(it) => it.rejoin(former),
            _ => Ok(()),
        }
    }

    /// Whether the servers agree on who leads, and whoever could follow is ready to. Blocks.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.servers {
            StoreServers::Sentinels(it) => it.is_settled(),
            StoreServers::Cluster(it) => it.is_settled(),
            StoreServers::ZooKeeper(it) => it.is_settled(),
            _ => true,
        }
    }

    /// Whether the server that [`RunningStore::pause`] or [`RunningStore::kill`] takes for this number is a
    /// primary. Its replica may take over without the last acknowledged writes. Blocks.
    pub(crate) fn may_lose_by(&self, any: usize) -> bool {
        match &self.servers {
            StoreServers::Sentinels(it) => it.leads(any % it.len()),
            StoreServers::Cluster(it) => it.leads(any % it.nodes().len()),
            _ => false,
        }
    }
}
