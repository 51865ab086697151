//! What nodes ask of each other.

use std::{fmt, time::Duration};

use async_trait::async_trait;

use crate::model::{
    ident::{SessionKey, Uid},
    node::NodeAddress,
    request::{DeliverRequest, DeliverResult, KickRequest, KickResult, PeerError},
};

/// How to reach other nodes. The flow brings deadlines, retries and a circuit breaker; this is one plain call.
#[async_trait]
pub trait Peers: fmt::Debug + Send + Sync + 'static {
    /// Asks a node to end one session. The answer is what [`KickOut::handle_kick`](crate::KickOut::handle_kick) said there.
    ///
    /// # Errors
    /// [`PeerError`], saying whether the call may have been executed.
    ///
    /// # Cancel safety
    /// The flow drops this future at its deadline.
    async fn kick(&self, to: &NodeAddress, request: KickRequest) -> Result<KickResult, PeerError>;

    /// Asks a node to deliver a message to one session.
    ///
    /// # Errors
    /// [`PeerError`], saying whether the call may have been executed.
    ///
    /// # Cancel safety
    /// The flow drops this future at its deadline.
    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError>;

    /// Asks a node for how long the account's sessions there have sent nothing. Only asked under
    /// [`OnExceed::EvictIdle`](crate::OnExceed::EvictIdle), and optional: the sessions of a node that does not answer count as
    /// idle. The answer is what [`KickOut::handle_idle`](crate::KickOut::handle_idle) said there.
    ///
    /// # Errors
    /// [`PeerError`].
    ///
    /// # Cancel safety
    /// The flow drops this future at its deadline.
    async fn idle(
        &self,
        _to: &NodeAddress,
        _uid: &Uid,
    ) -> Result<Vec<(SessionKey, Duration)>, PeerError> {
        Err(PeerError::NotSent("idle times cannot be asked for".into()))
    }
}

/// For a flow with one node: every other node is unreachable.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

#[async_trait]
impl Peers for NoPeers {
    async fn kick(
        &self,
        _to: &NodeAddress,
        _request: KickRequest,
    ) -> Result<KickResult, PeerError> {
        Err(PeerError::NotSent("no way to reach other nodes".into()))
    }

    async fn deliver(
        &self,
        _to: &NodeAddress,
        _request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        Err(PeerError::NotSent("no way to reach other nodes".into()))
    }
}
