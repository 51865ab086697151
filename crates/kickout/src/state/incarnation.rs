//! This node's name, its present incarnation, and the lease that the incarnation belongs to.
//!
//! A session may act only while the lease of its incarnation is valid. At most one incarnation is
//! present; a fenced node has none. The checks in this file do no I/O.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, Epoch, LockWatch, LossReason, sync::Mutex};
use tokio::sync::watch;
use uuid::Uuid;

use crate::model::{
    ident::{Boot, NodeId, SessionKey},
    node::NodeAddress,
};

/// One incarnation of this node: its boot number and its lease.
#[derive(Clone, Debug)]
pub(crate) struct Incarnation {
    pub(crate) boot: Boot,
    pub(crate) lease: Lease,
}

/// The lease of one incarnation. All clones share it.
///
/// A lease that is missing from the store stays valid until its deadline, or until the node gives
/// it up. If the store lost the lease together with other data, no other node grants a login before
/// that deadline, and the node takes the lease again.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    clock: Arc<dyn Clock>,
    /// `None` after the lease was given up.
    watch: Arc<Mutex<Option<LockWatch>>>,
    /// Id of the roster that lists this incarnation.
    roster: Arc<Mutex<Option<Uuid>>>,
}

/// Whether this reason of a loss means that the lease is missing from the store. A lease is missing
/// if it was deleted by hand, or if the store lost data.
pub(crate) const fn is_missing(loss: LossReason) -> bool {
    matches!(loss, LossReason::Removed | LossReason::HistoryChanged)
}

impl Lease {
    pub(crate) fn new(clock: Arc<dyn Clock>, lock: LockWatch) -> Self {
        Self {
            clock,
            watch: Arc::new(Mutex::new(Some(lock))),
            roster: Arc::default(),
        }
    }

    /// Whether the lease is valid at this moment. The check does no I/O.
    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Time until the deadline; zero after the lease was lost or given up. A lease that is missing
    /// from the store still runs until its deadline.
    pub(crate) fn remaining(&self) -> Duration {
        self.watch.lock().as_ref().map_or(Duration::ZERO, |lock| {
            let missing = lock.loss().is_some_and(is_missing);
            // `LockWatch::remaining` is zero after any loss. If the store lost data, the other
            // nodes grant no login for one node lease, so the sessions may go on until then.
            if missing {
                lock.deadline().since(self.clock.now())
            } else {
                lock.remaining()
            }
        })
    }

    /// The epoch of the lease; `None` after it was given up.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.watch.lock().as_ref().map(|lock| lock.fence().epoch)
    }

    /// Continues the lease with a lock that was taken again.
    pub(crate) fn replace_lock(&self, lock: LockWatch) {
        *self.watch.lock() = Some(lock);
    }

    /// Notes the roster that lists this incarnation.
    pub(crate) fn set_roster(&self, roster: Option<Uuid>) {
        *self.roster.lock() = roster;
    }

    /// Id of the roster that lists this incarnation; `None` if it is not known.
    pub(crate) fn roster(&self) -> Option<Uuid> {
        *self.roster.lock()
    }

    /// Makes the lease invalid for all clones at once.
    pub(crate) fn give_up(&self) {
        *self.watch.lock() = None;
    }
}

/// This node.
#[derive(Debug)]
pub(crate) struct ThisNode {
    pub(crate) id: NodeId,
    /// The address for peers.
    pub(crate) advertise: String,
    /// The address for clients. For display.
    pub(crate) front: Option<String>,
    /// The present incarnation; `None` while the node is fenced.
    incarnation: watch::Sender<Option<Incarnation>>,
    /// The boot of the newest incarnation of this process.
    newest: AtomicU64,
}

impl ThisNode {
    pub(crate) fn new(id: NodeId, advertise: String, front: Option<String>) -> Self {
        Self {
            id,
            advertise,
            front,
            incarnation: watch::Sender::new(None),
            newest: AtomicU64::new(0),
        }
    }

    /// The present incarnation, if its lease is valid at this moment.
    pub(crate) fn current_incarnation(&self) -> Option<Incarnation> {
        let incarnation = self.incarnation.borrow().clone();
        incarnation.filter(|own| own.lease.is_valid())
    }

    /// The boot of the newest incarnation of this process, even while the node is fenced.
    pub(crate) fn newest_boot(&self) -> Boot {
        Boot::new(self.newest.load(Ordering::Acquire))
    }

    /// Starts an incarnation.
    pub(crate) fn set_incarnation(&self, own: Incarnation) {
        // The boot comes first. A login may begin as soon as the incarnation is set, and a kick of
        // its session must find this boot here.
        self.newest.store(own.boot.get(), Ordering::Release);
        self.incarnation.send_replace(Some(own));
    }

    /// Ends the present incarnation, and gives up its lease.
    pub(crate) fn end_incarnation(&self) {
        if let Some(own) = self.incarnation.send_replace(None) {
            own.lease.give_up();
        }
    }

    /// Whether a session belongs or belonged to this process. A higher boot number under this
    /// node's name belongs to another process.
    pub(crate) fn owns(&self, key: &SessionKey) -> bool {
        key.node == self.id && key.boot <= self.newest_boot()
    }

    /// The address of this node under the incarnation `boot`.
    pub(crate) fn address(&self, boot: Boot) -> NodeAddress {
        NodeAddress {
            node: self.id.clone(),
            boot,
            addr: self.advertise.clone(),
        }
    }
}
