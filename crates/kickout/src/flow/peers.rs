//! The answers to calls from other nodes.

use std::time::Duration;

use crate::{
    flow::handle::KickOut,
    model::{
        ident::{SessionKey, Uid},
        request::{DeliverRequest, DeliverResult, KickRequest, KickResult, PeerError},
    },
};

impl KickOut {
    /// A kick from another node: ends exactly the session it names. Every answer is final.
    ///
    /// # Errors
    /// [`PeerError::NotSent`] when the kick is for another node, or for an incarnation newer than this one: then it came to
    /// the wrong process, and what it names may be alive elsewhere.
    pub fn handle_kick(&self, request: &KickRequest) -> Result<KickResult, PeerError> {
        self.parts.revoker.receive(request)
    }

    /// A delivery from another node: accepted only for the session that is active here, exactly, and within the node's lease.
    /// Ends when the session's connection took the message, or after `request.within` at the latest.
    ///
    /// # Cancel safety
    /// Dropping it leaves the outcome unknown.
    pub async fn handle_deliver(&self, request: DeliverRequest) -> DeliverResult {
        self.parts.router.deliver_here(request).await
    }

    /// For how long the account's sessions on this node have sent nothing: the answer to [`Peers::idle`](crate::Peers::idle).
    #[must_use]
    pub fn handle_idle(&self, uid: &Uid) -> Vec<(SessionKey, Duration)> {
        let parts = &self.parts;
        parts.registry.idle_times(uid, parts.clock.now())
    }
}
