//! The audit log over HTTP: the actor of a request, and the answer with the log's entries.

use axum::{
    Json,
    extract::{ConnectInfo, FromRequestParts, State},
    http::request::Parts,
};
use distlock_core::{Error, ErrorKind};
use serde::Serialize;

use super::{
    AdminContext,
    audit_log::{Actor, Entry, MAX_ENTRIES},
    http::{HttpError, LimitQuery, QueryParams},
};
use crate::listen::ConnectionHandle;

/// The header in which administrators name themselves. The node does not check that name.
const ACTOR_HEADER: &str = "x-distlock-actor";

impl<S: Send + Sync> FromRequestParts<S> for Actor {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, HttpError> {
        let name = match parts.headers.get(ACTOR_HEADER).map(|value| value.to_str()) {
            None | Some(Ok("")) => None,
            Some(Ok(name)) if name.len() <= 128 => Some(name.to_owned()),
            Some(_) => {
                return Err(HttpError::from(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("header {ACTOR_HEADER} is longer than 128 bytes or not plain text"),
                )));
            }
        };
        let from = parts.extensions.get::<ConnectInfo<ConnectionHandle>>();
        Ok(Self {
            name,
            from: from.map_or_else(String::new, |from| from.0.peer().to_string()),
        })
    }
}

/// The answer to `GET /v1/audit`.
#[derive(Serialize)]
pub(super) struct AuditAnswer {
    entries: Vec<Entry>,
    /// How many there are, listed or not.
    total: usize,
    /// The keys of records that cannot be read. Their entries are missing in this answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

/// `GET /v1/audit`: the entries of all nodes, newest first.
pub(super) async fn list_audit(
    State(admin): State<AdminContext>,
    QueryParams(query): QueryParams<LimitQuery>,
) -> Result<Json<AuditAnswer>, HttpError> {
    let (mut entries, unreadable) = admin.audit.entries().await?;
    let total = entries.len();
    entries.truncate(query.limit.unwrap_or(MAX_ENTRIES));
    Ok(Json(AuditAnswer {
        entries,
        total,
        unreadable: unreadable.iter().map(ToString::to_string).collect(),
    }))
}
