//! Keeps the roster: the record with the incarnations that are alive or may have left records.
//!
//! With the roster a node finds dead incarnations, and lists the nodes, without reading the whole
//! store. A node writes the roster when it starts, and after it removed the records of a dead
//! incarnation. An incarnation is never removed while its records may exist.

use std::collections::BTreeSet;

use distlock_core::{Error, Result, Store};
use futures_util::future::join_all;

use crate::{
    directory::records::Directory,
    model::{
        ident::{Boot, NodeId},
        node::{NodeInfo, NodeState, read_lease},
    },
    node::{Node, liveness::Incarnations},
};

/// Takes a node off the roster that will not return and left no records. A node that shuts down
/// cleanly needs no such call.
///
/// # Errors
/// Failures of the store.
///
/// # Cancel safety
/// A dropped call leaves the outcome unknown; repeating the call is safe.
pub async fn forget_node(store: &Store, node: &NodeId) -> Result<()> {
    let directory = Directory::new(store);
    let forgetting = directory.update_roster(|roster| roster.nodes.remove(node).is_some());
    forgetting.await.map(drop)
}

impl Node {
    /// Puts this incarnation on the roster, and logs the nodes with another policy.
    pub(crate) async fn register(&self) -> Result<()> {
        let Some(own) = self.this.current_incarnation() else {
            return Ok(());
        };
        self.observe_epoch_of_records().await?;
        let mut is_visible = false;
        for lock in self.locker.list("node/").await? {
            let name = lock.name.as_str().strip_prefix("node/").map(NodeId::new);
            let lease = lock.held.as_ref().map(read_lease);
            let (Some(Ok(node)), Some((boot, meta))) = (name, lease) else {
                continue;
            };
            if let Some(meta) = meta {
                self.log_other_policy(&node, &meta.policy);
            }
            is_visible |= node == self.this.id && boot == Some(own.boot);
        }
        // A store that was emptied shows no lease. This incarnation is listed only once its lease
        // can be seen: other nodes would count the entry as that of a dead incarnation.
        let registration = self
            .directory
            .update_roster(|roster| is_visible && roster.add(&self.this.id, own.boot));
        let roster = registration.await?.id;
        self.observe_roster(roster);
        if is_visible {
            // Without a visible lease the lease keeps the old roster's id. With the new id, a loss
            // of the lease would not show that the store has lost data with it.
            own.lease.set_roster(roster);
        }
        Ok(())
    }

    /// The incarnations on the roster: those whose lease has ended, and the addresses of those
    /// whose lease is held. If the store has lost this node's own roster entry, this call writes
    /// the entry again.
    pub(crate) async fn register_and_look_up(&self) -> Result<Incarnations> {
        let roster = self.read_roster().await?;
        let id = roster.id;
        let there: Vec<_> = roster
            .nodes
            .into_iter()
            .flat_map(|(node, boots)| boots.into_iter().map(move |boot| (node.clone(), boot)))
            .collect();
        if let Some(own) = self.this.current_incarnation()
            && !there.contains(&(self.this.id.clone(), own.boot))
        {
            if id.is_some() && own.lease.roster() == id {
                tracing::error!(
                    node = %self.this.id,
                    "a node that does not see this node's lease took it off the roster, and its \
                     sessions out of the directory: all nodes need the same store for the locks, \
                     and the same for the records"
                );
            }
            self.register().await?;
        }
        Ok(self
            .liveness_of_all(there, self.settings.timers.lock_ttl)
            .await)
    }

    /// The nodes that hold their lease, in order of their names.
    pub(crate) async fn live_nodes(&self) -> Result<Vec<NodeInfo>> {
        let names = self.directory.roster().await?.into_node_names();
        let marks = self.directory.drain_marks(&names).await?;
        let looking = names.into_iter().map(async |node| {
            let lock = self.locker.inspect(node.lock_name()?).await?;
            Ok::<_, Error>((node, lock.held))
        });
        let mut nodes = Vec::new();
        for looked in join_all(looking).await {
            let (node, Some(holder)) = looked? else {
                continue;
            };
            let (Some(boot), Some(meta)) = read_lease(&holder) else {
                continue;
            };
            let draining = marks.get(&node).is_some_and(|mark| mark.boot == boot);
            nodes.push(NodeInfo {
                boot,
                addr: meta.addr,
                front: meta.front,
                policy: meta.policy,
                state: if draining {
                    NodeState::Draining
                } else {
                    NodeState::Up
                },
                lease_remaining_ms: holder
                    .expires_in
                    .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
                unreachable: None,
                node,
            });
        }
        Ok(nodes)
    }

    /// Logs an error if the other node's policy differs. The two nodes would decide differently
    /// about the same account.
    fn log_other_policy(&self, other: &NodeId, policy: &str) {
        let own = self.settings.policy.to_string();
        if policy != own {
            tracing::error!(
                node = %self.this.id, policy = own, %other, others_policy = policy,
                "nodes of one store have different policies: set the same policy and on_exceed on \
                 all"
            );
        }
    }

    /// Removes incarnations from the roster. Their records must have been removed before.
    pub(crate) async fn remove_from_roster(&self, dead: &BTreeSet<(NodeId, Boot)>) -> Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        let removal = self.directory.update_roster(|roster| {
            let removed = dead.iter().map(|(node, boot)| roster.remove(node, *boot));
            removed.fold(false, |any, removed| any | removed)
        });
        removal.await.map(drop)
    }
}
