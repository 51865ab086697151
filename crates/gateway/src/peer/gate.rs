//! What a call of another node must show before anything of its body is decoded.

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::Response,
};
use distlock_core::{Clock as _, Error, SystemClock};
use distlock_kickout::NodeId;
use tonic::Status;

use super::{CALLS, MAX_MESSAGE};
use crate::{listen::LineHandle, token::PeerKey};

/// In front of each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

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
        let log = |error: &Error| tracing::warn!(%error, "a call of another node was refused");
        let token = request.headers().get(header::AUTHORIZATION);
        let token = token
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
            .ok_or_else(refused)?;
        let (to, now) = (self.node.as_str(), SystemClock.wall());
        let body = match self.key.check(token, to, request.uri().path(), now) {
            Ok(body) => Some(body),
            // A node of the version before; its tokens name no body.
            Err(_) if self.key.check_as_before(token, now).is_ok() => None,
            Err(error) => {
                log(&error);
                return Err(refused());
            }
        };
        let line = request.extensions().get::<LineHandle>().cloned();
        if let Some(line) = &line {
            line.logged_in();
        }
        let Some(body) = body else {
            return Ok(request);
        };
        let (head, bytes) = request.into_parts();
        let bytes = to_bytes(bytes, MAX_MESSAGE + PREFIX).await;
        let bytes = bytes.map_err(|_| Status::resource_exhausted("the message is too long"))?;
        if !body.is_of(&bytes) {
            tracing::warn!("a call of another node was refused: its token is for another body");
            return Err(refused());
        }
        Ok(Request::from_parts(head, Body::from(bytes)))
    }
}
