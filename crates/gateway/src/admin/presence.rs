//! Who is online: `POST /v1/presence`.
//!
//! This module tells nothing of the addresses of clients and nodes.

use axum::{
    extract::{ConnectInfo, State},
    response::Response,
};
use distlock_kickout::{Class, Device, Generation, Location, NodeId, SessionId, Uid};
use distlock_listen::ConnectionHandle;
use serde::{Deserialize, Serialize};

use super::{
    AdminContext,
    http::{HttpError, JsonBody},
    turn::Turn,
};
use crate::accounts::Accounts;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PresenceBody {
    uids: Accounts,
}

#[derive(Serialize)]
struct PresenceAnswer {
    accounts: Vec<AccountPresence>,
}

#[derive(Serialize)]
struct AccountPresence {
    uid: Uid,
    /// `None` if it is not known.
    online: Option<bool>,
    /// The sessions, the newest first.
    sessions: Vec<PresentSession>,
    /// Why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct PresentSession {
    session: SessionId,
    node: NodeId,
    r#gen: Generation,
    device: Device,
    class: Class,
    since_ms: u64,
}

impl AccountPresence {
    fn new(uid: &Uid, found: distlock_core::Result<Vec<Location>>) -> Self {
        let (sessions, error) = match found {
            Ok(sessions) => (sessions, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self {
            uid: uid.clone(),
            online: error.is_none().then_some(!sessions.is_empty()),
            sessions: sessions.into_iter().map(PresentSession::from).collect(),
            error,
        }
    }
}

impl From<Location> for PresentSession {
    fn from(it: Location) -> Self {
        Self {
            session: it.key.session,
            node: it.key.node,
            r#gen: it.r#gen,
            device: it.device,
            class: it.class,
            since_ms: it.since_ms,
        }
    }
}

/// `POST /v1/presence`: the sessions of many accounts on all nodes.
pub(super) async fn show_presence(
    State(admin): State<AdminContext>,
    ConnectInfo(reader): ConnectInfo<ConnectionHandle>,
    JsonBody(asked): JsonBody<PresenceBody>,
) -> Result<Response, HttpError> {
    let turn = Turn::take(&admin, reader).await?;
    let uids = asked.uids.uids();
    let found = admin.kick.presence(uids).await?;
    let accounts = uids.iter().zip(found);
    Ok(turn.answer(&PresenceAnswer {
        accounts: accounts
            .map(|(uid, found)| AccountPresence::new(uid, found))
            .collect(),
    }))
}
