//! This node: its state, and everything that it does.
//!
//! [`Node`] has all state of a flow. The files of this folder are its methods, by topic. A node
//! that cannot renew its lease stops serving before another node may count it as dead.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::AtomicUsize},
};

use distlock_core::{Clock, Locker, Store, sync::Mutex};
use tokio::sync::Semaphore;

use crate::{
    directory::records::Directory,
    model::{
        change::AccountChange,
        ident::{NodeId, Uid},
        settings::Settings,
    },
    node::{
        apart::Apart, drain::Drain, hand_out::OwedAccounts, history::History,
        liveness::LastAnswers, logout::Retries,
    },
    state::{
        admission::{Admission, Admissions},
        api::{Peers, Profiles},
        changes::Changes,
        events::Events,
        incarnation::ThisNode,
        login_queue::LoginQueues,
        peers::PeerClient,
        registry::Registry,
    },
    tasks::Tasks,
};

pub(crate) mod admin;
pub(crate) mod apart;
pub(crate) mod confirm;
pub(crate) mod drain;
pub(crate) mod end;
pub(crate) mod grant;
pub(crate) mod hand_out;
pub(crate) mod history;
pub(crate) mod kick;
pub(crate) mod lease;
pub(crate) mod liveness;
pub(crate) mod login;
pub(crate) mod logout;
pub(crate) mod reconcile;
pub(crate) mod roster;
pub(crate) mod route;
pub(crate) mod session;
pub(crate) mod sweep;

/// The embedder's choices.
pub(crate) struct Setup {
    pub(crate) store: Store,
    pub(crate) node: NodeId,
    pub(crate) advertise: String,
    pub(crate) front: Option<String>,
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) profiles: Option<Arc<dyn Profiles>>,
    pub(crate) admission: Admission,
    pub(crate) settings: Settings,
}

/// One node of the flow.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) this: ThisNode,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) locker: Locker,
    pub(crate) directory: Directory,
    /// The two stores, if the locks are in another store than the records.
    pub(crate) apart: Option<Apart>,
    pub(crate) peers: PeerClient,
    pub(crate) profiles: Option<Arc<dyn Profiles>>,
    pub(crate) admissions: Admissions,
    pub(crate) queues: LoginQueues,
    pub(crate) registry: Registry,
    pub(crate) events: Events,
    /// The changes of presence of this node's sessions.
    pub(crate) changes: Arc<Changes>,
    /// What this node did to accounts.
    pub(crate) account_changes: Arc<Changes<AccountChange>>,
    /// The permits to deliver messages to many.
    pub(crate) many: Semaphore,
    pub(crate) tasks: Tasks,
    pub(crate) drain: Drain,
    pub(crate) history: History,
    pub(crate) last_answers: LastAnswers,
    /// Deletes that the store did not confirm.
    pub(crate) retries: Retries,
    /// Accounts whose kicks are repeated in the background.
    pub(crate) repeated_kicks: Mutex<HashSet<Uid>>,
    /// Accounts on other nodes that have stored messages.
    pub(crate) owed: Mutex<HashMap<NodeId, OwedAccounts>>,
    /// Sessions on all nodes that have to end and are not known to have ended. The sweeper's last
    /// complete pass counted them.
    pub(crate) pending_revocations: AtomicUsize,
}

impl Node {
    pub(crate) fn new(setup: Setup) -> Self {
        let locker = setup.store.locker();
        let clock = locker.clock();
        Self {
            changes: Arc::new(Changes::new(Arc::clone(&clock))),
            account_changes: Arc::new(Changes::new(Arc::clone(&clock))),
            many: Semaphore::new(route::MANY_AT_ONCE),
            events: Events::new(setup.node.clone(), Arc::clone(&clock)),
            this: ThisNode::new(setup.node, setup.advertise, setup.front),
            settings: setup.settings,
            directory: Directory::new(&setup.store),
            apart: Apart::of(&setup.store),
            peers: PeerClient::new(setup.peers, Arc::clone(&clock)),
            profiles: setup.profiles,
            admissions: Admissions::new(setup.admission, Arc::clone(&clock)),
            locker,
            clock,
            queues: LoginQueues::default(),
            registry: Registry::default(),
            tasks: Tasks::new(),
            drain: Drain::default(),
            history: History::default(),
            last_answers: LastAnswers::default(),
            retries: Retries::default(),
            repeated_kicks: Mutex::default(),
            owed: Mutex::default(),
            pending_revocations: AtomicUsize::new(0),
        }
    }
}
