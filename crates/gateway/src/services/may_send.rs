//! Who may send to whom.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use distlock_core::Result;
use distlock_kickout::Uid;
use serde::Serialize;

use super::web_service::{Decision, WebService};

/// Longest wait for an answer: a client's next frame waits for it as well.
pub(crate) const MAX_MAY_SEND: Duration = Duration::from_secs(10);
/// What a client is told without a reason of the service's.
const REFUSED: &str = "you may not send to this account";

/// Says who may send to whom: friends, the members of a room, nobody who was blocked.
///
/// It is asked about each message of a client, before the message goes anywhere. Servers that send
/// with the `send_token` are not asked about.
#[async_trait]
pub trait MaySend: fmt::Debug + Send + Sync + 'static {
    /// Says whether one account may send to another.
    ///
    /// # Errors
    /// Whatever kept it from finding out: the client is told `unavailable`, and the message went
    /// nowhere. So is one who waits for an answer for longer than 10 seconds.
    ///
    /// # Cancel safety
    /// Dropped when the sender goes away.
    async fn may_send(&self, from: &Uid, to: &Uid) -> Result<Permission>;
}

/// Whether a message may go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permission {
    /// It may.
    Granted,
    /// It may not, for this reason, which the sender is told.
    Refused(String),
}

/// A web service that is asked about each message.
#[derive(Debug)]
pub(crate) struct WebMaySend(WebService);

#[derive(Serialize)]
struct MaySendQuestion<'a> {
    from: &'a Uid,
    to: &'a Uid,
}

impl WebMaySend {
    pub(crate) const fn new(service: WebService) -> Self {
        Self(service)
    }
}

#[async_trait]
impl MaySend for WebMaySend {
    async fn may_send(&self, from: &Uid, to: &Uid) -> Result<Permission> {
        Ok(match self.0.ask(&MaySendQuestion { from, to }).await? {
            Decision::Allow => Permission::Granted,
            Decision::Deny(reason) => Permission::Refused(reason.unwrap_or_else(|| REFUSED.into())),
        })
    }
}
