//! Makes the parts of a flow and joins them.
//!
//! A part gets only parts that were made before it, so the parts form no circle.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize},
};

use distlock_core::{Clock, Locker, Store};

use crate::{
    admin::operations::Admin,
    directory::{access::Directory, bans::Bans},
    events::Events,
    flow::handle::Parts,
    login::{
        admission::{Admission, Admissions},
        context::LoginParts,
        profiles::Profiles,
        queue::LoginQueues,
    },
    model::{ident::NodeId, settings::Settings},
    node::{
        drain::Drain, history::History, lease_keeper::LeaseKeeper, liveness::LivenessCache,
        roster::RosterKeeper, this_node::ThisNode,
    },
    peer::{api::Peers, client::PeerClient, kick::Kicks, route::Router},
    session::{
        end::SessionEnder,
        logout::{Logouts, Retries},
        registry::Registry,
        removal::Removals,
        revoke::Revoker,
    },
    tasks::Tasks,
    upkeep::{
        hand_out::HandOuts,
        reconcile::{compare::Comparer, rounds::Reconciler, writes::Writer},
        sweep::Sweeper,
    },
};

/// The embedder's choices. All parts are made from these choices.
pub(super) struct Setup {
    pub(super) store: Store,
    pub(super) node: NodeId,
    pub(super) advertise: String,
    pub(super) front: Option<String>,
    pub(super) peers: Arc<dyn Peers>,
    pub(super) settings: Settings,
}

/// The parts at the bottom: the store, this node, the other nodes.
pub(super) struct Base {
    this: Arc<ThisNode>,
    settings: Arc<Settings>,
    clock: Arc<dyn Clock>,
    locker: Locker,
    directory: Arc<Directory>,
    history: Arc<History>,
    liveness: Arc<LivenessCache>,
    peers: Arc<PeerClient>,
    registry: Arc<Registry>,
    events: Arc<Events>,
    tasks: Arc<Tasks>,
}

/// The parts that end sessions.
struct SessionParts {
    ender: Arc<SessionEnder>,
    revoker: Arc<Revoker>,
    removals: Arc<Removals>,
    kicks: Arc<Kicks>,
    logouts: Arc<Logouts>,
    bans: Arc<Bans>,
}

/// The parts of this node's membership: its roster entry, its drain and its lease.
struct NodeParts {
    roster: Arc<RosterKeeper>,
    drain: Arc<Drain>,
    keeper: Arc<LeaseKeeper>,
}

impl Base {
    pub(super) fn new(setup: Setup) -> Self {
        let locker = setup.store.locker();
        let clock = locker.clock();
        let settings = Arc::new(setup.settings);
        let node_lease = settings.timers.node_lease;
        let events = Arc::new(Events::new(setup.node.clone(), Arc::clone(&clock)));
        let this = Arc::new(ThisNode::new(setup.node, setup.advertise, setup.front));
        let directory = Arc::new(Directory::new(setup.store.records(), Arc::clone(&clock)));
        let history = Arc::new(History::new(
            Arc::clone(&this),
            node_lease,
            locker.clone(),
            Arc::clone(&directory),
        ));
        let liveness = Arc::new(LivenessCache::new(
            Arc::clone(&this),
            Arc::clone(&history),
            locker.clone(),
            Arc::clone(&clock),
            node_lease,
        ));
        Self {
            this,
            settings,
            locker,
            directory,
            history,
            liveness,
            peers: Arc::new(PeerClient::new(setup.peers, Arc::clone(&clock))),
            clock,
            registry: Arc::new(Registry::default()),
            events,
            tasks: Arc::new(Tasks::new()),
        }
    }
}

