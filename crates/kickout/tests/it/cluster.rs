//! Nodes in one process over one memory store, with breakable connections between them.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{RecordKey, Store, SystemClock, sync::Mutex};
use distlock_kickout::{
    Builder, Class, DeliverRequest, DeliverResult, Device, Event, KickOut, KickRequest, KickResult,
    Login, LoginOutcome, NodeAddress, NodeId, Offline, PeerError, Peers, Session, SessionKey,
    Timers, Transition, Uid, UserRecord,
};
use distlock_memory::Memory;
use tokio::sync::broadcast;

use crate::link::{Faults, Link};

/// Longest wait of a test. A run without a bug takes far less.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Cluster {
    pub(crate) memory: Memory,
    pub(crate) mesh: Arc<Mesh>,
}

pub(crate) struct Node {
    pub(crate) kick: KickOut,
    pub(crate) faults: Arc<Faults>,
    pub(crate) events: broadcast::Receiver<Event>,
    name: String,
    mesh: Arc<Mesh>,
}

/// The connections between the nodes.
#[derive(Debug, Default)]
pub(crate) struct Mesh {
    nodes: Mutex<HashMap<String, KickOut>>,
    silent: Mutex<HashSet<String>>,
    /// Nodes whose answers to kicks are late.
    late: Mutex<HashSet<String>>,
    kicks: Mutex<Vec<KickRequest>>,
}

/// Calls to the other nodes of a [`Mesh`].
#[derive(Debug)]
struct MeshPeers(Arc<Mesh>);

impl Cluster {
    pub(crate) fn new() -> Self {
        Self {
            memory: Memory::default(),
            mesh: Arc::default(),
        }
    }

    /// Starts a node with the default settings of these tests.
    pub(crate) async fn start_node(&self, name: &str) -> Node {
        self.start_node_with(name, |builder| builder).await
    }

    /// Starts a node after `with` has changed its builder.
    pub(crate) async fn start_node_with(
        &self,
        name: &str,
        with: impl FnOnce(Builder) -> Builder,
    ) -> Node {
        let link = Link::new(self.memory.lock(), self.memory.records());
        let faults = link.faults();
        let mut node = self
            .start_node_on(name, link.store(SystemClock), with)
            .await;
        node.faults = faults;
        node
    }

    /// Starts a node on a store of the test, without faults, after `with` has changed its builder.
    pub(crate) async fn start_node_on(
        &self,
        name: &str,
        store: Store,
        with: impl FnOnce(Builder) -> Builder,
    ) -> Node {
        let builder = KickOut::builder(store, NodeId::new(name).unwrap())
            .timers(timers())
            .peers(Arc::new(MeshPeers(Arc::clone(&self.mesh))));
        let kick = with(builder).start().await.unwrap();
        let mut nodes = self.mesh.nodes.lock();
        nodes.insert(name.to_owned(), kick.clone());
        Node {
            events: kick.events(),
            kick,
            faults: Arc::default(),
            name: name.to_owned(),
            mesh: Arc::clone(&self.mesh),
        }
    }

    /// The account's record in the store.
    pub(crate) async fn record(&self, uid: &Uid) -> Option<UserRecord> {
        let key = RecordKey::new(format!("sess/{uid}")).unwrap();
        let entry = self.memory.records().get(&key).await.unwrap()?;
        Some(UserRecord::parse(uid, &entry.value).unwrap())
    }

    /// Keys in the store under a prefix.
    pub(crate) async fn keys(&self, prefix: &str) -> Vec<String> {
        let page = self.memory.records().scan(prefix, None, 1000).await;
        let page = page.unwrap().into_iter();
        page.map(|(key, _)| key.as_str().to_owned()).collect()
    }
}

impl Mesh {
    /// Makes calls to the node fail until [`restore`](Self::restore).
    pub(crate) fn silence(&self, name: &str) {
        self.silent.lock().insert(name.to_owned());
    }

    /// Lets calls to the node succeed again.
    pub(crate) fn restore(&self, name: &str) {
        self.silent.lock().remove(name);
        self.late.lock().remove(name);
    }

    /// Holds back the answers to kicks of the node until [`restore`](Self::restore).
    pub(crate) fn delay_answers(&self, name: &str) {
        self.late.lock().insert(name.to_owned());
    }

    /// Every kick that was sent, with or without an answer.
    pub(crate) fn kicks(&self) -> Vec<KickRequest> {
        self.kicks.lock().clone()
    }

