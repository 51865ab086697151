//! This node: its name, its addresses and its present incarnation.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::{
    model::{
        ident::{Boot, NodeId, SessionKey},
        node::NodeAddress,
    },
    node::lease::Incarnation,
};

#[derive(Debug)]
pub(crate) struct ThisNode {
    pub(crate) id: NodeId,
    /// The address that other nodes are told to reach this one.
    pub(crate) advertise: String,
    /// The address that clients connect to. For display.
    pub(crate) front: Option<String>,
    /// The present incarnation; `None` while the node is fenced.
    present: watch::Sender<Option<Incarnation>>,
    newest: AtomicU64,
}

impl ThisNode {
    pub(crate) fn new(id: NodeId, advertise: String, front: Option<String>) -> Self {
        Self {
            id,
            advertise,
            front,
            present: watch::Sender::new(None),
            newest: AtomicU64::new(0),
        }
    }

    /// The incarnation, if its lease is valid at this moment.
    pub(crate) fn now(&self) -> Option<Incarnation> {
        let present = self.present.borrow().clone();
        present.filter(|own| own.lease.is_valid())
    }

    /// The last incarnation that this process was, also while it is fenced.
    pub(crate) fn newest(&self) -> Boot {
        Boot::new(self.newest.load(Ordering::Acquire))
    }

    pub(crate) fn set_present(&self, own: Incarnation) {
        self.newest.store(own.boot.get(), Ordering::Release);
        self.present.send_replace(Some(own));
    }

    pub(crate) fn end(&self) {
        if let Some(own) = self.present.send_replace(None) {
            own.lease.give_up();
        }
    }

    /// Whether a session is, or was, one of this process. A later incarnation of this node's name is another process.
    pub(crate) fn is_here(&self, key: &SessionKey) -> bool {
        key.node == self.id && key.boot <= self.newest()
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
