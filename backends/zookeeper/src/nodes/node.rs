//! One contender's node, and its state.
//!
//! Invariant: the state only moves forward, from waiting to held, and then to leaving or gone. So a
//! late grant cannot make a node held again after its owner gave the node up.

use std::sync::Arc;

use distlock_backend_kit::queue_entry::ENTRY_LEASE;
use distlock_core::{
    Error, ErrorKind, FencingToken, HolderInfo, LossFeed, LossReason, LossSender, Moment, OwnerId,
    Result, sync::Mutex,
};
use tokio::sync::watch;

use super::sequence::Sequence;

/// One contender's node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) owner: OwnerId,
    /// The path of the container.
    pub(crate) parent: Arc<str>,
    /// The name of the node in the container.
    pub(crate) child: String,
    pub(crate) sequence: Sequence,
    pub(crate) token: FencingToken,
    /// The holder, kept so that callers of this process need no request to learn it.
    pub(crate) holder: HolderInfo,
    pub(super) created: Moment,
    status: watch::Sender<NodeStatus>,
    /// The moment at which the node is given up for its owner, by the clock of this host: the end
    /// of the lease while the lock is held, and before that the end of the queue entry.
    expires: Mutex<Moment>,
    loss: LossSender,
}

/// The present state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeStatus {
    /// The node waits in the queue.
    Waiting,
    /// The lock was granted to the node.
    Held,
    /// The owner gave the node up, and the node is being deleted.
    Leaving,
    /// The node is lost: another client removed it, its lease or its queue entry ended, or its
    /// session ended.
    Gone(LossReason),
}

impl Node {
    pub(crate) fn new(
        owner: OwnerId,
        parent: Arc<str>,
        child: String,
        sequence: Sequence,
        token: FencingToken,
        holder: HolderInfo,
        created: Moment,
    ) -> Arc<Self> {
        let (loss, _) = LossFeed::new();
        Arc::new(Self {
            owner,
            parent,
            child,
            sequence,
            token,
            holder,
            created,
            status: watch::Sender::new(NodeStatus::Waiting),
            expires: Mutex::new(created + ENTRY_LEASE),
            loss,
        })
    }

    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.parent, self.child)
    }

    pub(crate) fn status(&self) -> NodeStatus {
        *self.status.borrow()
    }

    pub(crate) fn watch_status(&self) -> watch::Receiver<NodeStatus> {
        self.status.subscribe()
    }

    pub(crate) fn loss_feed(&self) -> LossFeed {
        self.loss.feed()
    }

    /// Returns whether the contenders behind may pass this node, because its owner gave it up or
    /// the node is lost. The node may still exist at the ensemble.
    pub(crate) fn is_leaving_or_gone(&self) -> bool {
        matches!(self.status(), NodeStatus::Leaving | NodeStatus::Gone(_))
    }

    /// Grants the lock to the first node of its queue, or extends the lease, until that moment.
    /// `false` = the node was given up or is gone.
    pub(crate) fn grant_until(&self, until: Moment) -> bool {
        self.status.send_if_modified(|status| {
            let alive = matches!(status, NodeStatus::Waiting | NodeStatus::Held);
            if alive {
                *status = NodeStatus::Held;
                *self.expires.lock() = until;
            }
            alive
        })
    }

    /// Keeps the queue entry of a node that waits for another [`ENTRY_LEASE`].
    pub(crate) fn keep_entry(&self, now: Moment) {
        // The status is borrowed during the change, so that an entry cannot replace the lease of a
        // grant.
        let status = self.status.borrow();
        if *status == NodeStatus::Waiting {
            *self.expires.lock() = now + ENTRY_LEASE;
        }
    }

    /// Gives the node up for its owner. `false` = the node was given up before, or is gone.
    pub(crate) fn start_leaving(&self) -> bool {
        self.status.send_if_modified(|status| {
            let alive = matches!(status, NodeStatus::Waiting | NodeStatus::Held);
            if alive {
                *status = NodeStatus::Leaving;
            }
            alive
        })
    }

    /// Marks the node as gone, if its lease or its queue entry has ended by `now`. The moment is
    /// tested together with the status: a caller that stood still may have been granted the lock
    /// just now.
    pub(crate) fn mark_expired(&self, now: Moment) -> bool {
        self.mark_gone_if(LossReason::Expired, || *self.expires.lock() <= now)
    }

    /// Marks the node as gone: another client removed it, its lease or its queue entry ended, or
    /// its session ended. Reports the loss to the holder if the lock was held. `true` = the node
    /// was neither given up nor gone before.
    pub(crate) fn mark_gone(&self, reason: LossReason) -> bool {
        self.mark_gone_if(reason, || true)
    }

    fn mark_gone_if(&self, reason: LossReason, due: impl Fn() -> bool) -> bool {
        self.status.send_if_modified(|status| {
            let was_held = *status == NodeStatus::Held;
            let moved = (was_held || *status == NodeStatus::Waiting) && due();
            if moved {
                // The holder learns of the loss before a contender of this session can see that
                // the node is gone.
                if was_held {
                    self.loss.lose(reason);
                }
                *status = NodeStatus::Gone(reason);
            }
            moved
        })
    }

    /// Returns the reason for which the node is lost. A node that its owner gave up, or that is not
    /// known to be lost, counts as removed.
    pub(crate) fn loss_reason(&self) -> LossReason {
        match self.status() {
            NodeStatus::Gone(reason) => reason,
            _ => LossReason::Removed,
        }
    }

    /// Returns the end of the lease or of the queue entry; `None` when the node was given up
    /// or is gone.
    pub(super) fn expires(&self) -> Option<Moment> {
        (!self.is_leaving_or_gone()).then(|| *self.expires.lock())
    }
}

/// Returns the fencing token of a node: the transaction that created the node.
pub(crate) fn token_from_czxid(czxid: i64) -> Result<FencingToken> {
    let too_old =
        "the server does not tell the transaction of a creation: ZooKeeper 3.6 or later is needed";
    match u64::try_from(czxid) {
        Ok(czxid) => FencingToken::new(czxid),
        Err(_) => Err(Error::new(ErrorKind::Unsupported, too_old).on("zookeeper")),
    }
}
