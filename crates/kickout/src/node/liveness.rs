//! The liveness of incarnations, and their addresses.
//!
//! An incarnation counts as dead only if its lease is free or held by another incarnation, and the
//! store has not lost data. An error means "not known", never "dead".

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use distlock_core::{Error, ErrorKind, Moment, Result, at_most, sync::Mutex};
use futures_util::future::join_all;

use crate::{
    model::{
        ident::{Boot, NodeId},
        node::{NodeAddress, read_lease},
    },
    node::Node,
};

/// Longest time for which one answer of the store is used. The time is much shorter than a lease,
/// and long enough that a burst of logins sends one request.
const MAX_ANSWER_AGE: Duration = Duration::from_millis(200);

/// Time after which an answer is removed that no look-up has refreshed.
const UNUSED_ANSWER_LIFE: Duration = Duration::from_secs(60);

/// The liveness of an incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// The incarnation's lease is held.
    Up(NodeAddress),
    /// The incarnation's lease has ended.
    Dead,
}

/// The liveness of several incarnations.
#[derive(Debug, Default)]
pub(crate) struct Incarnations {
    pub(crate) dead: BTreeSet<(NodeId, Boot)>,
    pub(crate) up: Vec<NodeAddress>,
}

/// The store's last answer about each node.
#[derive(Debug, Default)]
pub(crate) struct LastAnswers(Mutex<HashMap<NodeId, LastAnswer>>);

#[derive(Clone, Debug)]
struct LastAnswer {
    /// Time at which the request was sent to the store.
    asked: Moment,
    /// Every incarnation with this boot number or a lower one is dead.
    dead: Boot,
    /// The incarnation that holds the lease; `None` if no readable lease is held.
    up: Option<NodeAddress>,
}

impl Node {
    /// The liveness of an incarnation that a record names. The record must have been read before
    /// this call. An error means "not known", never "dead".
    pub(crate) async fn liveness_of(&self, node: &NodeId, boot: Boot) -> Result<Liveness> {
        if *node == self.this.id
            && let Some(own) = self.this.current_incarnation()
            && boot <= own.boot
        {
            return Ok(if boot == own.boot {
                Liveness::Up(self.this.address(boot))
            } else {
                Liveness::Dead
            });
        }
        match self.fresh_answer(node, boot) {
            Some(liveness) => Ok(liveness),
            None => self.ask_store(node, boot).await,
        }
    }

    /// The liveness of each of these incarnations. An incarnation is neither dead nor up if the
    /// store fails or does not answer within `limit`.
    pub(crate) async fn liveness_of_all(
        &self,
        incarnations: Vec<(NodeId, Boot)>,
        limit: Duration,
    ) -> Incarnations {
        let asking = incarnations.into_iter().map(async |(node, boot)| {
            let liveness = at_most(&*self.clock, limit, self.liveness_of(&node, boot)).await;
            ((node, boot), liveness)
        });
        let mut all = Incarnations::default();
        for (incarnation, liveness) in join_all(asking).await {
            match liveness {
                Some(Ok(Liveness::Dead)) => drop(all.dead.insert(incarnation)),
                Some(Ok(Liveness::Up(address))) => all.up.push(address),
                Some(Err(_)) | None => {}
            }
        }
        all
    }

    /// The dead incarnations among `incarnations`. An incarnation counts as alive if the store
    /// fails or does not answer within `limit`.
    pub(crate) async fn dead_among(
        &self,
        incarnations: Vec<(NodeId, Boot)>,
        limit: Duration,
    ) -> BTreeSet<(NodeId, Boot)> {
        self.liveness_of_all(incarnations, limit).await.dead
    }

