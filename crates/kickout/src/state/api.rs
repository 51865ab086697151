//! The traits that an embedder implements: the calls between nodes, and the check of an account
//! before its login.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use distlock_core::Result;

use crate::model::{
    ident::{SessionKey, Uid},
    login::{Denied, Login},
    node::NodeAddress,
    request::{DeliverRequest, DeliverResult, KickRequest, KickResult, PeerError},
};

/// Sends calls to other nodes. A method sends its call once and returns the answer. This crate,
/// which calls the methods, adds deadlines, retries and a circuit breaker.
#[async_trait]
pub trait Peers: fmt::Debug + Send + Sync + 'static {
    /// Asks a node to end one session. The answer is the result of
    /// [`KickOut::handle_kick`](crate::KickOut::handle_kick) there.
    ///
    /// # Errors
    /// [`PeerError`], which says whether the call may have been executed.
    ///
    /// # Cancel safety
    /// The flow drops this future at its deadline.
    async fn kick(&self, to: &NodeAddress, request: KickRequest) -> Result<KickResult, PeerError>;

    /// Asks a node to deliver a message to one session.
    ///
    /// # Errors
    /// [`PeerError`], which says whether the call may have been executed.
    ///
    /// # Cancel safety
    /// The flow drops this future at its deadline.
    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError>;

    /// Asks a node for the idle times of the account's sessions on that node. The flow makes this
    /// call only under [`OnExceed::EvictIdle`](crate::OnExceed::EvictIdle). An implementation is
    /// optional: the sessions of a node that does not answer count as idle. The answer is the
    /// result of [`KickOut::handle_idle`](crate::KickOut::handle_idle) on that node.
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
        Err(PeerError::NotSent(
            "this node cannot ask for idle times".into(),
        ))
    }

    /// Tells a node that messages are stored for these accounts, whose sessions that node has. The
    /// flow makes this call to every other node in each sweep, often without an account: so a node
    /// that cannot be called is noticed before a login needs it. The target calls
    /// [`KickOut::handle_hand_out`](crate::KickOut::handle_hand_out).
    ///
    /// # Errors
    /// [`PeerError`]. The flow repeats the call in the next sweep.
    ///
    /// # Cancel safety
    /// The flow drops this future at its deadline.
    async fn hand_out(&self, to: &NodeAddress, uids: &[Uid]) -> Result<(), PeerError>;
}

/// The peers of a flow with a single node: every call fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

#[async_trait]
impl Peers for NoPeers {
    async fn kick(
        &self,
        _to: &NodeAddress,
        _request: KickRequest,
    ) -> Result<KickResult, PeerError> {
        Err(PeerError::NotSent(
            "this flow has no way to other nodes".into(),
        ))
    }

    async fn deliver(
        &self,
        _to: &NodeAddress,
        _request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        Err(PeerError::NotSent(
            "this flow has no way to other nodes".into(),
        ))
    }

    async fn hand_out(&self, _to: &NodeAddress, _uids: &[Uid]) -> Result<(), PeerError> {
        Err(PeerError::NotSent(
            "this flow has no way to other nodes".into(),
        ))
    }
}

/// Checks an account before its login: its profile, its subscription, its location.
///
/// The check runs before the login enters the login queue and before it takes the account's lock,
/// so a slow check delays no other login. A slow check does not make a login older: the order of
/// the writes decides.
#[async_trait]
pub trait Profiles: fmt::Debug + Send + Sync + 'static {
    /// Decides whether this login may continue.
    ///
    /// # Errors
    /// Any failure of the check. The login then returns this error, and nothing was changed.
    ///
    /// # Cancel safety
    /// The future is dropped when the login's caller drops the login.
    async fn load(&self, login: &Login) -> Result<Allowed>;
}

/// Whether a login may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allowed {
    /// The login may continue; the policy decides next.
    Yes,
    /// The login is denied with this answer.
    No(Denied),
}