    /// The node at an address, or the failure of a call to it.
    fn node_at(&self, to: &NodeAddress) -> Result<KickOut, PeerError> {
        if self.silent.lock().contains(to.node.as_str()) {
            return Err(PeerError::Unknown("no answer".into()));
        }
        let nodes = self.nodes.lock();
        nodes
            .get(to.node.as_str())
            .cloned()
            .ok_or_else(|| PeerError::NotSent("no such node".into()))
    }
}

#[async_trait]
impl Peers for MeshPeers {
    async fn kick(&self, to: &NodeAddress, request: KickRequest) -> Result<KickResult, PeerError> {
        self.0.kicks.lock().push(request.clone());
        let answer = self.0.node_at(to)?.handle_kick(&request);
        let is_late = || self.0.late.lock().contains(to.node.as_str());
        while is_late() {
            pause(Duration::from_millis(5)).await;
        }
        answer
    }

    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        Ok(self.0.node_at(to)?.handle_deliver(request).await)
    }

    async fn idle(
        &self,
        to: &NodeAddress,
        uid: &Uid,
    ) -> Result<Vec<(SessionKey, Duration)>, PeerError> {
        Ok(self.0.node_at(to)?.handle_idle(uid))
    }

    async fn hand_out(&self, to: &NodeAddress, uids: &[Uid]) -> Result<(), PeerError> {
        self.0.node_at(to)?.handle_hand_out(uids);
        Ok(())
    }
}

impl Node {
    pub(crate) async fn login(&self, uid: &Uid, device: &str) -> LoginOutcome {
        self.kick.login(login(uid, device)).await.unwrap()
    }

    /// Logs a device in. Panics unless the device is admitted.
    pub(crate) async fn admit(&self, uid: &Uid, device: &str) -> Session {
        match self.login(uid, device).await {
            LoginOutcome::Admitted(session) => session,
            other => panic!("{device} on {} was not admitted: {other:?}", self.name),
        }
    }

    /// Ends the node like a killed process: the node releases nothing and sends no notice, and no
    /// peer reaches it afterwards.
    pub(crate) fn crash(self) {
        self.faults.cut();
        self.mesh.silence(&self.name);
        self.mesh.nodes.lock().remove(&self.name);
    }

    /// The events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        let mut taken = Vec::new();
        loop {
            match self.events.try_recv() {
                Ok(event) => taken.push(event),
                Err(broadcast::error::TryRecvError::Lagged(missed)) => {
                    panic!("{missed} events were missed")
                }
                Err(_) => return taken,
            }
        }
    }

    /// Waits for the next event of this transition.
    pub(crate) async fn next_event(&mut self, transition: Transition) -> Event {
        let wanted = async {
            loop {
                let event = self.events.recv().await.unwrap();
                if event.event == transition {
                    return event;
                }
            }
        };
        in_time(&format!("{transition:?}"), wanted).await
    }
}

/// Timers for tests. The lease is long, because a busy machine must not fence a node by accident.
/// The other times are short.
pub(crate) fn timers() -> Timers {
    let mut timers = Timers::default();
    timers.lock_wait = Duration::from_secs(10);
    timers.kick_budget = Duration::from_secs(1);
    timers.peer_deadline = Duration::from_millis(300);
    timers.node_lease = Duration::from_secs(3);
    timers.grace = Duration::from_millis(200);
    timers.sweep = Duration::from_millis(200);
    timers
}

pub(crate) fn uid(name: &str) -> Uid {
    Uid::new(name).unwrap()
}

pub(crate) fn device(name: &str) -> Device {
    Device::new(name).unwrap()
}

pub(crate) fn login(uid: &Uid, name: &str) -> Login {
    Login::new(uid.clone(), device(name), Class::none())
}

/// Waits for the notice of a session.
pub(crate) async fn notice_of(session: &Session) -> Offline {
    in_time("the notice", session.superseded()).await
}

/// Waits for a future within [`TEST_TIMEOUT`]. Panics with `what` after that time.
pub(crate) async fn in_time<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(TEST_TIMEOUT, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not come within {TEST_TIMEOUT:?}"))
}

/// Waits until a condition holds. Panics with `what` after [`TEST_TIMEOUT`].
pub(crate) async fn eventually<F, C>(what: &str, mut condition: C)
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    in_time(what, async {
        while !condition().await {
            pause(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "the store runs on the machine's clock, so the test waits on it"
)]
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
