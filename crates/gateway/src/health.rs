//! Whether clients may be sent to this node: `GET /healthz`, on the clients' port and on that of
//! administrators.

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

/// Whether clients may be sent to this node.
pub(crate) fn health(kick: &KickOut) -> Response {
    let boot = kick.boot().map(distlock_kickout::Boot::get);
    let (code, status) = match (boot, kick.state()) {
        (Some(_), NodeState::Up) => (StatusCode::OK, "up"),
        // Whoever spreads the load must send nobody here any more.
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
    // Nobody shows a token here, and the connections of strangers end without a word.
    (code, [(header::CONNECTION, "close")], Json(health)).into_response()
}
