//! The check of a call between nodes, before anything of its body is decoded.
//!
//! This module keeps this order: the token first, then the body against the token, then the single
//! use of the token. This module must never decode a body that its token does not cover.
//!
//! The module remembers every call by the id of its token, until the token is refused for its age
//! (at most 70 s), and must never forget a token that is still valid. After a restart the node has
//! other sessions, so repeated calls about earlier ones have no effect.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    net::SocketAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{Extensions, HeaderValue, header},
    middleware::Next,
    response::Response,
};
use distlock_core::{Clock as _, SystemClock, sync::Mutex};
use distlock_kickout::NodeId;
use distlock_listen::{ConnectionHandle, is_late_body};
use tonic::Status;
use uuid::Uuid;

use super::wire::{CALLS_HEADER, CALLS_VERSION, MAX_MESSAGE};
use crate::token::{CheckedCall, PeerKey};

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
    metrics::counter!("distlock_peer_calls_refused_total").increment(1);
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

/// Most calls that are remembered at one time: 26,000 calls a second for 40 s. An entry takes at
/// most 40 bytes, so all entries take at most 42 MB.
const MAX_TOKENS: usize = 1 << 20;
/// Seconds whose tokens are forgotten together.
const SLOT_SECONDS: u64 = 10;

/// The ids of used tokens, by the time slot in which the last of them ends.
#[derive(Debug, Default)]
pub(super) struct UsedTokens(Mutex<BTreeMap<u64, HashSet<Uuid>>>);

/// The reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenRefusal {
    UsedBefore,
    TooMany,
}

impl UsedTokens {
    /// Records that a call was made with this token.
    pub(super) fn record(&self, token: &CheckedCall, now: SystemTime) -> Result<(), TokenRefusal> {
        self.record_with_limit(token.id, token.until, now, MAX_TOKENS)
    }

    fn record_with_limit(
        &self,
        id: Uuid,
        until: u64,
        now: SystemTime,
        limit: usize,
    ) -> Result<(), TokenRefusal> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut slots = self.0.lock();
        // A slot is removed after its last second. Until then its tokens may be valid.
        while let Some(first) = slots.first_entry()
            && *first.key() < now / SLOT_SECONDS
        {
            first.remove();
        }
        // Two slots cannot hold the same token, because the signature covers the token's time.
        let slot = until / SLOT_SECONDS;
        if slots.get(&slot).is_some_and(|ids| ids.contains(&id)) {
            return Err(TokenRefusal::UsedBefore);
        }
        if slots.values().map(HashSet::len).sum::<usize>() >= limit {
            return Err(TokenRefusal::TooMany);
        }
        slots.entry(slot).or_default().insert(id);
        Ok(())
    }
}

impl TokenRefusal {
    /// The answer to the caller. With either refusal, the call had no effect.
    pub(super) fn to_status(self) -> Status {
        let says = self.to_string();
        match self {
            Self::UsedBefore => Status::unauthenticated(says),
            Self::TooMany => Status::resource_exhausted(says),
        }
    }
}

impl fmt::Display for TokenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UsedBefore => f.write_str("its token was used before: it is good for one call"),
            Self::TooMany => write!(
                f,
                "more than {MAX_TOKENS} calls came within 70 s: too many to check"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: u64 = 1_000_005;

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn a_token_is_remembered_exactly_as_long_as_it_is_valid() {
        let used = UsedTokens::default();
        let held = || -> usize { used.0.lock().values().map(HashSet::len).sum() };
        for until in [NOW, NOW + 30, NOW + 60] {
            let id = Uuid::new_v4();
            let take = |second| used.record_with_limit(id, until, at(second), MAX_TOKENS);
            assert_eq!(take(NOW), Ok(()));
            for second in [NOW, until] {
                assert_eq!(
                    take(second),
                    Err(TokenRefusal::UsedBefore),
                    "{until} at {second}"
                );
            }
            used.record_with_limit(
                Uuid::new_v4(),
                until + 70,
                at(until + SLOT_SECONDS),
                MAX_TOKENS,
            )
            .unwrap();
            assert_eq!(held(), 1, "{until} is forgotten");
            *used.0.lock() = BTreeMap::new();
        }
    }

    #[test]
    fn calls_beyond_the_memory_limit_are_refused() {
        let used = UsedTokens::default();
        let take = |now| used.record_with_limit(Uuid::new_v4(), now + 30, at(now), 3);
        for _ in 0..3 {
            assert_eq!(take(NOW), Ok(()));
        }
        assert_eq!(take(NOW), Err(TokenRefusal::TooMany));
        assert_eq!(take(NOW + 50), Ok(()), "the others have ended");
    }
}
