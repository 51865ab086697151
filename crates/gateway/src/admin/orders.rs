//! Orders about accounts, their sessions and nodes: look up, kick, ban, drain, and release a lock
//! by force.

use std::time::Duration;

use axum::{
    Json,
    extract::{Path, State},
};
use distlock_core::{Error, ErrorKind, FencingToken, Forced, parse_duration};
use distlock_kickout::{
    Ban, Banned, Class, Found, Kicked, NodeId, NodeInfo, NodeState, Pending, SessionId, Target,
    Uid, UserView,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    AdminContext,
    audit::{Actor, Effect, Order},
    http::{HttpError, JsonBody, LimitQuery, QueryParams, check_reason},
};

/// Entries of a list, unless the request names another limit.
const DEFAULT_LIMIT: usize = 1000;
/// Most entries of a list that is not read page by page.
const MAX_LIMIT: usize = 100_000;

/// `GET /v1/users/{uid}`: the record of an account, with the states of its nodes.
pub(super) async fn show_user(
    State(admin): State<AdminContext>,
    Path(uid): Path<String>,
) -> Result<Json<UserView>, HttpError> {
    Ok(Json(admin.kick.view(&Uid::new(uid)?).await?))
}

/// The body of `POST /v1/kick`: one of the first five members selects the sessions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KickBody {
    uid: Option<Uid>,
    session: Option<SessionId>,
    class: Option<Class>,
    node: Option<NodeId>,
    #[serde(default)]
    all: bool,
    reason: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Serialize)]
pub(super) struct KickAnswer {
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    kicked: Option<Vec<Kicked>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    would_kick: Option<Vec<Found>>,
}

impl KickBody {
    /// The sessions that the order names.
    fn target(&self) -> Result<Target, Error> {
        let mut targets = Vec::new();
        targets.extend(self.uid.clone().map(Target::Uid));
        targets.extend(self.session.map(Target::Session));
        targets.extend(self.class.clone().map(Target::Class));
        targets.extend(self.node.clone().map(Target::Node));
        targets.extend(self.all.then_some(Target::All));
        let given = targets.len();
        match targets.pop() {
            Some(target) if given == 1 => Ok(target),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "exactly one of uid, session, class, node and all is needed, {given} were given"
                ),
            )),
        }
    }
}

