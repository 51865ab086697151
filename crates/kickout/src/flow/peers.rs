//! Answers to the calls of peers.

use std::time::Duration;

use crate::{
    flow::handle::KickOut,
    model::{
        ident::{SessionKey, Uid},
        request::{DeliverRequest, DeliverResult, KickRequest, KickResult, PeerError},
    },
};

impl KickOut {
    /// Answers a kick from a peer: ends exactly the session that the kick names. Does not wait for
    /// the program of the session: [`KickResult::Saving`] says that it may still save.
    ///
    /// # Errors
    /// [`PeerError::NotSent`] when the kick is for another node, or for a newer incarnation than
    /// this one. Such a kick reached the wrong process, and its session may be alive in another
    /// process.
    pub fn handle_kick(&self, request: &KickRequest) -> Result<KickResult, PeerError> {
        self.node.handle_kick(request)
    }

    /// Answers a delivery from a peer. The delivery is accepted only for exactly the session that
    /// is active here, and only within the node's lease. The call ends when the session's
    /// connection took the message, or after `request.within` at the latest.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown.
    pub async fn handle_deliver(&self, request: DeliverRequest) -> DeliverResult {
        self.node.deliver_here(request).await
    }

    /// Answers a peer that stored messages for these accounts while it could not call this node:
    /// each of their sessions here gets the order to hand out the stored messages
    /// ([`Session::hand_out_asked`](crate::Session::hand_out_asked)).
    pub fn handle_hand_out(&self, uids: &[Uid]) {
        self.node.hand_out_here(uids);
    }

    /// Idle time of each of the account's sessions on this node: the answer to
    /// [`Peers::idle`](crate::Peers::idle).
    #[must_use]
    pub fn handle_idle(&self, uid: &Uid) -> Vec<(SessionKey, Duration)> {
        let node = &self.node;
        node.registry.idle_times(uid, node.clock.now())
    }
}
