//! The operator's part in logins, messages and saves, by web services: may this login go on, may
//! this account send to that one, and save after a session.
//!
//! This module must never let a login or a message pass when the answer is unknown, and never count
//! a save as done then.

use std::fmt;

use async_trait::async_trait;
use distlock_core::Result;
use distlock_kickout::{
    Allowed, Class, Code, Denied, Device, Generation, Intent, Login, NodeId, Profiles, Session,
    SessionId, Uid,
};
use serde::Serialize;

use super::web_service::{Decision, WebService};

/// The reason for a client when the service gives none.
const SEND_REFUSED: &str = "you may not send to this account";

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
            Decision::Deny(reason) => {
                Permission::Refused(reason.unwrap_or_else(|| SEND_REFUSED.into()))
            }
        })
    }
}

/// The reason for a client when the service gives none.
const LOGIN_REFUSED: &str = "the account may not log in now";

/// A web service that checks each login.
#[derive(Debug)]
pub(crate) struct WebProfiles {
    service: WebService,
    node: NodeId,
}

#[derive(Serialize)]
struct LoginQuestion<'a> {
    uid: &'a Uid,
    device: &'a Device,
    class: &'a Class,
    intent: Intent,
    node: &'a NodeId,
}

impl WebProfiles {
    pub(crate) const fn new(service: WebService, node: NodeId) -> Self {
        Self { service, node }
    }
}

#[async_trait]
impl Profiles for WebProfiles {
    async fn load(&self, login: &Login) -> Result<Allowed> {
        let question = LoginQuestion {
            uid: &login.uid,
            device: &login.device,
            class: &login.class,
            intent: login.intent,
            node: &self.node,
        };
        Ok(match self.service.ask(&question).await? {
            Decision::Allow => Allowed::Yes,
            Decision::Deny(reason) => {
                let mut denied = Denied::new(Code::Denied);
                denied.reason = reason.unwrap_or_else(|| LOGIN_REFUSED.into());
                Allowed::No(denied)
            }
        })
    }
}

/// A web service that saves after each session of this node.
#[derive(Clone, Debug)]
pub(crate) struct WebSaver(WebService);

#[derive(Serialize)]
struct SaveRequest<'a> {
    uid: &'a Uid,
    device: &'a Device,
    class: &'a Class,
    session: SessionId,
    node: &'a NodeId,
    /// The service refuses a save with a lower generation than that of the last save.
    r#gen: Generation,
}

impl WebSaver {
    pub(crate) const fn new(service: WebService) -> Self {
        Self(service)
    }

    /// Asks the service to save. Tells the flow if the service has saved within its time.
    pub(crate) async fn save(&self, session: &Session) {
        let request = SaveRequest {
            uid: session.uid(),
            device: session.device(),
            class: session.class(),
            session: session.key().session,
            node: &session.key().node,
            r#gen: session.generation(),
        };
        match self.0.ask(&request).await {
            Ok(Decision::Allow) => session.saved(),
            Ok(Decision::Deny(_)) => {
                tracing::warn!(
                    uid = ?session.uid(),
                    "the save service refused to save after a session"
                );
            }
            Err(error) => {
                tracing::warn!(
                    uid = ?session.uid(), %error,
                    "the save service did not save after a session; the next login learns that"
                );
            }
        }
    }
}
