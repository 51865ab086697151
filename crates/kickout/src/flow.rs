//! The flow's handle, its parts, its start and its end.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, Error, ErrorKind, LockInfo, Locker, Result, Store, unix_time};
use futures_util::future::join_all;
use tokio::{runtime::Handle, sync::broadcast};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    directory::store::Directory,
    events::Events,
    login::{
        admission::{Admission, Admissions},
        gate::Gates,
        profiles::Profiles,
    },
    meters,
    model::{
        event::{Event, Transition},
        ident::{Boot, NodeId, Uid},
        node::NodeAddress,
        notice::{Code, Offline, Retry},
        policy::Policy,
        settings::{Confirm, Order, RouteMode, Timers},
    },
    node::{
        drain::Drain,
        history::History,
        keeper::Own,
        liveness::{Nodes, Standing},
    },
    peer::{
        api::{NoPeers, Peers},
        caller::Caller,
    },
    session::{
        live::{Live, Phase},
        logout::Retries,
        registry::Registry,
    },
    wait::{jitter, within},
};

/// Over how long the clients of a node that ends are spread when they come back.
const RETURN: Duration = Duration::from_secs(1);

/// The kick-out flow of one node. Cheap to clone.
///
/// When the last clone is gone the node tells its sessions to go and gives its lease back, which makes them void.
/// [`shutdown`](Self::shutdown) is the orderly way: it waits for them.
#[derive(Clone, Debug)]
pub struct KickOut {
    pub(crate) inner: Arc<Inner>,
    _stop: Arc<DropGuard>,
}

/// Prepares a [`KickOut`].
#[derive(Debug)]
#[must_use]
pub struct Builder {
    store: Store,
    node: NodeId,
    advertise: String,
    front: Option<String>,
    policy: Policy,
    admission: Admission,
    confirm: Confirm,
    route: RouteMode,
    order: Order,
    timers: Timers,
    peers: Arc<dyn Peers>,
    profiles: Option<Arc<dyn Profiles>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) node: NodeId,
    pub(crate) advertise: String,
    pub(crate) front: Option<String>,
    pub(crate) policy: Policy,
    pub(crate) confirm: Confirm,
    pub(crate) route: RouteMode,
    pub(crate) order: Order,
    pub(crate) profiles: Option<Arc<dyn Profiles>>,
    pub(crate) timers: Timers,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) locker: Locker,
    pub(crate) directory: Arc<Directory>,
    pub(crate) nodes: Nodes,
    pub(crate) caller: Caller,
    pub(crate) gates: Gates,
    pub(crate) registry: Registry,
    /// Accounts of which an older session could not be told yet.
    pub(crate) telling: Mutex<HashSet<Uid>>,
    /// Sessions not known to be gone, as the last whole pass of the sweeper counted them.
    pub(crate) pending: AtomicUsize,
    pub(crate) history: Arc<History>,
    pub(crate) events: Events,
    pub(crate) own: Arc<Own>,
    pub(crate) retries: Retries,
    pub(crate) admissions: Admissions,
    pub(crate) draining: AtomicBool,
    pub(crate) drain: Drain,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    runtime: Handle,
}

impl KickOut {
    /// A flow for the node `node` over `store`.
    pub fn builder(store: Store, node: NodeId) -> Builder {
        Builder {
            store,
            advertise: node.to_string(),
            front: None,
            node,
            policy: Policy::single(),
            admission: Admission::unbounded(),
            confirm: Confirm::default(),
            route: RouteMode::default(),
            order: Order::default(),
            timers: Timers::default(),
            peers: Arc::new(NoPeers),
            profiles: None,
        }
    }

