//! Drain of this node, and the list of nodes.

use distlock_core::Result;

use crate::{
    flow::handle::KickOut,
    model::node::{NodeInfo, NodeState},
};

impl KickOut {
    /// Refuses further logins and ends the sessions of this node with code 6, `rate` of them per
    /// second. Another call changes the rate. The node keeps its lease and serves the remaining
    /// sessions.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) for a rate of
    /// zero. After a failure of the store the node drains all the same, but other nodes do not see
    /// the drain.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn drain(&self, rate: u32) -> Result<()> {
        self.node.begin_drain(rate).await
    }

    /// Takes logins again. A session that has ended stays ended.
    ///
    /// # Errors
    /// Failures of the store. The node takes logins all the same, but other nodes still see the
    /// drain.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn undrain(&self) -> Result<()> {
        self.node.end_drain().await
    }

    /// Whether this node takes logins.
    #[must_use]
    pub fn state(&self) -> NodeState {
        self.node.state()
    }

    /// The nodes that hold their lease, in order of their names. A node that this one cannot call
    /// has the reason in [`NodeInfo::unreachable`].
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        let mut nodes = self.node.live_nodes().await?;
        for it in &mut nodes {
            let failure = self.node.peers.failure_of(&it.node);
            it.unreachable = failure.map(|error| error.to_string());
        }
        Ok(nodes)
    }
}
