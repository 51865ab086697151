//! A takeover survives one failure in each step. Each step between the grant of a login and its
//! answer fails once: the request is lost, the answer is lost, or the request is late. In all cases
//! the new session is the only live one, and the older session has got its notice.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock::backend::sync::Mutex;
use distlock::{
    DistLock, Error, ErrorKind, Expect, RecordKey, Records, Result, Store, Written,
    backend::{Lease, ReleaseOutcome},
};
use distlock_conformance::{LockLayer, RecordsLayer};
use distlock_harness::eventually_async;
use distlock_kickout::{
    Class, Code, DeliverRequest, DeliverResult, Device, KickOut, KickRequest, KickResult, Login,
    LoginOutcome, NodeAddress, PeerError, Peers, Session, Uid,
};

use crate::world::{SOON, World, pause};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The write that admits the new session.
    Write,
    /// The release of the account's lock.
    Release,
    /// The call to the older session's node.
    Kick,
    /// The write that records the end of the older session.
    Confirmation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The request is lost.
    Cut,
    /// The request is done, and its answer is lost.
    Reset,
    /// The request is delayed.
    Delayed,
}

const STEPS: [Step; 4] = [Step::Write, Step::Release, Step::Kick, Step::Confirmation];
const FAULTS: [Fault; 3] = [Fault::Cut, Fault::Reset, Fault::Delayed];
const DELAY: Duration = Duration::from_millis(150);

/// The next fault, and the number of writes of the account's record since the fault was set.
#[derive(Debug, Default)]
struct Once(Mutex<(Option<(Step, Fault)>, u32)>);

impl Once {
    fn arm(&self, step: Step, fault: Fault) {
        *self.0.lock() = (Some((step, fault)), 0);
    }

    fn has_happened(&self) -> bool {
        self.0.lock().0.is_none()
    }

    fn take(&self, step: Step) -> Option<Fault> {
        let next = &mut self.0.lock().0;
        next.take_if(|(at, _)| *at == step).map(|(_, fault)| fault)
    }

    /// The step of the next write: the first write of a takeover admits, and the second write
    /// confirms.
    fn write(&self) -> Step {
        let writes = &mut self.0.lock().1;
        *writes += 1;
        if *writes == 1 {
            Step::Write
        } else {
            Step::Confirmation
        }
    }

    async fn run<T, E>(
        &self,
        step: Step,
        cut: E,
        reset: E,
        operation: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        match self.take(step) {
            None => operation.await,
            Some(Fault::Cut) => Err(cut),
            Some(Fault::Reset) => {
                operation.await?;
                Err(reset)
            }
            Some(Fault::Delayed) => {
                pause(DELAY).await;
                operation.await
            }
        }
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was refused")
}

fn reset() -> Error {
    Error::new(ErrorKind::OutcomeUnknown, "the connection was reset")
}

/// The store as the node of the new session sees it.
#[derive(Clone, Debug)]
struct Link {
    lock: Arc<dyn DistLock>,
    records: Arc<dyn Records>,
    once: Arc<Once>,
}

#[async_trait]
impl RecordsLayer for Link {
    fn below(&self) -> &Arc<dyn Records> {
        &self.records
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let put = self.records.put(key, value, expect);
        if !key.as_str().starts_with("sess/") {
            return put.await;
        }
        let step = self.once.write();
        self.once.run(step, cut(), reset(), put).await
    }
}

#[async_trait]
impl LockLayer for Link {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock)
    }

    async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            lock: self.lock.reopen().await?,
            ..self.clone()
        })
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let release = self.lock.release(lease);
        self.once.run(Step::Release, cut(), reset(), release).await
    }

    async fn close(&self) {
        self.lock.close().await;
    }
}

/// The wires between the nodes.
#[derive(Debug)]
struct Wire {
    nodes: Arc<Mutex<HashMap<String, KickOut>>>,
    once: Arc<Once>,
}

impl Wire {
    fn node(&self, to: &NodeAddress) -> KickOut {
        self.nodes.lock()[to.node.as_str()].clone()
    }
}

