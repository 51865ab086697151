//! The kick-out flow inside this process: nodes over one memory store, clients, the wires between
//! the nodes, and one planted bug in the first node.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use distlock::backend::sync::Mutex;
use distlock::{RecordKey, Store};
use distlock_checker::{DeviceOutcome, Fact, History, Report, Rules, Seen, What, check};
use distlock_harness::eventually_async;
use distlock_kickout::{
    Builder, Class, DeliverRequest, DeliverResult, Delivery, Device, Event, Generation, KickOut,
    KickRequest, KickResult, Login, LoginOutcome, Message, NodeAddress, NodeId, PeerError, Peers,
    SessionKey, Timers, Uid, UserRecord,
};
use distlock_memory::Memory;
use tokio::{
    sync::{broadcast, watch},
    task::JoinHandle,
};

use crate::{
    saboteur::{Sabotage, Saboteur},
    world::{SOON, Shared, now_us},
};

/// Nodes in this process. The first node is `n1`, and only `n1` can have a planted bug.
pub(crate) struct Flow {
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) rules: Rules,
    /// The layer between the first node and the store.
    pub(crate) store: Saboteur,
    memory: Memory,
    sabotage: Sabotage,
    shared: Arc<Shared>,
    nodes: BTreeMap<&'static str, (KickOut, broadcast::Receiver<Event>)>,
}

/// The device of a client that acknowledges nothing.
pub(crate) const HANGS: &str = "hangs";

/// The wires between the nodes.
#[derive(Debug, Default)]
pub(crate) struct Mesh {
    nodes: Mutex<HashMap<String, KickOut>>,
    /// A node that is unreachable: kicks to it get lost.
    pub(crate) unreachable: Mutex<Option<&'static str>>,
    /// Every kick that was sent.
    kicks: Mutex<Vec<(NodeAddress, KickRequest)>>,
    /// The last session of each account on each node, for the planted bug that kicks by account.
    last: Mutex<HashMap<(NodeId, Uid), (SessionKey, Generation)>>,
    by_account: bool,
}

#[derive(Debug)]
struct Wire(Arc<Mesh>);

/// A device whose login was confirmed or refused.
pub(crate) struct Guest {
    pub(crate) inside: bool,
    stamp: Seen,
    leave: watch::Sender<bool>,
    over: Option<JoinHandle<()>>,
}

impl Flow {
    pub(crate) async fn start(sabotage: Sabotage, lock_ttl: Duration) -> Self {
        Self::start_with(sabotage, lock_ttl, |builder| builder).await
    }

    pub(crate) async fn start_with(
        sabotage: Sabotage,
        lock_ttl: Duration,
        with: impl Fn(Builder) -> Builder,
    ) -> Self {
        let memory = Memory::default();
        let mesh = Arc::new(Mesh {
            by_account: sabotage == Sabotage::KicksByAccount,
            ..Mesh::default()
        });
        let store = Saboteur::new(memory.lock(), memory.records(), sabotage);
        let mut timers = Timers::default();
        timers.lock_ttl = lock_ttl;
        timers.lock_wait = SOON;
        // With a long node lease, no sweep repairs a mistake before the checker has seen it.
        timers.node_lease = Duration::from_secs(60);
        let mut nodes = BTreeMap::new();
        for name in ["n1", "n2"] {
            let store = if name == "n1" {
                store.store()
            } else {
                Store::new(memory.lock(), memory.records())
            };
            let builder = KickOut::builder(store, NodeId::new(name).unwrap())
                .timers(timers.clone())
                .peers(Arc::new(Wire(Arc::clone(&mesh))));
            let kick = with(builder).start().await.unwrap();
            let mut reachable = mesh.nodes.lock();
            reachable.insert(name.to_owned(), kick.clone());
            let events = kick.events();
            nodes.insert(name, (kick, events));
        }
        let rules = Rules::default();
        Self {
            mesh,
            rules,
            store,
            memory,
            sabotage,
            shared: Arc::default(),
            nodes,
        }
    }

