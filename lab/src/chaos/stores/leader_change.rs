//! Takes the place of a leader from it, and lets it take part again.

use anyhow::{Result, bail};

use super::{
    leader::{Unseat, Unseated},
    running::{Server, Stage},
};

impl Stage {
    /// Takes the leader's place from it. `None` = it cannot be done now. Blocks.
    pub(crate) fn unseat(&mut self, how: Unseat, any: usize) -> Result<Option<Unseated>> {
        if !self.is_settled() {
            return Ok(None);
        }
        match &mut self.server {
            Server::Sentinels(it) => it.unseat(how, any),
            Server::Cluster(it) => it.unseat(how, any),
            Server::ZooKeeper(it) => it.unseat(how),
            _ => bail!("this store has one server"),
        }
    }

    /// Whether another server has taken its place. Blocks.
    pub(crate) fn is_replaced(&self, unseated: Unseated) -> bool {
        match &self.server {
            Server::Sentinels(it) => it.is_replaced(unseated),
            Server::Cluster(it) => it.is_replaced(unseated),
            Server::ZooKeeper(it) => it.is_replaced(unseated),
            _ => true,
        }
    }

    /// Lets the former leader take part again. Blocks.
    pub(crate) fn take_part_again(&mut self, unseated: Unseated) -> Result<()> {
        match &mut self.server {
            Server::Sentinels(it) => it.take_part_again(unseated),
            Server::Cluster(it) => it.take_part_again(unseated),
            Server::ZooKeeper(it) => it.take_part_again(unseated),
            _ => Ok(()),
        }
    }

    /// Whether the servers agree on who leads, and whoever could follow is ready to. Blocks.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.server {
            Server::Sentinels(it) => it.is_settled(),
            Server::Cluster(it) => it.is_settled(),
            Server::ZooKeeper(it) => it.is_settled(),
            _ => true,
        }
    }

    /// Whether the server that [`Stage::pause`] or [`Stage::kill`] takes for this number is a
    /// primary. Its replica may take over without the last acknowledged writes. Blocks.
    pub(crate) fn may_lose_by(&self, any: usize) -> bool {
        match &self.server {
            Server::Sentinels(it) => it.leads(any % it.len()),
            Server::Cluster(it) => it.leads(any % it.nodes().len()),
            _ => false,
        }
    }
}
