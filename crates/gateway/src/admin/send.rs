//! Servers that send messages: `POST /v1/send`.

use axum::{
    Json, Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::post,
};
use distlock_kickout::{Class, Device, Message, Uid};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::http::{Failed, Given, from, let_in, refused};
use crate::{
    front::{DeviceOutcome, Outcome},
    sender::{NoRight, Sender},
};

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
    let right = sender.check_right(request.headers(), from(&request));
    if let Err(no) = right.await {
        let code = match no {
            NoRight::Off => StatusCode::FORBIDDEN,
            NoRight::NotShown => StatusCode::UNAUTHORIZED,
        };
        return refused(code, no.why()).into_response();
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
    let fate = sender.send(&sent.to, &message).await?;
    Ok(Json(Answer {
        id: message.id,
        outcome: fate.outcome,
        devices: fate.devices,
    }))
}
