//! Orders about nodes: list all nodes, drain this one, and release a lock by force.

use axum::{Json, extract::State};
use distlock_core::{Error, ErrorKind, FencingToken, Forced};
use distlock_kickout::{NodeId, NodeInfo, NodeState};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    AdminContext,
    audit_log::{Actor, Effect, Order},
    http::{HttpError, JsonBody},
};

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
