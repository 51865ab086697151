//! The builder of a flow: it makes the node, takes its lease, and starts the background tasks.

use std::sync::Arc;

use distlock_core::{Error, ErrorKind, Result, Store};

use crate::{
    flow::kick_out::KickOut,
    meters,
    model::{
        ident::NodeId,
        policy::Policy,
        settings::{Confirm, Settings, Timers},
    },
    node::{Node, Setup},
    state::{
        admission::Admission,
        api::{NoPeers, Peers, Profiles},
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
    timers: Timers,
    peers: Arc<dyn Peers>,
    profiles: Option<Arc<dyn Profiles>>,
}

impl KickOut {
    /// Prepares a flow for the node `node` over `store`.
    pub fn builder(store: Store, node: NodeId) -> Builder {
        Builder {
            store,
            advertise: node.to_string(),
            front: None,
            node,
            policy: Policy::single(),
            admission: Admission::unbounded(),
            confirm: Confirm::default(),
            timers: Timers::default(),
            peers: Arc::new(NoPeers),
            profiles: None,
        }
    }
}

impl Builder {
    /// The address of this node for its peers; the node's name unless set.
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = address.into();
        self
    }

    /// The address of this node for clients. The node stores the address beside its lease for
    /// display, and does not use it.
    pub fn front(mut self, address: impl Into<String>) -> Self {
        self.front = Some(address.into());
        self
    }

    /// The number of sessions that an account may have.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Bounds on the logins of this node; unbounded unless set.
    pub const fn admission(mut self, admission: Admission) -> Self {
        self.admission = admission;
        self
    }

    /// The moment at which a login is answered while the end of an older session is not confirmed.
    pub const fn confirm(mut self, confirm: Confirm) -> Self {
        self.confirm = confirm;
        self
    }

    /// The check of an account before its login; none unless set.
    pub fn profiles(mut self, profiles: Arc<dyn Profiles>) -> Self {
        self.profiles = Some(profiles);
        self
    }

    /// The durations of the flow.
    pub fn timers(mut self, timers: Timers) -> Self {
        self.timers = timers;
        self
    }

    /// The way to other nodes; no node can be reached unless set.
    pub fn peers(mut self, peers: Arc<dyn Peers>) -> Self {
        self.peers = peers;
        self
    }

    /// Takes the node's lease and starts. If a predecessor of the same name died without a release,
    /// this waits until its lease ends.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when another node of this name is running;
    /// [`ErrorKind::InvalidArgument`] for a timer of zero or a policy for no session; failures of
    /// the store.
    ///
    /// # Cancel safety
    /// Safe: a lease that was taken is released.
    pub async fn start(self) -> Result<KickOut> {
        self.timers.validate()?;
        self.policy.validate()?;
        let node = Arc::new(Node::new(Setup {
            store: self.store,
            node: self.node,
            advertise: self.advertise,
            front: self.front,
            peers: self.peers,
            profiles: self.profiles,
            admission: self.admission,
            settings: Settings {
                policy: self.policy,
                confirm: self.confirm,
                timers: self.timers,
            },
        }));
        let lease = node.start_incarnation().await.map_err(|error| {
            if error.kind() == ErrorKind::Timeout {
                Error::new(
                    ErrorKind::Timeout,
                    format!("a node named {} is already running", node.this.id),
                )
                .caused_by(error)
            } else {
                error
            }
        })?;
        meters::register_all();
        let stop = Arc::new(node.tasks.stop.clone().drop_guard());
        node.tasks.spawn(Arc::clone(&node).keep_lease(lease));
        node.tasks.spawn(Arc::clone(&node).run_reconciliation());
        node.tasks.spawn(Arc::clone(&node).run_sweeper());
        node.tasks.spawn(Arc::clone(&node).retry_logouts());
        Ok(KickOut { node, _stop: stop })
    }
}