impl SessionParts {
    fn new(base: &Base) -> Self {
        let bans = Arc::new(Bans {
            directory: Arc::clone(&base.directory),
            events: Arc::clone(&base.events),
            clock: Arc::clone(&base.clock),
        });
        let ender = Arc::new(SessionEnder {
            settings: Arc::clone(&base.settings),
            clock: Arc::clone(&base.clock),
            events: Arc::clone(&base.events),
        });
        let revoker = Arc::new(Revoker {
            this: Arc::clone(&base.this),
            registry: Arc::clone(&base.registry),
            ender: Arc::clone(&ender),
            clock: Arc::clone(&base.clock),
            events: Arc::clone(&base.events),
        });
        let removals = Arc::new(Removals {
            directory: Arc::clone(&base.directory),
            revoker: Arc::clone(&revoker),
            events: Arc::clone(&base.events),
        });
        let kicks = Arc::new(Kicks {
            this: Arc::clone(&base.this),
            settings: Arc::clone(&base.settings),
            clock: Arc::clone(&base.clock),
            directory: Arc::clone(&base.directory),
            liveness: Arc::clone(&base.liveness),
            peers: Arc::clone(&base.peers),
            revoker: Arc::clone(&revoker),
            removals: Arc::clone(&removals),
            events: Arc::clone(&base.events),
            tasks: Arc::clone(&base.tasks),
            retrying: Mutex::default(),
        });
        let logouts = Arc::new(Logouts {
            this: Arc::clone(&base.this),
            settings: Arc::clone(&base.settings),
            clock: Arc::clone(&base.clock),
            locker: base.locker.clone(),
            registry: Arc::clone(&base.registry),
            removals: Arc::clone(&removals),
            events: Arc::clone(&base.events),
            tasks: Arc::clone(&base.tasks),
            retries: Retries::default(),
        });
        Self {
            ender,
            revoker,
            removals,
            kicks,
            logouts,
            bans,
        }
    }
}

impl NodeParts {
    fn new(base: &Base, sessions: &SessionParts) -> Self {
        let roster = Arc::new(RosterKeeper {
            this: Arc::clone(&base.this),
            settings: Arc::clone(&base.settings),
            locker: base.locker.clone(),
            directory: Arc::clone(&base.directory),
            history: Arc::clone(&base.history),
            liveness: Arc::clone(&base.liveness),
        });
        let drain = Arc::new(Drain {
            this: Arc::clone(&base.this),
            clock: Arc::clone(&base.clock),
            directory: Arc::clone(&base.directory),
            registry: Arc::clone(&base.registry),
            ender: Arc::clone(&sessions.ender),
            events: Arc::clone(&base.events),
            tasks: Arc::clone(&base.tasks),
            draining: AtomicBool::new(false),
            running: Mutex::default(),
        });
        let keeper = Arc::new(LeaseKeeper {
            this: Arc::clone(&base.this),
            settings: Arc::clone(&base.settings),
            clock: Arc::clone(&base.clock),
            locker: base.locker.clone(),
            directory: Arc::clone(&base.directory),
            history: Arc::clone(&base.history),
            roster: Arc::clone(&roster),
            drain: Arc::clone(&drain),
            registry: Arc::clone(&base.registry),
            ender: Arc::clone(&sessions.ender),
            events: Arc::clone(&base.events),
            tasks: Arc::clone(&base.tasks),
        });
        Self {
            roster,
            drain,
            keeper,
        }
    }
}

fn make_reconciler(base: &Base, sessions: &SessionParts) -> Reconciler {
    Reconciler {
        this: Arc::clone(&base.this),
        settings: Arc::clone(&base.settings),
        clock: Arc::clone(&base.clock),
        history: Arc::clone(&base.history),
        comparer: Comparer {
            directory: Arc::clone(&base.directory),
            registry: Arc::clone(&base.registry),
            revoker: Arc::clone(&sessions.revoker),
            ender: Arc::clone(&sessions.ender),
            bans: Arc::clone(&sessions.bans),
        },
        writer: Writer {
            settings: Arc::clone(&base.settings),
            clock: Arc::clone(&base.clock),
            history: Arc::clone(&base.history),
            directory: Arc::clone(&base.directory),
            registry: Arc::clone(&base.registry),
            removals: Arc::clone(&sessions.removals),
            events: Arc::clone(&base.events),
        },
        tasks: Arc::clone(&base.tasks),
    }
}

fn make_sweeper(
    base: &Base,
    sessions: &SessionParts,
    node: &NodeParts,
    hand_outs: &Arc<HandOuts>,
    pending: &Arc<AtomicUsize>,
) -> Sweeper {
    Sweeper {
        this: Arc::clone(&base.this),
        settings: Arc::clone(&base.settings),
        clock: Arc::clone(&base.clock),
        directory: Arc::clone(&base.directory),
        liveness: Arc::clone(&base.liveness),
        roster: Arc::clone(&node.roster),
        registry: Arc::clone(&base.registry),
        bans: Arc::clone(&sessions.bans),
        removals: Arc::clone(&sessions.removals),
        logouts: Arc::clone(&sessions.logouts),
        hand_outs: Arc::clone(hand_outs),
        events: Arc::clone(&base.events),
        tasks: Arc::clone(&base.tasks),
        pending: Arc::clone(pending),
    }
}

