//! The builder of a flow: it makes the parts, joins them, and starts the background tasks.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize},
};

use distlock_core::{Error, ErrorKind, Result, Store};

use crate::{
    admin::operations::Admin,
    directory::{bans::Bans, store::Directory},
    events::Events,
    flow::handle::{Inner, KickOut},
    login::{
        admission::{Admission, Admissions},
        context::LoginParts,
        gate::Gates,
        profiles::Profiles,
    },
    meters,
    model::{
        ident::NodeId,
        policy::Policy,
        settings::{Confirm, Order, RouteMode, Settings, Timers},
    },
    node::{
        drain::Drain, history::History, keeper::LeaseKeeper, liveness::Nodes, roster::RosterKeeper,
        this_node::ThisNode,
    },
    peer::{
        api::{NoPeers, Peers},
        caller::Caller,
        kick::Kicks,
        route::Router,
    },
    session::{
        end::SessionEnder,
        logout::{Logouts, Retries},
        registry::Registry,
        removal::Removals,
        revoke::Revoker,
    },
    tasks::Tasks,
    upkeep::{
        reconcile::{compare::Comparer, owed::Writer, rounds::Reconciler},
        sweep::Sweeper,
    },
};

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
        let (inner, sweeper) = self.assemble();
        let lease = inner.keeper.join().await.map_err(|error| {
            if error.kind() == ErrorKind::Timeout {
                Error::new(
                    ErrorKind::Timeout,
                    format!("a node named {} is already running", inner.this.id),
                )
                .caused_by(error)
            } else {
                error
            }
        })?;
        meters::show();
        let inner = Arc::new(inner);
        let stop = Arc::new(inner.tasks.stop.clone().drop_guard());
        let tasks = &inner.tasks;
        tasks.spawn(Arc::clone(&inner.keeper).keep_lease(lease));
        tasks.spawn(Arc::clone(&inner.reconciler).run());
        tasks.spawn(sweeper.run());
        tasks.spawn(Arc::clone(&inner.logouts).retry_logouts());
        Ok(KickOut { inner, _stop: stop })
    }

    /// Makes the parts of the flow. A part gets the parts below it, and none above it.
    fn assemble(self) -> (Inner, Sweeper) {
        let locker = self.store.locker();
        let clock = locker.clock();
        let tasks = Arc::new(Tasks::new());
        let settings = Arc::new(Settings {
            policy: self.policy,
            confirm: self.confirm,
            route: self.route,
            order: self.order,
            timers: self.timers,
        });
        let timers = &settings.timers;
        let events = Arc::new(Events::new(self.node.clone(), Arc::clone(&clock)));
        let this = Arc::new(ThisNode::new(self.node, self.advertise, self.front));
        let directory = Arc::new(Directory::new(self.store.records(), Arc::clone(&clock)));
        let history = Arc::new(History::new(
            Arc::clone(&this),
            timers.node_lease,
            locker.clone(),
            Arc::clone(&directory),
        ));
        let liveness = Arc::new(Nodes::new(
            Arc::clone(&this),
            Arc::clone(&history),
            locker.clone(),
            Arc::clone(&clock),
            timers.node_lease,
        ));
        let peers = Arc::new(Caller::new(self.peers, Arc::clone(&clock)));
        let registry = Arc::new(Registry::default());
        let bans = Arc::new(Bans {
            directory: Arc::clone(&directory),
            events: Arc::clone(&events),
            clock: Arc::clone(&clock),
        });
        let ender = Arc::new(SessionEnder {
            events: Arc::clone(&events),
            grace: timers.grace,
        });
        let revoker = Arc::new(Revoker {
            this: Arc::clone(&this),
            registry: Arc::clone(&registry),
            ender: Arc::clone(&ender),
            events: Arc::clone(&events),
        });
        let removals = Arc::new(Removals {
            directory: Arc::clone(&directory),
            revoker: Arc::clone(&revoker),
            events: Arc::clone(&events),
        });
        let kicks = Arc::new(Kicks {
            this: Arc::clone(&this),
            settings: Arc::clone(&settings),
            clock: Arc::clone(&clock),
            directory: Arc::clone(&directory),
            liveness: Arc::clone(&liveness),
            peers: Arc::clone(&peers),
            revoker: Arc::clone(&revoker),
            removals: Arc::clone(&removals),
            events: Arc::clone(&events),
            tasks: Arc::clone(&tasks),
            telling: Mutex::default(),
        });
        let logouts = Arc::new(Logouts {
            this: Arc::clone(&this),
            settings: Arc::clone(&settings),
            clock: Arc::clone(&clock),
            locker: locker.clone(),
            registry: Arc::clone(&registry),
            removals: Arc::clone(&removals),
            events: Arc::clone(&events),
            tasks: Arc::clone(&tasks),
            retries: Retries::default(),
        });
        let roster = Arc::new(RosterKeeper {
            this: Arc::clone(&this),
            settings: Arc::clone(&settings),
            locker: locker.clone(),
            directory: Arc::clone(&directory),
            history: Arc::clone(&history),
            liveness: Arc::clone(&liveness),
        });
        let drain = Arc::new(Drain {
            this: Arc::clone(&this),
            clock: Arc::clone(&clock),
            directory: Arc::clone(&directory),
            registry: Arc::clone(&registry),
            ender: Arc::clone(&ender),
            events: Arc::clone(&events),
            tasks: Arc::clone(&tasks),
            draining: AtomicBool::new(false),
            present: Mutex::default(),
        });
        let keeper = Arc::new(LeaseKeeper {
            this: Arc::clone(&this),
            settings: Arc::clone(&settings),
            clock: Arc::clone(&clock),
            locker: locker.clone(),
            directory: Arc::clone(&directory),
            history: Arc::clone(&history),
            roster: Arc::clone(&roster),
            drain: Arc::clone(&drain),
            registry: Arc::clone(&registry),
            ender: Arc::clone(&ender),
            events: Arc::clone(&events),
            tasks: Arc::clone(&tasks),
        });
        let reconciler = Arc::new(Reconciler {
            this: Arc::clone(&this),
            settings: Arc::clone(&settings),
            clock: Arc::clone(&clock),
            history: Arc::clone(&history),
            comparer: Comparer {
                directory: Arc::clone(&directory),
                registry: Arc::clone(&registry),
                revoker: Arc::clone(&revoker),
                ender: Arc::clone(&ender),
                bans: Arc::clone(&bans),
            },
            writer: Writer {
                settings: Arc::clone(&settings),
                clock: Arc::clone(&clock),
                history: Arc::clone(&history),
                directory: Arc::clone(&directory),
                removals: Arc::clone(&removals),
                events: Arc::clone(&events),
            },
            tasks: Arc::clone(&tasks),
        });
        let pending = Arc::new(AtomicUsize::new(0));
        let sweeper = Sweeper {
            this: Arc::clone(&this),
            settings: Arc::clone(&settings),
            clock: Arc::clone(&clock),
            directory: Arc::clone(&directory),
            liveness: Arc::clone(&liveness),
            roster: Arc::clone(&roster),
            registry: Arc::clone(&registry),
            bans: Arc::clone(&bans),
            removals: Arc::clone(&removals),
            logouts: Arc::clone(&logouts),
            events: Arc::clone(&events),
            tasks: Arc::clone(&tasks),
            pending: Arc::clone(&pending),
        };
        let router = Router {
            this: Arc::clone(&this),
            settings: Arc::clone(&settings),
            clock: Arc::clone(&clock),
            locker: locker.clone(),
            directory: Arc::clone(&directory),
            liveness: Arc::clone(&liveness),
            peers: Arc::clone(&peers),
            registry: Arc::clone(&registry),
            events: Arc::clone(&events),
        };
        let admin = Admin {
            settings: Arc::clone(&settings),
            clock: Arc::clone(&clock),
            directory: Arc::clone(&directory),
            kicks: Arc::clone(&kicks),
            removals: Arc::clone(&removals),
            events: Arc::clone(&events),
        };
        let logins = Arc::new(LoginParts {
            this: Arc::clone(&this),
            settings: Arc::clone(&settings),
            clock: Arc::clone(&clock),
            locker: locker.clone(),
            directory: Arc::clone(&directory),
            history,
            liveness: Arc::clone(&liveness),
            peers,
            registry: Arc::clone(&registry),
            bans: Arc::clone(&bans),
            revoker: Arc::clone(&revoker),
            kicks,
            removals,
            ender: Arc::clone(&ender),
            logouts: Arc::clone(&logouts),
            drain: Arc::clone(&drain),
            events: Arc::clone(&events),
            tasks: Arc::clone(&tasks),
            gates: Gates::default(),
            admissions: Admissions::new(self.admission, Arc::clone(&clock)),
            profiles: self.profiles,
        });
        let inner = Inner {
            this,
            settings,
            clock,
            locker,
            directory,
            liveness,
            registry,
            bans,
            ender,
            revoker,
            logouts,
            router,
            logins,
            admin,
            roster,
            drain,
            keeper,
            reconciler,
            events,
            tasks,
            pending,
        };
        (inner, sweeper)
    }
}
