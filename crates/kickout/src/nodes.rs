//! Which incarnations of other nodes are alive, and where to reach them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Error, ErrorKind, HolderInfo, Locker, Moment, Result};
use serde::{Deserialize, Serialize};

use crate::{
    history::History,
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
    /// Its incarnation, where that is not the lease's token: the store had forgotten the lease, and
    /// the node has taken it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot: Option<Boot>,
}

/// What a lease says of its node: the incarnation, and the rest where it can be read.
pub(crate) fn read_lease(holder: &HolderInfo) -> (Option<Boot>, Option<NodeMeta>) {
    let meta = holder.meta.as_deref().map(serde_json::from_str::<NodeMeta>);
    let meta = meta.and_then(std::result::Result::ok);
    let named = meta.as_ref().and_then(|meta| meta.boot);
    let token = holder.token.map(|token| Boot::new(token.get()));
    (named.or(token), meta)
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
    own: NodeId,
    history: Arc<History>,
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
    pub(crate) fn new(
        own: NodeId,
        history: Arc<History>,
        locker: Locker,
        clock: Arc<dyn Clock>,
        node_lease: Duration,
    ) -> Self {
        Self {
            own,
            history,
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

    async fn ask(&self, node: &NodeId, boot: Boot) -> Result<Standing> {
        let asked = self.clock.now();
        let info = self.locker.inspect(node.lock()?).await?;
        let up = match info.held.as_ref().map(read_lease) {
            None => None,
            Some((Some(boot), Some(meta))) => Some(NodeAddress {
                node: node.clone(),
                boot,
                addr: meta.addr,
            }),
            // Somebody else holds its name.
            Some((Some(other), _)) if other != boot => None,
            // It lives, and what it says of itself is for another version: that is not "dead".
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("the lease of node {node} is held, and says nothing that can be read"),
                ));
            }
        };
        if up.is_none() && self.forgotten_for().await?.is_some() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the store has forgotten something: whether node {node} lives is not known"
                ),
            ));
        }
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

    /// For how long it means nothing that something is missing from the store. A store that has
    /// forgotten all of it knows nothing of this node's own lease.
    pub(crate) async fn forgotten_for(&self) -> Result<Option<Duration>> {
        if self.history.silent_for().is_none() {
            let own = self.locker.inspect(self.own.lock()?).await?;
            if own.held.is_none() {
                let why = "the store knows nothing of this node's lease";
                self.history.forgotten(why);
            }
        }
        Ok(self.history.silent_for())
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
        // First: numbers begin anew where a store was made anew.
        if let Some((up, _)) = &self.up
            && up.boot == boot
        {
            return Some(Standing::Up(up.clone()));
        }
        let dead = self.dead.is_some_and(|dead| boot <= dead);
        dead.then_some(Standing::Dead)
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
        let own = NodeId::new("n1").unwrap();
        let _lease = locker
            .lock_named(&own.lock().unwrap())
            .acquire()
            .await
            .unwrap();
        let (lease, nodes_clock) = (Duration::from_secs(9), Arc::new(clock.clone()));
        let history = History::new(own.clone(), lease, nodes_clock.clone());
        let nodes = Nodes::new(own, Arc::new(history), locker, nodes_clock, lease);
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