    /// This node.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.inner.node
    }

    /// The present incarnation of this node; `None` while it has no valid lease and serves nobody.
    #[must_use]
    pub fn boot(&self) -> Option<Boot> {
        self.inner.own.now().map(|own| own.boot)
    }

    /// Time until this node must stop serving unless its lease is renewed.
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        self.inner
            .own
            .now()
            .map_or(Duration::ZERO, |own| own.lease.remaining())
    }

    /// Sessions of this node that have not ended.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.inner.registry.len()
    }

    /// Accounts whose login is under way on this node.
    #[must_use]
    pub fn logins_under_way(&self) -> usize {
        self.inner.gates.len()
    }

    /// Sessions that must go and are not known to be gone, on all nodes, as this node's sweeper
    /// counted them when it last looked at everything.
    #[must_use]
    pub fn revocations_pending(&self) -> usize {
        self.inner.pending.load(Ordering::Relaxed)
    }

    /// The locks of the accounts whose login is under way on this node, so many at most.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn locks_under_way(&self, most: usize) -> Result<Vec<LockInfo>> {
        let uids = self.inner.gates.some(most);
        let looking = uids
            .iter()
            .map(async |uid| self.inner.locker.inspect(uid.lock()?).await);
        join_all(looking).await.into_iter().collect()
    }

    /// The transitions: for the first caller those since the start, for later ones those from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner.events.subscribe()
    }

    /// Takes no further login, tells every session to go elsewhere, gives the clients the grace to leave, and gives the
    /// node's lease back.
    ///
    /// # Cancel safety
    /// Safe: calling it again goes on where it stopped.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        inner.draining.store(true, Ordering::Release);
        let until = inner.clock.now() + inner.timers.grace + Duration::from_millis(250);
        loop {
            // Again and again: a login that was under way may have been let in since.
            for live in inner.registry.all() {
                if live.phase() <= Phase::Active {
                    inner.end(&live, Offline::new(Code::Draining), true, |_| {});
                }
            }
            if inner.registry.len() == 0 || inner.clock.now() >= until {
                break;
            }
            inner.clock.sleep(Duration::from_millis(20)).await;
        }
        inner.retire_all().await;
        inner.stop.cancel();
        inner.tasks.close();
        inner.tasks.wait().await;
        // What a logout still owes is found by whoever notices that this incarnation is dead.
        if !inner.retries.any() {
            inner.leave_the_roster().await;
        }
    }
}

impl Builder {
    /// The address other nodes are told to reach this one; the node's name unless set.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = address.into();
        self
    }

    /// Where this node's clients connect: shown beside its lease, and used for nothing else.
    pub fn front(mut self, address: impl Into<String>) -> Self {
        self.front = Some(address.into());
        self
    }

    /// How many sessions an account may have.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How many logins are worked on before clients are told to come back later; without bounds unless set.
    pub const fn admission(mut self, admission: Admission) -> Self {
        self.admission = admission;
        self
    }

    /// When a login is answered although an older session could not be told yet.
    pub const fn confirm(mut self, confirm: Confirm) -> Self {
        self.confirm = confirm;
        self
    }

    /// How a message finds its session.
    pub const fn route(mut self, route: RouteMode) -> Self {
        self.route = route;
        self
    }

    /// When a login gives the account's lock back: for comparison.
    pub const fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// What is asked about an account before it may log in; nothing unless set.
    pub fn profiles(mut self, profiles: Arc<dyn Profiles>) -> Self {
        self.profiles = Some(profiles);
        self
    }

    /// The times of the flow.
    pub fn timers(mut self, timers: Timers) -> Self {
        self.timers = timers;
        self
    }

    /// How to reach other nodes; none can be reached unless set.
    pub fn peers(mut self, peers: Arc<dyn Peers>) -> Self {
        self.peers = peers;
        self
    }

    /// Takes the node's lease and starts. When a predecessor of the same name died without giving its lease back, this waits
    /// until that lease ends.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when another node of this name is running; [`ErrorKind::InvalidArgument`] for a timer of zero or a policy for no session;
    /// failures of the store.
    ///
    /// # Cancel safety
    /// Safe: a lease that was taken is given back.
    pub async fn start(self) -> Result<KickOut> {
        self.timers.check()?;
        self.policy.check()?;
        let locker = self.store.locker();
        let clock = locker.clock();
        let directory = Directory::new(self.store.records(), Arc::clone(&clock));
        let (directory, own) = (Arc::new(directory), Arc::new(Own::new()));
        let history = Arc::new(History::new(
            self.node.clone(),
            Arc::clone(&own),
            self.timers.node_lease,
            locker.clone(),
            Arc::clone(&directory),
        ));
        let inner = Arc::new(Inner {
            directory,
            nodes: Nodes::new(
                Arc::clone(&history),
                locker.clone(),
                Arc::clone(&clock),
                self.timers.node_lease,
            ),
            caller: Caller::new(self.peers, Arc::clone(&clock)),
            gates: Gates::default(),
            registry: Registry::default(),
            telling: Mutex::default(),
            pending: AtomicUsize::new(0),
            history,
            events: Events::new(self.node.clone(), Arc::clone(&clock)),
            own,
            retries: Retries::default(),
            admissions: Admissions::new(self.admission, Arc::clone(&clock)),
            draining: AtomicBool::new(false),
            drain: Drain::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            runtime: Handle::current(),
            node: self.node,
            advertise: self.advertise,
            front: self.front,
            policy: self.policy,
            confirm: self.confirm,
            route: self.route,
            order: self.order,
            profiles: self.profiles,
            timers: self.timers,
            clock,
            locker,
        });
        let lease = inner.join().await.map_err(|error| {
            if error.kind() == ErrorKind::Timeout {
                Error::new(
                    ErrorKind::Timeout,
                    format!("a node named {} is already running", inner.node),
                )
                .caused_by(error)
            } else {
                error
            }
        })?;
        meters::show();
        let stop = Arc::new(inner.stop.clone().drop_guard());
        inner.spawn(Arc::clone(&inner).keep_lease(lease));
        inner.spawn(Arc::clone(&inner).pull());
        inner.spawn(Arc::clone(&inner).sweep());
        inner.spawn(Arc::clone(&inner).retry_logouts());
        Ok(KickOut { inner, _stop: stop })
    }
}

