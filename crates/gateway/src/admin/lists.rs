//! The lists of sessions, bans and revocations.
//!
//! Invariant of this module: the size of an answer is bounded, and so is the number of records that
//! an answer about sessions or bans reads. A list is sorted by account, so an entry that is there
//! from the first page to the last is listed once.

use std::net::IpAddr;

use axum::{Json, extract::State};
use distlock_core::excerpt;
use distlock_kickout::{Banned, Class, Device, Found, NodeId, Page, Pending, SessionFilter, Uid};
use serde::{Deserialize, Serialize};

use super::{
    AdminContext,
    http::{HttpError, PageSize, QueryParams},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionsQuery {
    /// The beginning of the accounts, which follows the rules of an account.
    prefix: Option<Uid>,
    device: Option<Device>,
    class: Option<Class>,
    node: Option<NodeId>,
    address: Option<ClientAddress>,
    /// The `next` of the page before.
    after: Option<Uid>,
    #[serde(default)]
    limit: PageSize,
}

/// The address of a client, for a search.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct ClientAddress(IpAddr);

impl TryFrom<String> for ClientAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = text
            .parse()
            .map(|address: IpAddr| Self(address.to_canonical()));
        read.map_err(|_| format!("address is \"{}\": an IP address is needed", excerpt(&text)))
    }
}

#[derive(Serialize)]
pub(super) struct SessionsAnswer {
    sessions: Vec<Found>,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Uid>,
}

/// `GET /v1/sessions`: the sessions of all nodes that the query selects, sorted by account.
pub(super) async fn list_sessions(
    State(admin): State<AdminContext>,
    QueryParams(query): QueryParams<SessionsQuery>,
) -> Result<Json<SessionsAnswer>, HttpError> {
    let filter = SessionFilter {
        uid_prefix: query.prefix.map_or_else(String::new, String::from),
        device: query.device,
        class: query.class,
        node: query.node,
        address: query.address.map(|it| it.0),
    };
    let _turn = admin.turns.take().await?;
    let sessions = admin
        .kick
        .online(&filter, query.after.as_ref(), query.limit.0);
    let Page { entries, next, .. } = sessions.await?;
    Ok(Json(SessionsAnswer {
        sessions: entries,
        next,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BansQuery {
    /// The beginning of the accounts, which follows the rules of an account.
    prefix: Option<Uid>,
    /// The `next` of the page before.
    after: Option<Uid>,
    #[serde(default)]
    limit: PageSize,
}

#[derive(Serialize)]
pub(super) struct BansAnswer {
    bans: Vec<Banned>,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Uid>,
}

/// `GET /v1/bans`: the bans that hold, sorted by account.
pub(super) async fn list_bans(
    State(admin): State<AdminContext>,
    QueryParams(query): QueryParams<BansQuery>,
) -> Result<Json<BansAnswer>, HttpError> {
    let prefix = query.prefix.as_ref().map_or("", Uid::as_str);
    let _turn = admin.turns.take().await?;
    let bans = admin.kick.bans(prefix, query.after.as_ref(), query.limit.0);
    let Page { entries, next, .. } = bans.await?;
    Ok(Json(BansAnswer {
        bans: entries,
        next,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevocationsQuery {
    #[serde(default)]
    limit: PageSize,
}

#[derive(Serialize)]
pub(super) struct RevocationsAnswer {
    revocations: Vec<Pending>,
    /// How many there are, listed or not.
    total: usize,
}

/// `GET /v1/revocations`: sessions whose end is not confirmed yet. Reads the whole directory.
pub(super) async fn list_revocations(
    State(admin): State<AdminContext>,
    QueryParams(query): QueryParams<RevocationsQuery>,
) -> Result<Json<RevocationsAnswer>, HttpError> {
    let _turn = admin.turns.take().await?;
    let (revocations, total) = admin.kick.revocations(query.limit.0).await?;
    Ok(Json(RevocationsAnswer { revocations, total }))
}
