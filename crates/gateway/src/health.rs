//! The health of a node: `GET /healthz`, on the port for clients and on the one for administrators.
//! It tells a load balancer whether this node takes clients.

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use distlock_kickout::{KickOut, NodeId, NodeState};
use serde::Serialize;

#[derive(Serialize)]
struct Health<'a> {
    status: &'a str,
    node: &'a NodeId,
    boot: Option<u64>,
    sessions: usize,
    lease_remaining_ms: u128,
}

/// The answer to a health check.
pub(crate) fn health(kick: &KickOut) -> Response {
    let boot = kick.boot().map(distlock_kickout::Boot::get);
    let (code, status) = match (boot, kick.state()) {
        (Some(_), NodeState::Up) => (StatusCode::OK, "up"),
        // The load balancer must send no more clients here.
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
    // A health check shows no token, and connections without a token end silently after a short
    // time. So this one closes at once, in order.
    (code, [(header::CONNECTION, "close")], Json(health)).into_response()
}
