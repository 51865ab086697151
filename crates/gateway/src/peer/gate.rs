//! What a call of another node must show before anything of its body is decoded.

use std::fmt;

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::Response,
};
use distlock_core::{Clock as _, SystemClock};
use distlock_kickout::NodeId;
use tonic::Status;

use super::{CALLS, MAX_MESSAGE};
use crate::{
    listen::LineHandle,
    token::{PeerKey, Promised},
};

/// In front of each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The node whose token a call showed.
#[derive(Clone, Debug)]
pub(super) struct Caller(pub(super) String);

#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) node: NodeId,
    pub(super) key: PeerKey,
}

/// Lets in nodes that know the common key. The token is checked before the body is read, and the
/// body against the token before it is decoded.
pub(super) async fn admit(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let mut response = match gate.checked(request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_http(),
    };
    let version = HeaderValue::from_static("1");
    response.headers_mut().insert(CALLS, version);
    response
}

impl Gate {
    async fn checked(&self, request: Request) -> Result<Request, Status> {
        let refused = || Status::unauthenticated("a peer token is needed");
        let log = |why: &dyn fmt::Display| {
            metrics::counter!("distlock_peer_refused_total").increment(1);
            tracing::warn!(%why, "a call of another node was refused");
        };
        let token = request.headers().get(header::AUTHORIZATION);
        let token = token
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
            .ok_or_else(refused)?;
        let (to, now) = (self.node.as_str(), SystemClock.wall());
        let promised = match self.key.check(token, to, request.uri().path(), now) {
            Ok(promised) => Some(promised),
            // A node of the version before; its tokens name no body.
            Err(_) if self.key.check_as_before(token, now).is_ok() => None,
            Err(error) => {
                log(&error);
                return Err(refused());
            }
        };
        let (mut head, body) = request.into_parts();
        let mut body = Body::new(body);
        if let Some(Promised { from, hash }) = promised {
            let bytes = to_bytes(body, MAX_MESSAGE + PREFIX).await;
            let bytes = bytes.map_err(|_| Status::resource_exhausted("the message is too long"))?;
            if !hash.is_of(&bytes) {
                log(&"its token is for another body");
                return Err(refused());
            }
            head.extensions.insert(Caller(from));
            body = Body::from(bytes);
        }
        // Only now: who has read a token off the wire has not shown that it is a node.
        if let Some(line) = head.extensions.get::<LineHandle>() {
            line.logged_in();
        }
        Ok(Request::from_parts(head, body))
    }
}