fn make_router(base: &Base) -> Router {
    Router {
        this: Arc::clone(&base.this),
        settings: Arc::clone(&base.settings),
        clock: Arc::clone(&base.clock),
        directory: Arc::clone(&base.directory),
        liveness: Arc::clone(&base.liveness),
        peers: Arc::clone(&base.peers),
        registry: Arc::clone(&base.registry),
        events: Arc::clone(&base.events),
    }
}

fn make_admin(base: &Base, sessions: &SessionParts) -> Admin {
    Admin {
        settings: Arc::clone(&base.settings),
        clock: Arc::clone(&base.clock),
        directory: Arc::clone(&base.directory),
        kicks: Arc::clone(&sessions.kicks),
        removals: Arc::clone(&sessions.removals),
        events: Arc::clone(&base.events),
    }
}

fn make_logins(
    base: &Base,
    sessions: &SessionParts,
    drain: &Arc<Drain>,
    admission: Admission,
    profiles: Option<Arc<dyn Profiles>>,
) -> LoginParts {
    LoginParts {
        this: Arc::clone(&base.this),
        settings: Arc::clone(&base.settings),
        clock: Arc::clone(&base.clock),
        locker: base.locker.clone(),
        directory: Arc::clone(&base.directory),
        history: Arc::clone(&base.history),
        liveness: Arc::clone(&base.liveness),
        peers: Arc::clone(&base.peers),
        registry: Arc::clone(&base.registry),
        bans: Arc::clone(&sessions.bans),
        revoker: Arc::clone(&sessions.revoker),
        kicks: Arc::clone(&sessions.kicks),
        removals: Arc::clone(&sessions.removals),
        ender: Arc::clone(&sessions.ender),
        logouts: Arc::clone(&sessions.logouts),
        drain: Arc::clone(drain),
        events: Arc::clone(&base.events),
        tasks: Arc::clone(&base.tasks),
        queues: LoginQueues::default(),
        admissions: Admissions::new(admission, Arc::clone(&base.clock)),
        profiles,
    }
}

/// Makes the parts of a flow, and its sweeper, which no other part uses.
pub(super) fn assemble(
    base: &Base,
    admission: Admission,
    profiles: Option<Arc<dyn Profiles>>,
) -> (Parts, Sweeper) {
    let sessions = SessionParts::new(base);
    let node = NodeParts::new(base, &sessions);
    let pending = Arc::new(AtomicUsize::new(0));
    let hand_outs = Arc::new(HandOuts {
        this: Arc::clone(&base.this),
        settings: Arc::clone(&base.settings),
        clock: Arc::clone(&base.clock),
        peers: Arc::clone(&base.peers),
        registry: Arc::clone(&base.registry),
        tasks: Arc::clone(&base.tasks),
        owed: Mutex::default(),
    });
    let sweeper = make_sweeper(base, &sessions, &node, &hand_outs, &pending);
    let parts = Parts {
        this: Arc::clone(&base.this),
        settings: Arc::clone(&base.settings),
        clock: Arc::clone(&base.clock),
        locker: base.locker.clone(),
        directory: Arc::clone(&base.directory),
        liveness: Arc::clone(&base.liveness),
        registry: Arc::clone(&base.registry),
        router: make_router(base),
        peers: Arc::clone(&base.peers),
        hand_outs,
        logins: Arc::new(make_logins(
            base,
            &sessions,
            &node.drain,
            admission,
            profiles,
        )),
        admin: make_admin(base, &sessions),
        reconciler: Arc::new(make_reconciler(base, &sessions)),
        bans: sessions.bans,
        ender: sessions.ender,
        revoker: sessions.revoker,
        logouts: sessions.logouts,
        roster: node.roster,
        drain: node.drain,
        keeper: node.keeper,
        events: Arc::clone(&base.events),
        tasks: Arc::clone(&base.tasks),
        pending,
    };
    (parts, sweeper)
}