/// `POST /v1/kick`: ends sessions. A dry run only lists them, and is not recorded.
pub(super) async fn kick(
    State(admin): State<AdminContext>,
    actor: Actor,
    JsonBody(body): JsonBody<KickBody>,
) -> Result<Json<KickAnswer>, HttpError> {
    let target = body.target()?;
    let reason = check_reason(body.reason.as_deref())?;
    if body.dry_run {
        let found = admin.kick.find(&target).await?;
        return Ok(Json(KickAnswer {
            dry_run: true,
            kicked: None,
            would_kick: Some(found),
        }));
    }
    let outcome = admin.kick.kick(&target, reason).await;
    let result = match &outcome {
        Ok(kicked) => summarise_kick(kicked),
        Err(error) => error.to_string(),
    };
    let whom = json!(target).to_string();
    let order = Order::new("kick", &whom).with_reason(reason);
    let effect = Effect::unchanged_if(matches!(&outcome, Ok(kicked) if kicked.is_empty()));
    admin.audit.record(&actor, order, effect, &result).await;
    Ok(Json(KickAnswer {
        dry_run: false,
        kicked: Some(outcome?),
        would_kick: None,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BanBody {
    uid: Uid,
    ttl: Option<String>,
    reason: Option<String>,
}

#[derive(Serialize)]
pub(super) struct BanAnswer {
    uid: Uid,
    ban: Ban,
    kicked: Vec<Kicked>,
}

/// `POST /v1/ban`: bans an account, and ends its sessions.
pub(super) async fn ban(
    State(admin): State<AdminContext>,
    actor: Actor,
    JsonBody(body): JsonBody<BanBody>,
) -> Result<Json<BanAnswer>, HttpError> {
    let reason = check_reason(body.reason.as_deref())?;
    let ttl = body.ttl.as_deref().map(parse_ttl).transpose()?;
    let outcome = admin.kick.ban(&body.uid, ttl, reason).await;
    let result = match &outcome {
        Ok((_, kicked)) => format!("banned, {}", summarise_kick(kicked)),
        Err(error) => error.to_string(),
    };
    let order = Order::new("ban", body.uid.as_str()).with_reason(reason);
    let effect = Effect::Changed;
    admin.audit.record(&actor, order, effect, &result).await;
    let (ban, kicked) = outcome?;
    Ok(Json(BanAnswer {
        uid: body.uid,
        ban,
        kicked,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnbanQuery {
    uid: Uid,
}

/// `DELETE /v1/ban`: lifts the ban of an account.
pub(super) async fn unban(
    State(admin): State<AdminContext>,
    actor: Actor,
    QueryParams(account): QueryParams<UnbanQuery>,
) -> Result<Json<Value>, HttpError> {
    let outcome = admin.kick.unban(&account.uid).await;
    let result = match &outcome {
        Ok(true) => "lifted".to_owned(),
        Ok(false) => "there was none".to_owned(),
        Err(error) => error.to_string(),
    };
    let order = Order::new("unban", account.uid.as_str());
    let effect = Effect::unchanged_if(matches!(outcome, Ok(false)));
    admin.audit.record(&actor, order, effect, &result).await;
    let lifted = outcome?;
    Ok(Json(json!({"uid": account.uid, "lifted": lifted})))
}

#[derive(Serialize)]
pub(super) struct RevocationsAnswer {
    revocations: Vec<Pending>,
    /// How many there are, listed or not.
    total: usize,
}

/// `GET /v1/revocations`: sessions whose end is not confirmed yet.
pub(super) async fn list_revocations(
    State(admin): State<AdminContext>,
    QueryParams(query): QueryParams<LimitQuery>,
) -> Result<Json<RevocationsAnswer>, HttpError> {
    let most = query.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let (revocations, total) = admin.kick.revocations(most).await?;
    Ok(Json(RevocationsAnswer { revocations, total }))
}

#[derive(Serialize)]
pub(super) struct BansAnswer {
    bans: Vec<Banned>,
    /// How many there are, listed or not.
    total: usize,
}

/// `GET /v1/bans`: the bans that hold, sorted by account.
pub(super) async fn list_bans(
    State(admin): State<AdminContext>,
    QueryParams(query): QueryParams<LimitQuery>,
) -> Result<Json<BansAnswer>, HttpError> {
    let most = query.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let (bans, total) = admin.kick.bans(most).await?;
    Ok(Json(BansAnswer { bans, total }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OnlineQuery {
    /// The last account of the page before.
    after: Option<Uid>,
    limit: Option<usize>,
    /// Only the sessions on this node.
    node: Option<NodeId>,
}

#[derive(Serialize)]
pub(super) struct OnlineAnswer {
    sessions: Vec<Found>,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Uid>,
}

/// `GET /v1/sessions`: the sessions of all nodes or of one, sorted by account, page by page.
pub(super) async fn list_sessions(
    State(admin): State<AdminContext>,
    QueryParams(page): QueryParams<OnlineQuery>,
) -> Result<Json<OnlineAnswer>, HttpError> {
    let most = page.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, 10_000);
    let online = admin
        .kick
        .online(page.after.as_ref(), most, page.node.as_ref());
    let (sessions, next) = online.await?;
    Ok(Json(OnlineAnswer { sessions, next }))
}

/// The results of a kick as text for the audit log. Each session is counted once.
fn summarise_kick(kicked: &[Kicked]) -> String {
    let failed = kicked.iter().filter(|it| it.error.is_some()).count();
    let ended = kicked.iter().filter(|it| it.gone).count();
    let pending = kicked.len() - ended - failed;
    let failed = match failed {
        0 => String::new(),
        some => format!(", {some} could not be ended"),
    };
    format!("{ended} ended, {pending} not confirmed yet{failed}")
}

/// Reads the `ttl` of a ban.
fn parse_ttl(text: &str) -> Result<Duration, Error> {
    parse_duration(text).map_err(|error| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("ttl is {text:?}: {}", error.message()),
        )
    })
}

/// The answer to `GET /v1/nodes`.
#[derive(Serialize)]
pub(super) struct NodesAnswer {
    /// The node that answers.
    node: NodeId,
    nodes: Vec<NodeInfo>,
}

/// `GET /v1/nodes`: all nodes of the store.
pub(super) async fn list_nodes(
    State(admin): State<AdminContext>,
) -> Result<Json<NodesAnswer>, HttpError> {
    Ok(Json(NodesAnswer {
        node: admin.kick.node().clone(),
        nodes: admin.kick.nodes().await?,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainBody {
    /// Number of sessions that end each second.
    rate: u32,
}

/// `POST /v1/drain`: this node takes no more logins, and ends its sessions at the given rate.
pub(super) async fn drain(
    State(admin): State<AdminContext>,
    actor: Actor,
    JsonBody(body): JsonBody<DrainBody>,
) -> Result<Json<Value>, HttpError> {
    let before = admin.kick.state();
    let outcome = admin.kick.drain(body.rate).await;
    let rate = json!(body.rate);
    record_and_answer(&admin, &actor, "drain", before, outcome, rate).await
}

/// `DELETE /v1/drain`: this node takes logins again.
pub(super) async fn undrain(
    State(admin): State<AdminContext>,
    actor: Actor,
) -> Result<Json<Value>, HttpError> {
    let before = admin.kick.state();
    let outcome = admin.kick.undrain().await;
    record_and_answer(&admin, &actor, "undrain", before, outcome, Value::Null).await
}

/// Records a drain order in the audit log, and answers with the node's state. `before` is the state
/// before the order.
async fn record_and_answer(
    admin: &AdminContext,
    actor: &Actor,
    action: &str,
    before: NodeState,
    outcome: Result<(), Error>,
    rate: Value,
) -> Result<Json<Value>, HttpError> {
    let node = admin.kick.node();
    let result = match &outcome {
        Ok(()) => "done".to_owned(),
        Err(error) => error.to_string(),
    };
    let order = Order::new(action, node.as_str());
    let effect = Effect::unchanged_if(outcome.is_ok() && admin.kick.state() == before);
    admin.audit.record(actor, order, effect, &result).await;
    outcome?;
    let sessions = admin.kick.sessions();
    Ok(Json(
        json!({"node": node, "state": admin.kick.state(), "rate": rate, "sessions": sessions}),
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseBody {
    name: String,
    token: u64,
}

/// `POST /v1/force-release`: releases a lock if it is held with this fencing token.
pub(super) async fn force_release(
    State(admin): State<AdminContext>,
    actor: Actor,
    JsonBody(body): JsonBody<ReleaseBody>,
) -> Result<Json<Value>, HttpError> {
    let token = FencingToken::new(body.token).map_err(|error| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("token: {}", error.message()),
        )
    })?;
    let outcome = admin.locker.force_release(&body.name, token).await;
    let (result, held_with) = match &outcome {
        Ok(Forced::Released) => ("released".to_owned(), None),
        Ok(Forced::NotHeld) => ("not_held".to_owned(), None),
        Ok(Forced::OtherToken(token)) => ("other_token".to_owned(), Some(token.get())),
        Err(error) => (error.to_string(), None),
    };
    let order = Order::new("force_release", &body.name);
    let effect = Effect::unchanged_if(matches!(
        outcome,
        Ok(Forced::NotHeld | Forced::OtherToken(_))
    ));
    admin.audit.record(&actor, order, effect, &result).await;
    outcome?;
    Ok(Json(
        json!({"name": body.name, "result": result, "held_with": held_with}),
    ))
}
