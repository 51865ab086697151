//! The roster: which incarnations of nodes there have been, so that a dead one is noticed, and the nodes are listed, without a
//! look through the whole store. One record, written when a node starts and when what a dead one left behind was cleared.

use std::collections::{BTreeMap, BTreeSet};

use distlock_core::Result;
use serde::{Deserialize, Serialize};

use crate::{
    flow::Inner,
    ident::{Boot, NodeId},
};

/// The incarnations that are, or were and may have left something behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roster {
    nodes: BTreeMap<NodeId, BTreeSet<Boot>>,
}

impl Roster {
    /// Whether it was not there.
    fn add(&mut self, node: &NodeId, boot: Boot) -> bool {
        self.nodes.entry(node.clone()).or_default().insert(boot)
    }

    /// Whether it was there.
    fn strike(&mut self, node: &NodeId, boot: Boot) -> bool {
        let Some(boots) = self.nodes.get_mut(node) else {
            return false;
        };
        let was = boots.remove(&boot);
        if boots.is_empty() {
            self.nodes.remove(node);
        }
        was
    }

    /// Their names.
    pub(crate) fn names(self) -> BTreeSet<NodeId> {
        self.nodes.into_keys().collect()
    }
}

impl Inner {
    /// Puts this incarnation on the roster, and with it the nodes that hold a lease: those of the version before do not do it
    /// themselves.
    pub(crate) async fn enlist(&self, own: Boot) -> Result<()> {
        let mut there = vec![(self.node.clone(), own)];
        for lock in self.locker.list("node/").await? {
            let name = lock.name.as_str().strip_prefix("node/").map(NodeId::new);
            let token = lock.held.and_then(|holder| holder.token);
            if let (Some(Ok(node)), Some(token)) = (name, token) {
                there.push((node, Boot::new(token.get())));
            }
        }
        let enlisting = self.directory.update_roster(|roster| {
            let added = there.iter().map(|(node, boot)| roster.add(node, *boot));
            added.fold(false, |any, added| any | added)
        });
        enlisting.await
    }

    /// Those of the roster whose lease has ended. Puts this incarnation there if the store forgot it.
    pub(crate) async fn dead_on_the_roster(&self) -> Result<BTreeSet<(NodeId, Boot)>> {
        let roster = self.directory.roster().await?;
        let there: Vec<_> = roster
            .nodes
            .into_iter()
            .flat_map(|(node, boots)| boots.into_iter().map(move |boot| (node.clone(), boot)))
            .collect();
        if let Some(own) = self.own.now().map(|own| own.boot)
            && !there.contains(&(self.node.clone(), own))
        {
            self.enlist(own).await?;
        }
        Ok(self.dead_among(there, self.timers.lock_ttl).await)
    }

    /// Takes incarnations off the roster: nothing of them is left.
    pub(crate) async fn strike(&self, dead: &BTreeSet<(NodeId, Boot)>) -> Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        let striking = self.directory.update_roster(|roster| {
            let struck = dead.iter().map(|(node, boot)| roster.strike(node, *boot));
            struck.fold(false, |any, struck| any | struck)
        });
        striking.await
    }
}