impl Inner {
    /// Runs a task of the flow, also when called outside the runtime (a session may be dropped anywhere).
    pub(crate) fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Tells a session to go. `listed` says whether the directory may still name it. Answers whether it had not been told.
    pub(crate) fn end(
        &self,
        live: &Live,
        notice: Offline,
        listed: bool,
        fill: impl FnOnce(&mut Event),
    ) -> bool {
        let mut notice = notice.grace(self.timers.grace);
        if notice.retry == Retry::Now {
            // Many are told at once; they do not come back at once.
            notice = notice.retry_after(jitter(RETURN));
        }
        let (code, by_device, by_gen) = (notice.code, notice.by_device.clone(), notice.r#gen);
        if !live.supersede(notice, listed) {
            return false;
        }
        self.events.emit(Transition::Superseded, |event| {
            event.of(live);
            event.code = Some(code);
            event.by_device = by_device;
            event.by_gen = by_gen;
            fill(event);
        });
        true
    }

    /// How the incarnation stands that a record names. The record must have been read before. Errors mean "not known".
    pub(crate) async fn standing(&self, node: &NodeId, boot: Boot) -> Result<Standing> {
        if *node == self.node
            && let Some(own) = self.own.now()
            && boot <= own.boot
        {
            return Ok(if boot == own.boot {
                Standing::Up(NodeAddress {
                    node: node.clone(),
                    boot,
                    addr: self.advertise.clone(),
                })
            } else {
                Standing::Dead
            });
        }
        self.nodes.standing(node, boot).await
    }

    /// The dead ones among these incarnations. What cannot be asked, or does not answer within
    /// `limit`, counts as alive.
    pub(crate) async fn dead_among(
        &self,
        incarnations: Vec<(NodeId, Boot)>,
        limit: Duration,
    ) -> BTreeSet<(NodeId, Boot)> {
        let asking = incarnations.into_iter().map(async |(node, boot)| {
            let standing = within(&*self.clock, limit, self.standing(&node, boot)).await;
            matches!(standing, Some(Ok(Standing::Dead))).then_some((node, boot))
        });
        join_all(asking).await.into_iter().flatten().collect()
    }

    pub(crate) fn wall_millis(&self) -> u64 {
        u64::try_from(unix_time(&*self.clock).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Event {
    pub(crate) fn of(&mut self, live: &Live) {
        self.uid = Some(live.uid.clone());
        self.about(&live.key);
        self.slot = Some(live.slot.clone());
        self.r#gen = Some(live.generation());
        self.device = Some(live.device.clone());
        self.class = Some(live.class.clone());
    }
}
