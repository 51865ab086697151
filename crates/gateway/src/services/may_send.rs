//! The check of messages: whether one account may send to another.
//!
//! This module must never let a message pass when the answer is unknown.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use distlock_core::Result;
use distlock_kickout::Uid;
use serde::Serialize;

use super::web_service::{Decision, WebService};

/// Longest wait for an answer. The wait is short, because the client's next frame waits as well.
pub(crate) const MAX_MAY_SEND: Duration = Duration::from_secs(10);
/// The reason for a client when the service gives none.
const REFUSED: &str = "you may not send to this account";

/// Decides whether one account may send to another. For example, it may allow friends, or the
/// members of a room, and refuse accounts that were blocked.
///
/// The check runs for each message of a client, before the message is delivered or stored. Messages
/// of servers with the `send_token` are not checked.
#[async_trait]
pub trait MaySend: fmt::Debug + Send + Sync + 'static {
    /// Returns whether one account may send to another.
    ///
    /// # Errors
    /// Any failure of the check. The client then gets `unavailable`, and the message is neither
    /// delivered nor stored. An answer that takes longer than 10 seconds has the same effect.
    ///
    /// # Cancel safety
    /// The future is dropped when the sender leaves.
    async fn may_send(&self, from: &Uid, to: &Uid) -> Result<Permission>;
}

/// The decision about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permission {
    /// The message may be sent.
    Granted,
    /// The message may not be sent; the sender gets this reason.
    Refused(String),
}

/// A web service that checks each message.
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
