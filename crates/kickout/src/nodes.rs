//! Which incarnations of other nodes are alive, and where to reach them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Error, ErrorKind, Locker, Moment, Result};
use serde::{Deserialize, Serialize};

use crate::{
    ident::{Boot, NodeId},
    peers::NodeAddress,
};

/// Longest time a node is taken to be alive without asking again. Short beside every lease, long beside a burst of logins.
const FRESH: Duration = Duration::from_millis(200);

/// Time after which nothing is remembered of a node that nobody asked about.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// What a node writes beside its lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeMeta {
    pub(crate) addr: String,
    pub(crate) state: NodeState,
    /// Where its clients connect, for people who look at the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) front: Option<String>,
    /// Its policy, so that others notice when theirs is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
}

/// Whether a node takes logins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeState {
    /// It does.
    Up,
    /// It is about to stop.
    Draining,
}

/// How an incarnation stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its lease is held.
    Up(NodeAddress),
    /// Its lease has ended, for ever: boot numbers do not come back.
    Dead,
}

#[derive(Debug)]
pub(crate) struct Nodes {
    locker: Locker,
    clock: Arc<dyn Clock>,
    fresh: Duration,
    known: Mutex<HashMap<NodeId, Known>>,
}

#[derive(Clone, Debug)]
struct Known {
    asked: Moment,
    /// Every incarnation up to this one is dead.
    dead: Option<Boot>,
    up: Option<(NodeAddress, Moment)>,
}

impl Nodes {
    pub(crate) fn new(locker: Locker, clock: Arc<dyn Clock>, node_lease: Duration) -> Self {
        Self {
            locker,
            clock,
            fresh: FRESH.min(node_lease / 20),
            known: Mutex::default(),
        }
    }

    /// How the incarnation stands that a record names. The record must have been read before.
    ///
    /// Errors mean "not known", never "dead".
    pub(crate) async fn standing(&self, node: &NodeId, boot: Boot) -> Result<Standing> {
        if let Some(standing) = self.remembered(node, boot) {
            return Ok(standing);
        }
        self.ask(node, boot).await
    }

    /// As [`standing`](Self::standing), always asking the store.
    pub(crate) async fn ask(&self, node: &NodeId, boot: Boot) -> Result<Standing> {
        let asked = self.clock.now();
        let info = self.locker.inspect(node.lock()?).await?;
        let up = match info.held {
            None => None,
            Some(holder) => {
                let token = holder.token.map(|token| Boot::new(token.get()));
                let meta = holder.meta.as_deref().map(serde_json::from_str::<NodeMeta>);
                match (token, meta) {
                    (Some(boot), Some(Ok(meta))) => Some(NodeAddress {
                        node: node.clone(),
                        boot,
                        addr: meta.addr,
                    }),
                    // Somebody else holds its name.
                    (Some(other), _) if other != boot => None,
                    // It lives, and what it says of itself is for another version: that is not "dead".
                    _ => {
                        return Err(Error::new(
                            ErrorKind::Corrupt,
                            format!(
                                "the lease of node {node} is held, and says nothing that can be read"
                            ),
                        ));
                    }
                }
            }
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(node) {
            // Where nodes come under ever new names, those of long ago must not be kept. Asking once more finds them dead.
            known.retain(|_, known| asked.since(known.asked) < FORGOTTEN);
        }
        let known = known.entry(node.clone()).or_insert(Known {
            asked,
            dead: None,
            up: None,
        });
        known.asked = asked;
        let dead = match &up {
            Some(up) => Boot::new(up.boot.get().saturating_sub(1)),
            // A session of this incarnation was in the directory, so its lease had been held before we asked.
            None => boot,
        };
        known.dead = known.dead.max(Some(dead));
        known.up = up.map(|up| (up, asked));
        Ok(known.standing(boot).unwrap_or(Standing::Dead))
    }

    /// Forgets that a node was alive, so that the next question goes to the store.
    pub(crate) fn doubt(&self, node: &NodeId) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get_mut(node) {
            known.up = None;
        }
    }

    fn remembered(&self, node: &NodeId, boot: Boot) -> Option<Standing> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(node)?;
        let standing = known.standing(boot)?;
        let fresh = known
            .up
            .as_ref()
            .is_some_and(|(_, asked)| self.clock.now().since(*asked) < self.fresh);
        (standing == Standing::Dead || fresh).then_some(standing)
    }
}

impl Known {
    fn standing(&self, boot: Boot) -> Option<Standing> {
        if self.dead.is_some_and(|dead| boot <= dead) {
            return Some(Standing::Dead);
        }
        let (up, _) = self.up.as_ref()?;
        (up.boot == boot).then(|| Standing::Up(up.clone()))
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::{ManualClock, Store};
    use distlock_memory::Memory;

    use super::*;

    #[tokio::test]
    async fn nodes_of_long_ago_are_forgotten() {
        let memory = Memory::default();
        let locker = Store::new(memory.lock(), memory.records()).locker();
        let clock = ManualClock::new();
        let nodes = Nodes::new(locker, Arc::new(clock.clone()), Duration::from_secs(9));
        for pod in 0..100 {
            let pod = NodeId::new(format!("pod-{pod}")).unwrap();
            for _ in 0..2 {
                let standing = nodes.standing(&pod, Boot::new(1)).await.unwrap();
                assert_eq!(standing, Standing::Dead);
            }
            clock.advance(FORGOTTEN / 2);
        }
        let known = nodes.known.lock().unwrap().len();
        assert!(known <= 3, "{known}");
    }
}
