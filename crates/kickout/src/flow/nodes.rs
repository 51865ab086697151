//! Draining this node, and the list of nodes.

use distlock_core::Result;

use crate::{
    flow::handle::KickOut,
    model::node::{NodeInfo, NodeState},
};

impl KickOut {
    /// Takes no further login and tells the sessions of this node to go elsewhere, `rate` of them a second, with code 6. Calling
    /// it again changes the rate. The node keeps its lease and serves the sessions that are left.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a rate of zero. Failures of the store: the node drains all the same, other nodes only
    /// do not see it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn drain(&self, rate: u32) -> Result<()> {
        self.parts.drain.begin(rate).await
    }

    /// Takes logins again. Sessions that were told to go are not called back.
    ///
    /// # Errors
    /// Failures of the store: the node takes logins all the same, other nodes only do not see it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn undrain(&self) -> Result<()> {
        self.parts.drain.end().await
    }

    /// Whether this node takes logins.
    #[must_use]
    pub fn state(&self) -> NodeState {
        self.parts.drain.state()
    }

    /// The nodes that hold their lease, by name.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        self.parts.roster.live_nodes().await
    }
}
