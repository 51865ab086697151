//! The health of a node: `GET /healthz`, on the port for clients and on the port for
//! administrators. The answer tells a load balancer whether this node takes clients.

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use distlock_kickout::{KickOut, NodeId, NodeState};
use serde::Serialize;

/// The body of the answer.
#[derive(Serialize)]
struct Health<'a> {
    status: &'a str,
    /// The meaning of a status other than `up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    node: &'a NodeId,
    boot: Option<u64>,
    sessions: usize,
    lease_remaining_ms: u128,
}

/// Builds the answer to a health check: 200 if the node takes clients, else 503.
///
/// A node whose store refuses changes answers 200 as well. Its sessions go on, every other node has
/// the same store, and a restart would only end those sessions.
pub(crate) fn health(kick: &KickOut) -> Response {
    let boot = kick.boot().map(distlock_kickout::Boot::get);
    let (code, status, reason) = match (boot, kick.state()) {
        (Some(_), NodeState::Up) if !kick.store_takes_changes() => (
            StatusCode::OK,
            "degraded",
            Some("the store refuses changes, so logins fail: check the store"),
        ),
        (Some(_), NodeState::Up) => (StatusCode::OK, "up", None),
        // The load balancer must send no more clients to this node.
        (Some(_), _) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "draining",
            Some("the node takes no logins and ends its sessions"),
        ),
        (None, _) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "fenced",
            Some("the node has no lease and serves nobody: check the store and the node's log"),
        ),
    };
    let health = Health {
        status,
        reason,
        node: kick.node(),
        boot,
        sessions: kick.sessions(),
        lease_remaining_ms: kick.lease_remaining().as_millis(),
    };
    // A connection without a token ends by a reset after a short time. `close` ends the connection
    // of a health check in the regular way before that reset.
    (code, [(header::CONNECTION, "close")], Json(health)).into_response()
}