#[async_trait]
impl Peers for Wire {
    async fn kick(
        &self,
        to: &NodeAddress,
        request: KickRequest,
    ) -> std::result::Result<KickResult, PeerError> {
        let kick = async { self.node(to).handle_kick(&request) };
        let cut = PeerError::not_sent("the connection was refused");
        let reset = PeerError::unknown("the connection was reset");
        self.once.run(Step::Kick, cut, reset, kick).await
    }

    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> std::result::Result<DeliverResult, PeerError> {
        Ok(self.node(to).handle_deliver(request).await)
    }

    async fn hand_out(&self, to: &NodeAddress, uids: &[Uid]) -> std::result::Result<(), PeerError> {
        // The store may have nodes of other tests, which have no wire here.
        let node = self.nodes.lock().get(to.node.as_str()).cloned();
        node.ok_or_else(|| PeerError::not_sent("there is no wire to it"))?
            .handle_hand_out(uids);
        Ok(())
    }
}

pub(crate) async fn each_step_once(mut world: World) {
    let once = Arc::new(Once::default());
    let nodes = Arc::new(Mutex::new(HashMap::new()));
    let mut stores = Vec::new();
    let mut started = Vec::new();
    for name in ["n1", "n2"] {
        let opened = world.open().await;
        let link = Link {
            lock: opened.backend(),
            records: opened.records(),
            once: Arc::clone(&once),
        };
        // The node of the older session has no faults.
        let store = if name == "n1" {
            opened.clone()
        } else {
            Store::new(link.clone().into_lock(), link.into_records())
        };
        let wire = Wire {
            nodes: Arc::clone(&nodes),
            once: Arc::clone(&once),
        };
        let node = world.node_id(name);
        let builder = KickOut::builder(store, node.clone()).peers(Arc::new(wire));
        let kick = builder.start().await.unwrap();
        nodes.lock().insert(node.to_string(), kick.clone());
        started.push(kick);
        stores.push(opened);
    }
    for step in STEPS {
        for fault in FAULTS {
            let uid = world.uid(&format!("{step:?}-{fault:?}").to_lowercase());
            let cell = check_takeover(&started, &uid, &once, step, fault);
            let within = tokio::time::timeout(SOON, cell).await;
            within.unwrap_or_else(|_| panic!("{step:?} {fault:?} does not end"));
        }
    }
    for kick in started {
        kick.shutdown().await;
    }
    for store in stores {
        store.close().await;
    }
}

/// Plays one combination of step and fault: an account that is logged in on the first node logs in
/// on the second node, and the fault happens meanwhile.
async fn check_takeover(nodes: &[KickOut], uid: &Uid, once: &Once, step: Step, fault: Fault) {
    let cell = format!("{step:?} {fault:?}");
    let old = log_in(&nodes[0], uid, "old").await;
    once.arm(step, fault);
    let new = log_in(&nodes[1], uid, "new").await;
    eventually_async(&format!("{cell} to happen"), SOON, || async {
        once.has_happened().then_some(())
    })
    .await
    .unwrap();
    let notice = old.superseded().await;
    assert_eq!(notice.code, Code::Superseded, "{cell}");
    assert_eq!(notice.by_device.as_ref(), Some(new.device()), "{cell}");
    old.logout().await;
    // The record may be repaired by later attempts of the node.
    eventually_async(&format!("{cell} to settle"), SOON, || async {
        let record = nodes[1].view(uid).await.unwrap().record.unwrap();
        record.revocations.is_empty().then_some(())
    })
    .await
    .unwrap();
    assert!(new.is_active(), "{cell}: nobody is in");
    for node in nodes {
        let there = node.route(uid).await.unwrap();
        assert_eq!(there.map(|it| it.key).as_ref(), Some(new.key()), "{cell}");
    }
    new.logout().await;
}

async fn log_in(node: &KickOut, uid: &Uid, device: &str) -> Session {
    let login = Login::new(uid.clone(), Device::new(device).unwrap(), Class::none());
    match node.login(login).await.unwrap() {
        LoginOutcome::Admitted(session) => session,
        other => panic!("{device} of {uid} is not let in: {other}"),
    }
}
