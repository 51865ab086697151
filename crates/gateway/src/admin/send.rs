//! Messages of the program's own servers, which need no session: `POST /v1/send`, with a right of
//! its own. Whoever has that can send, and nothing else.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::post,
};
use distlock_kickout::{Class, Device, Message, Uid};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{Failed, Given, let_in, refused};
use crate::{
    config::Secret,
    front::{DeviceOutcome, Front, Outcome, send},
};

#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) front: Front,
    /// Nobody may send unless it is set.
    pub(crate) token: Option<Arc<Secret>>,
}

pub(super) fn routes(sender: Sender) -> Router {
    Router::new()
        .route("/v1/send", post(accept))
        .route_layer(middleware::from_fn_with_state(sender.clone(), authorise))
        .with_state(sender)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    from: Uid,
    to: Uid,
    body: Box<RawValue>,
    id: Option<String>,
    to_device: Option<Device>,
    to_class: Option<Class>,
}

#[derive(Serialize)]
struct Answer {
    id: String,
    outcome: Outcome,
    devices: Vec<DeviceOutcome>,
}

/// Looked at before anything is read.
async fn authorise(State(sender): State<Sender>, request: Request, next: Next) -> Response {
    let Some(token) = &sender.token else {
        let why = "nobody may send: send_token is not set";
        return refused(StatusCode::FORBIDDEN, why).into_response();
    };
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    if !given.is_some_and(|given| token.matches(given)) {
        let why = "the bearer token of send_token is needed";
        return refused(StatusCode::UNAUTHORIZED, why).into_response();
    }
    let_in(&request);
    next.run(request).await
}

async fn accept(
    State(sender): State<Sender>,
    Given(sent): Given<Sent>,
) -> Result<Json<Answer>, Failed> {
    let message = Message {
        id: sent.id.unwrap_or_else(|| Uuid::new_v4().to_string()),
        to_device: sent.to_device,
        to_class: sent.to_class,
        ..Message::new(sent.from, sent.body.get())
    };
    if let Err((_, why)) = send::check(&message, sender.front.max_frame) {
        return Err(refused(StatusCode::BAD_REQUEST, why));
    }
    let fate = send::deliver(&sender.front, &sent.to, &message).await?;
    Ok(Json(Answer {
        id: message.id,
        outcome: fate.outcome,
        devices: fate.devices,
    }))
}