    /// Logs a device in. The device stays logged in until its notice comes or the test logs it out.
    pub(crate) async fn client(&self, uid: &Uid, device: &str, node: &'static str) -> Guest {
        let (kick, _) = &self.nodes[node];
        let stamp = Seen {
            at_us: 0,
            client: self.shared.next_number(),
            uid: uid.clone(),
            device: Device::new(device).unwrap(),
            node: NodeId::new(node).unwrap(),
            what: What::LoginSent,
        };
        self.shared.record(&stamp, What::LoginSent);
        let login = Login::new(uid.clone(), stamp.device.clone(), Class::none()).acks(true);
        let outcome = tokio::time::timeout(SOON * 2, kick.login(login)).await;
        let (leave, mut leaves) = watch::channel(false);
        let LoginOutcome::Admitted(session) = outcome.expect("an answer").unwrap() else {
            self.shared.record(&stamp, What::Busy);
            return Guest {
                inside: false,
                stamp,
                leave,
                over: None,
            };
        };
        let (key, r#gen) = (session.key().clone(), session.generation());
        self.shared.record(
            &stamp,
            What::LoginOk {
                session: key.session,
                r#gen,
            },
        );
        let place = (stamp.node.clone(), uid.clone());
        self.mesh.last.lock().insert(place, (key, r#gen));
        let (shared, guest) = (Arc::clone(&self.shared), stamp.clone());
        let confirms = self.sabotage == Sabotage::AcknowledgesForTheClient && node == "n1";
        let over = tokio::spawn(async move {
            let mut unacked = Vec::new();
            loop {
                tokio::select! {
                    notice = session.superseded() => {
                        session.told();
                        shared.record(&stamp, What::Told { code: notice.code });
                        break;
                    }
                    _ = leaves.wait_for(|leaves| *leaves) => break,
                    outgoing = session.next_message() => {
                        let id = outgoing.message().id.clone();
                        shared.record(&stamp, What::Message { id: id.clone() });
                        let hangs = stamp.device.as_str() == HANGS;
                        if !hangs {
                            shared.record(&stamp, What::Acked { id });
                        }
                        if hangs && !confirms {
                            unacked.push(outgoing);
                        } else {
                            outgoing.delivered();
                        }
                    }
                }
            }
            shared.record(&stamp, What::Leaves);
            session.logout().await;
        });
        Guest {
            inside: true,
            stamp: guest,
            leave,
            over: Some(over),
        }
    }

    /// As [`client`](Self::client), for a login that must be confirmed.
    pub(crate) async fn log_in(&self, uid: &Uid, device: &str, node: &'static str) -> Guest {
        let guest = self.client(uid, device, node).await;
        assert!(guest.inside, "{device} was not let in on {node}");
        guest
    }

    /// Sends a message from a guest to all devices of an account, through the node of the guest,
    /// and records the outcome.
    pub(crate) async fn send(&self, sender: &Guest, to: &Uid, id: &str) {
        let (stamp, kick) = (&sender.stamp, &self.nodes[sender.stamp.node.as_str()].0);
        let mut message = Message::new(stamp.uid.clone(), "1");
        message.id = id.to_owned();
        let (id, all) = (message.id.clone(), Some(to.clone()));
        self.shared.record(stamp, What::Sent { id, to: all });
        if self.sabotage == Sabotage::SendsToTheNewest {
            let newest = kick.route(to).await.unwrap();
            message.to_device = newest.map(|newest| newest.device);
        }
        let receipts = kick.deliver(to, message.clone()).await.unwrap();
        let devices: Vec<_> = receipts
            .into_iter()
            .map(|it| {
                let device = it.location.device;
                let outcome = match it.delivery {
                    Delivery::Delivered => "delivered",
                    Delivery::Unacknowledged => {
                        kick.stored(to, &message.for_device(&device));
                        "stored"
                    }
                    other => panic!("{other:?} to {device}"),
                };
                let outcome = outcome.to_owned();
                DeviceOutcome { device, outcome }
            })
            .collect();
        // "stored" is the worse outcome, and comes later in alphabetical order.
        let worst = devices.iter().map(|it| &it.outcome).max().unwrap().clone();
        self.shared.record(
            stamp,
            What::Outcome {
                id: message.id,
                outcome: worst,
                devices: Some(devices),
            },
        );
    }

    /// Asks a node for an account, and records the answer.
    pub(crate) async fn look_up(&self, uid: &Uid, node: &str) {
        let from_us = now_us();
        let record = self.nodes[node].0.view(uid).await.unwrap().record;
        let found = record.map(|record| {
            let session = record.sessions().next().map(|(_, session)| session);
            (record.r#gen, session)
        });
        let (r#gen, session) = found.unwrap_or_default();
        self.shared.facts.lock().push(Fact::Lookup {
            uid: uid.clone(),
            from_us,
            to_us: now_us(),
            r#gen,
            session,
        });
    }

    pub(crate) fn fact(&self, fact: Fact) {
        self.shared.facts.lock().push(fact);
    }

    /// The checker's verdict on everything that happened.
    pub(crate) async fn verdict(mut self, uids: &[&Uid]) -> Report {
        let mut history = History {
            clients: self.shared.seen.lock().clone(),
            facts: self.shared.facts.lock().clone(),
            ..History::default()
        };
        for (_, events) in self.nodes.values_mut() {
            while let Ok(event) = events.try_recv() {
                history.nodes.push(event);
            }
        }
        for uid in uids {
            let key = RecordKey::new(format!("sess/{uid}")).unwrap();
            if let Some(entry) = self.memory.records().get(&key).await.unwrap() {
                let record = UserRecord::parse(uid, &entry.value).unwrap();
                history.records.insert((*uid).clone(), record);
            }
        }
        check(&history, &self.rules)
    }
}

impl Guest {
    /// Logs out without a notice, and waits until the logout is done.
    pub(crate) async fn log_out(self) {
        self.leave.send_replace(true);
        self.wait_for_end().await;
    }

    /// Waits until the device has ended its session.
    pub(crate) async fn wait_for_end(self) {
        if let Some(over) = self.over {
            tokio::time::timeout(SOON, over)
                .await
                .expect("it ends")
                .unwrap();
        }
    }

    /// Waits for the end for some time: a planted bug may have suppressed the notice.
    pub(crate) async fn wait_for_end_within(&self, within: Duration) {
        let over = || async { self.over.as_ref()?.is_finished().then_some(()) };
        let _ = eventually_async("the end", within, over).await;
    }
}

impl Mesh {
    /// Delivers the first kick again.
    pub(crate) fn repeat_the_first_kick(&self) {
        let (to, request) = self.kicks.lock()[0].clone();
        self.receive_kick(&to, request).unwrap();
    }

    fn node(&self, to: &NodeAddress) -> Result<KickOut, PeerError> {
        if *self.unreachable.lock() == Some(to.node.as_str()) {
            return Err(PeerError::Unknown("no answer".into()));
        }
        let nodes = self.nodes.lock();
        Ok(nodes[to.node.as_str()].clone())
    }

    fn receive_kick(
        &self,
        to: &NodeAddress,
        mut request: KickRequest,
    ) -> Result<KickResult, PeerError> {
        if self.by_account {
            // The planted bug: the kick ends the present session of the account, whatever session
            // the kick names.
            let last = self.last.lock();
            if let Some((key, r#gen)) = last.get(&(to.node.clone(), request.uid.clone())) {
                request.key = key.clone();
                request.gen_max = *r#gen;
            }
        }
        self.node(to)?.handle_kick(&request)
    }
}

#[async_trait]
impl Peers for Wire {
    async fn kick(&self, to: &NodeAddress, request: KickRequest) -> Result<KickResult, PeerError> {
        let mut kicks = self.0.kicks.lock();
        kicks.push((to.clone(), request.clone()));
        drop(kicks);
        self.0.receive_kick(to, request)
    }

    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        Ok(self.0.node(to)?.handle_deliver(request).await)
    }

    async fn hand_out(&self, to: &NodeAddress, uids: &[Uid]) -> Result<(), PeerError> {
        self.0.node(to)?.handle_hand_out(uids);
        Ok(())
    }
}
