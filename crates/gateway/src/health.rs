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
    let (code, status) = match (boot, kick.state()) {
        (Some(_), NodeState::Up) if !kick.store_takes_changes() => (StatusCode::OK, "degraded"),
        (Some(_), NodeState::Up) => (StatusCode::OK, "up"),
        // The load balancer must send no more clients to this node.
        (Some(_), _) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (None, _) => (StatusCode::SERVICE_UNAVAILABLE, "fenced"),
    };
    let health = Health {
        status,
        node: kick.node(),
        boot,
        sessions: kick.sessions(),
        lease_remaining_ms: kick.lease_remaining().as_millis(),
    };
    // A connection without a token ends by a reset after a short time. `close` ends the connection
    // of a health check in the regular way before that reset.
    (code, [(header::CONNECTION, "close")], Json(health)).into_response()
}
