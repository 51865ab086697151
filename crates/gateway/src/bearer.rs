//! Bearer tokens in the headers of requests.
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

/// The bearer token that the headers of a request show.
pub(crate) fn shown_token(headers: &HeaderMap) -> Option<&str> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    shown.strip_prefix("Bearer ")
}

/// What follows when somebody shows a wrong token of one kind.
#[derive(Clone)]
pub(crate) struct WrongToken {
    /// The name of the kind in the log and in the metric.
    name: &'static str,
    clock: Arc<dyn Clock>,
}

impl WrongToken {
    pub(crate) fn new(name: &'static str, clock: Arc<dyn Clock>) -> Self {
        Self { name, clock }
    }

    /// Counts and logs a wrong token, and delays its answer by [`WRONG_TOKEN_DELAY`].
    pub(crate) async fn punish(&self, from: IpAddr) {
        metering::count_refused_token(self.name);
        tracing::warn!(
            target: "distlock::audit",
            %from,
            "a wrong {} token was shown",
            self.name
        );
        self.clock.sleep(WRONG_TOKEN_DELAY).await;
    }
}

/// The token of servers that send.
#[derive(Clone)]
pub(crate) struct BearerToken {
    token: Arc<Secret>,
    wrong: WrongToken,
}

impl BearerToken {
    pub(crate) fn for_senders(token: Secret, clock: Arc<dyn Clock>) -> Self {
        Self {
            token: Arc::new(token),
            wrong: WrongToken::new("send", clock),
        }
    }

    /// Whether the headers of a request show the token. A wrong token is counted, logged and
    /// delayed; without a token the answer is `false` at once.
    pub(crate) async fn verify_request(&self, headers: &HeaderMap, from: IpAddr) -> bool {
        let Some(given) = shown_token(headers) else {
            return false;
        };
        if self.token.matches(given) {
            return true;
        }
        self.wrong.punish(from).await;
        false
    }
}
