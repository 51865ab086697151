//! The bearer tokens of administrators and of sending servers.
//!
//! Invariant of this module: each wrong token is counted, logged and delayed. This module must
//! never delay or log a right token.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::http::{HeaderMap, header};
use distlock_core::Clock;

use crate::{config::Secret, metering};

/// Delay of the answer to a wrong token. A caller that waits for the answers makes one guess a
/// second on each of its connections. A right token is not delayed.
const WRONG_TOKEN_DELAY: Duration = Duration::from_secs(1);

/// A token of the configuration. Wrong tokens are counted, logged and delayed.
#[derive(Clone)]
pub(crate) struct BearerToken {
    token: Arc<Secret>,
    /// The name of the token in the log and in the metric.
    name: &'static str,
    clock: Arc<dyn Clock>,
}

impl BearerToken {
    /// The token of administrators.
    pub(crate) fn for_admin(token: Secret, clock: Arc<dyn Clock>) -> Self {
        Self {
            token: Arc::new(token),
            name: "admin",
            clock,
        }
    }

    /// The token of servers that send.
    pub(crate) fn for_senders(token: Secret, clock: Arc<dyn Clock>) -> Self {
        Self {
            name: "send",
            ..Self::for_admin(token, clock)
        }
    }

    /// Checks the bearer token in the headers of a request in the same way as
    /// [`verify`](Self::verify). Without a bearer token the answer is `false` at once.
    pub(crate) async fn verify_request(&self, headers: &HeaderMap, from: IpAddr) -> bool {
        let shown = headers.get(header::AUTHORIZATION);
        let shown = shown.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        match shown {
            Some(given) => self.verify(given, from).await,
            None => false,
        }
    }

    /// Whether a token is the right one. A wrong token is counted and logged, and the answer is
    /// delayed by [`WRONG_TOKEN_DELAY`].
    pub(crate) async fn verify(&self, given: &str, from: IpAddr) -> bool {
        if self.token.matches(given) {
            return true;
        }
        metering::count_refused_token(self.name);
        tracing::warn!(
            target: "distlock::audit",
            %from,
            "a wrong {} token was shown",
            self.name
        );
        self.clock.sleep(WRONG_TOKEN_DELAY).await;
        false
    }
}
