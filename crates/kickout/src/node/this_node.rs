//! This node: its name, its addresses and its present incarnation.
//!
//! At most one incarnation is present. A fenced node has none.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::{
    model::{
        ident::{Boot, NodeId, SessionKey},
        node::NodeAddress,
    },
    node::lease::Incarnation,
};

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
