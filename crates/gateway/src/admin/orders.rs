//! Orders about accounts, their sessions and nodes: look up, kick, ban, send, drain, and release a
//! lock by force.

use std::time::Duration;

use axum::{
    Json,
    extract::{Path, State},
};
use distlock_core::{Error, ErrorKind, FencingToken, Forced, parse_duration};
use distlock_kickout::{
    Ban, Class, Found, Kicked, Message, NodeId, NodeInfo, NodeState, SessionId, Target, Uid,
    UserView,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

use super::{
    AdminContext,
    audit::{Actor, Effect, Order},
    http::{HttpError, JsonBody, QueryParams, check_reason},
};
use crate::front::MessageOutcome;

/// The answer to `GET /v1/users/{uid}`.
#[derive(Serialize)]
pub(super) struct UserAnswer {
    #[serde(flatten)]
    view: UserView,
    /// The messages that are kept for the account; `None` if they cannot be counted.
    waiting: Option<usize>,
}

/// `GET /v1/users/{uid}`: the record of an account, with the states of its nodes.
pub(super) async fn show_user(
    State(admin): State<AdminContext>,
    Path(uid): Path<String>,
) -> Result<Json<UserAnswer>, HttpError> {
    let uid = Uid::new(uid)?;
    let (view, waiting) = tokio::join!(admin.kick.view(&uid), admin.sender.waiting(&uid));
    let waiting = waiting.inspect_err(|error| {
        tracing::warn!(?uid, %error, "the messages that wait for an account cannot be counted");
    });
    Ok(Json(UserAnswer {
        view: view?,
        waiting: waiting.ok(),
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MessageBody {
    /// The account that the message comes from.
    from: Uid,
    body: Box<RawValue>,
}

/// `POST /v1/users/{uid}/message`: sends a message to an account, as a server would.
pub(super) async fn send_message(
    State(admin): State<AdminContext>,
    actor: Actor,
    Path(uid): Path<String>,
    JsonBody(body): JsonBody<MessageBody>,
) -> Result<Json<Value>, HttpError> {
    let uid = Uid::new(uid)?;
    let message = Message {
        id: Uuid::new_v4().to_string(),
        ..Message::new(body.from, body.body.get())
    };
    let outcome = admin.sender.send(&uid, &message).await;
    // The text is left out, because messages are private.
    let result = match &outcome {
        Ok(sent) => format!("{}, as {}", sent.outcome.name(), message.from),
        Err(error) => error.to_string(),
    };
    let order = Order::new("send", uid.as_str());
    let refused = matches!(&outcome, Err(error) if error.kind() == ErrorKind::InvalidArgument);
    let effect = Effect::unchanged_if(refused);
    admin.audit.record(&actor, order, effect, &result).await;
    let MessageOutcome { outcome, devices } = outcome?;
    Ok(Json(
        json!({"id": message.id, "outcome": outcome, "devices": devices}),
    ))
}

/// The body of `POST /v1/kick`: one of the first five members selects the sessions. The first two
/// together select one session without a read of the whole directory.
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
        targets.extend(match (self.uid.clone(), self.session) {
            (Some(uid), Some(session)) => Some(Target::SessionOf { uid, session }),
            (Some(uid), None) => Some(Target::Uid(uid)),
            (None, Some(session)) => Some(Target::Session(session)),
            (None, None) => None,
        });
        targets.extend(self.class.clone().map(Target::Class));
        targets.extend(self.node.clone().map(Target::Node));
        targets.extend(self.all.then_some(Target::All));
        let given = targets.len();
        match targets.pop() {
            Some(target) if given == 1 => Ok(target),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "exactly one of uid, session, class, node and all is needed (uid and session \
                     together are one), {given} were given"
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
