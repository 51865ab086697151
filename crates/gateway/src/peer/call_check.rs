//! The check of a call between nodes, before anything of its body is decoded.
//!
//! This module keeps this order: the token first, then the body against the token, then the single
//! use of the token. This module must never decode a body that its token does not cover.

use std::{fmt, net::SocketAddr, sync::Arc};

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{Extensions, HeaderValue, header},
    middleware::Next,
    response::Response,
};
use distlock_core::{Clock as _, SystemClock};
use distlock_kickout::NodeId;
use tonic::Status;

use super::{
    protocol::{CALLS_HEADER, CALLS_VERSION, MAX_MESSAGE},
    used_tokens::UsedTokens,
};
use crate::{
    listen::{ConnectionHandle, is_late_body},
    token::PeerKey,
};

/// Bytes in front of each message: one byte says whether the message is compressed, four bytes hold
/// its length.
const PREFIX: usize = 5;

/// The node whose token a call showed.
#[derive(Clone, Debug)]
pub(super) struct Caller(pub(super) String);

/// The keys and the used tokens against which a node checks calls.
#[derive(Clone, Debug)]
pub(super) struct CallChecker {
    node: NodeId,
    key: PeerKey,
    used: Arc<UsedTokens>,
}

/// Admits calls of nodes that know the common key. The token is checked before the body is read,
/// and the body is checked against the token before anything decodes the body.
pub(super) async fn check_call(
    State(checker): State<CallChecker>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match checker.check(request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_http(),
    };
    let version = HeaderValue::from_static(CALLS_VERSION);
    response.headers_mut().insert(CALLS_HEADER, version);
    response
}

/// The address that a call comes from.
pub(super) fn address_of(extensions: &Extensions) -> Option<SocketAddr> {
    extensions
        .get::<ConnectionHandle>()
        .map(ConnectionHandle::peer)
}

/// Logs and counts a call that is refused before any effect. `caller` is the name in the call's
/// token, which is not proven if the token itself is refused.
pub(super) fn log_refused_call(
    caller: Option<&str>,
    address: Option<SocketAddr>,
    why: &dyn fmt::Display,
) {
    metrics::counter!("distlock_peer_refused_total").increment(1);
    let caller = caller.unwrap_or("unknown");
    let address = address.map(tracing::field::display);
    tracing::warn!(caller, address, %why, "a call of another node was refused");
}

impl CallChecker {
    pub(super) fn new(node: NodeId, key: PeerKey) -> Self {
        let used = Arc::default();
        Self { node, key, used }
    }

    async fn check(&self, request: Request) -> Result<Request, Status> {
        let refused = || {
            let needed =
                format!("a token for this call is needed ({CALLS_HEADER}: {CALLS_VERSION})");
            Status::unauthenticated(needed)
        };
        let address = address_of(request.extensions());
        let token = request.headers().get(header::AUTHORIZATION);
        let Some(token) = token.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
        else {
            log_refused_call(None, address, &"it shows no token");
            return Err(refused());
        };
        let (to, now) = (self.node.as_str(), SystemClock.wall());
        let call = self.key.check(token, to, request.uri().path(), now);
        let call = call.map_err(|error| {
            let claimed = PeerKey::unproven_caller(token);
            log_refused_call(claimed.as_ref().map(NodeId::as_str), address, &error);
            refused()
        })?;
        let log = |why: &dyn fmt::Display| log_refused_call(Some(&call.from), address, why);
        let (mut head, body) = request.into_parts();
        let bytes = to_bytes(Body::new(body), MAX_MESSAGE + PREFIX).await;
        let bytes = bytes.map_err(|error| {
            if is_late_body(&error) {
                return Status::deadline_exceeded(error.to_string());
            }
            Status::resource_exhausted("the message is too long")
        })?;
        if !call.hash.matches(&bytes) {
            log(&"its token is for another body");
            return Err(refused());
        }
        // This check comes last. Otherwise somebody who listens on the network could use up a token
        // with another body.
        self.used.record(&call, now).map_err(|why| {
            log(&why);
            why.to_status()
        })?;
        head.extensions.insert(Caller(call.from));
        // The connection is marked only now. Somebody who listens on the network may know a token,
        // and a known token does not show that the caller is a node.
        if let Some(connection) = head.extensions.get::<ConnectionHandle>() {
            connection.mark_logged_in();
        }
        Ok(Request::from_parts(head, Body::from(bytes)))
    }
}