    async fn ask_store(&self, node: &NodeId, boot: Boot) -> Result<Liveness> {
        let asked = self.clock.now();
        let info = self.locker.inspect(node.lock_name()?).await?;
        let up = match info.held.as_ref().map(read_lease) {
            None => None,
            Some((Some(boot), Some(meta))) => Some(NodeAddress {
                node: node.clone(),
                boot,
                addr: meta.addr,
            }),
            // Another incarnation holds the lease, so this one is dead.
            Some((Some(other), _)) if other != boot => None,
            // The lease is held, but its text cannot be read, for example because a newer version
            // wrote the text. Such a node is not dead.
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "the lease of node {node} is held, and its text cannot be read: does the \
                         node run another version of distlock?"
                    ),
                ));
            }
        };
        if up.is_none() && self.check_for_data_loss().await?.is_some() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the store has lost data, so it is not known whether node {node} is alive: the \
                     nodes register again within one node lease"
                ),
            ));
        }
        let mut answers = self.last_answers.0.lock();
        if !answers.contains_key(node) {
            // Nodes may get a new name with each start, so the answers about unused names are
            // removed. A later look-up of such a name asks the store again.
            answers.retain(|_, answers| asked.since(answers.asked) < UNUSED_ANSWER_LIFE);
        }
        let dead = match &up {
            Some(up) => Boot::new(up.boot.get().saturating_sub(1)),
            // A record named this incarnation before the store was asked, so the incarnation had
            // taken its lease by then. A free lease therefore means that the incarnation is dead.
            None => boot,
        };
        let now = LastAnswer { asked, dead, up };
        let liveness = now.liveness_of(boot).unwrap_or(Liveness::Dead);
        answers.insert(node.clone(), now);
        Ok(liveness)
    }

    /// Removes the answer about a node, so that the next look-up asks the store.
    pub(crate) fn forget_liveness(&self, node: &NodeId) {
        self.last_answers.0.lock().remove(node);
    }

    /// The liveness from the last answer, if that answer is fresh and covers the incarnation.
    fn fresh_answer(&self, node: &NodeId, boot: Boot) -> Option<Liveness> {
        let answers = self.last_answers.0.lock();
        let answers = answers.get(node)?;
        let age = MAX_ANSWER_AGE.min(self.settings.timers.node_lease / 20);
        let fresh = self.clock.now().since(answers.asked) < age;
        answers.liveness_of(boot).filter(|_| fresh)
    }
}

impl LastAnswer {
    /// The liveness of an incarnation by this answer; `None` if the answer does not cover that
    /// incarnation.
    fn liveness_of(&self, boot: Boot) -> Option<Liveness> {
        match &self.up {
            Some(up) if up.boot == boot => Some(Liveness::Up(up.clone())),
            _ => (boot <= self.dead).then_some(Liveness::Dead),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use distlock_core::{ManualClock, Store};
    use distlock_memory::Memory;

    use super::*;
    use crate::{
        model::{
            policy::Policy,
            settings::{Confirm, Settings, Timers},
        },
        node::Setup,
        state::{admission::Admission, api::NoPeers},
    };

    #[tokio::test]
    async fn answers_about_unused_nodes_are_removed() {
        let memory = Memory::default();
        let clock = ManualClock::new();
        let store = Store::with_clock(memory.lock(), memory.records(), Arc::new(clock.clone()));
        let node = Node::new(Setup {
            store,
            node: NodeId::new("n1").unwrap(),
            advertise: String::new(),
            front: None,
            peers: Arc::new(NoPeers),
            profiles: None,
            admission: Admission::unbounded(),
            settings: Settings {
                policy: Policy::single(),
                confirm: Confirm::default(),
                timers: Timers::default(),
            },
        });
        for pod in 0..100 {
            let pod = NodeId::new(format!("pod-{pod}")).unwrap();
            for _ in 0..2 {
                let liveness = node.liveness_of(&pod, Boot::new(1)).await.unwrap();
                assert_eq!(liveness, Liveness::Dead);
            }
            clock.advance(UNUSED_ANSWER_LIFE / 2);
        }
        let answers = node.last_answers.0.lock().len();
        assert!(answers <= 3, "{answers}");
    }
}
