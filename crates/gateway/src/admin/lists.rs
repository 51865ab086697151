//! The lists of sessions, bans and revocations.
//!
//! Invariant of this module: the size of an answer is bounded, and so is the number of records that
//! an answer about sessions or bans reads. A list is sorted by account, so an entry that is there
//! from the first page to the last is listed once.

use std::net::IpAddr;

use axum::{
    extract::{ConnectInfo, State},
    response::Response,
};
use distlock_core::excerpt;
use distlock_kickout::{Class, Device, NodeId, Page, Pending, SessionFilter, Uid};
use distlock_listen::ConnectionHandle;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap as _};

use super::{
    AdminContext,
    http::{HttpError, PageSize, QueryParams},
    turn::Turn,
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

/// A page of a list: the entries under the name of the list, and `next`, the value of `after` for
/// the next page, which is absent on the last page.
struct PageAnswer<T>(&'static str, Page<T>);

impl<T: Serialize> Serialize for PageAnswer<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self(list, page) = self;
        let mut members = to.serialize_map(None)?;
        members.serialize_entry(list, &page.entries)?;
        if let Some(next) = &page.next {
            members.serialize_entry("next", next)?;
        }
        members.end()
    }
}

/// `GET /v1/sessions`: the sessions of all nodes that the query selects, sorted by account.
pub(super) async fn list_sessions(
    State(admin): State<AdminContext>,
    ConnectInfo(reader): ConnectInfo<ConnectionHandle>,
    QueryParams(query): QueryParams<SessionsQuery>,
) -> Result<Response, HttpError> {
    let filter = SessionFilter {
        uid_prefix: query.prefix.map_or_else(String::new, String::from),
        device: query.device,
        class: query.class,
        node: query.node,
        address: query.address.map(|it| it.0),
    };
    let turn = Turn::take(&admin, reader).await?;
    let (after, most) = (query.after.as_ref(), query.limit.0);
    let page = admin.kick.online(&filter, after, most).await?;
    Ok(turn.answer(&PageAnswer("sessions", page)))
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

/// `GET /v1/bans`: the bans that hold, sorted by account.
pub(super) async fn list_bans(
    State(admin): State<AdminContext>,
    ConnectInfo(reader): ConnectInfo<ConnectionHandle>,
    QueryParams(query): QueryParams<BansQuery>,
) -> Result<Response, HttpError> {
    let prefix = query.prefix.as_ref().map_or("", Uid::as_str);
    let turn = Turn::take(&admin, reader).await?;
    let (after, most) = (query.after.as_ref(), query.limit.0);
    let page = admin.kick.bans(prefix, after, most).await?;
    Ok(turn.answer(&PageAnswer("bans", page)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RevocationsQuery {
    #[serde(default)]
    limit: PageSize,
}

#[derive(Serialize)]
struct RevocationsAnswer {
    revocations: Vec<Pending>,
    /// How many there are, listed or not.
    total: usize,
}

/// `GET /v1/revocations`: sessions whose end is not confirmed yet. Reads the whole directory.
pub(super) async fn list_revocations(
    State(admin): State<AdminContext>,
    ConnectInfo(reader): ConnectInfo<ConnectionHandle>,
    QueryParams(query): QueryParams<RevocationsQuery>,
) -> Result<Response, HttpError> {
    let turn = Turn::take(&admin, reader).await?;
    let (revocations, total) = admin.kick.revocations(query.limit.0).await?;
    Ok(turn.answer(&RevocationsAnswer { revocations, total }))
}
