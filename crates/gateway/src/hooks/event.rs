//! An event of a web hook: what happened, and how a receiver gets it.

use std::sync::Arc;

use distlock_kickout::{AccountChange, AccountNews, Change, Code, NodeId};
use serde::Serialize;

use crate::config::HookEvent;

/// What happened. All receivers and the node's own lists share it.
#[derive(Clone, Debug)]
pub(super) enum Happened {
    Session(Arc<Change>),
    Account(Arc<AccountChange>),
}

#[derive(Serialize)]
struct Payload<'a> {
    r#type: &'static str,
    timestamp: String,
    id: String,
    node: &'a NodeId,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Session(&'a Change),
    Account(&'a AccountChange),
}

impl Happened {
    /// The kind of the event; `None` for one that no receiver knows.
    pub(super) fn event(&self) -> Option<HookEvent> {
        Some(match self {
            Self::Session(change) if change.online => HookEvent::Login,
            Self::Session(change) => match change.code {
                Some(Code::Superseded | Code::Replaced) => HookEvent::Takeover,
                _ => HookEvent::End,
            },
            Self::Account(change) => match change.news {
                AccountNews::Stored { .. } => HookEvent::Stored,
                AccountNews::Banned { .. } => HookEvent::Banned,
                AccountNews::Unbanned { .. } => HookEvent::Unbanned,
                _ => return None,
            },
        })
    }

    /// The id of the event, the same at every attempt. It has no full stop, so that the id and the
    /// time in a signature cannot be confused.
    pub(super) fn id(&self) -> String {
        match self {
            Self::Session(change) => change.id,
            Self::Account(change) => change.id,
        }
        .to_string()
    }

    /// The body of the request, the same at every attempt.
    pub(super) fn body(&self, event: HookEvent, node: &NodeId) -> Vec<u8> {
        let (at_ms, data) = match self {
            Self::Session(change) => (change.at_ms, Data::Session(change)),
            Self::Account(change) => (change.at_ms, Data::Account(change)),
        };
        let at = i64::try_from(at_ms).ok();
        let at = at.and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
        let payload = Payload {
            r#type: event.name(),
            timestamp: format!("{:.3}", at.unwrap_or_default()),
            id: self.id(),
            node,
            data,
        };
        // Texts and numbers always have a JSON.
        serde_json::to_vec(&payload).unwrap_or_default()
    }
}
