//! Messages of servers over HTTP: `POST /v1/send`.
//!
//! This module checks the send token before it reads the body. The admin token must never be
//! accepted instead.

use axum::{
    Json, Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::post,
};
use distlock_core::Result as CoreResult;
use distlock_kickout::{Class, Device, Message, Uid};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::http::{HttpError, JsonBody, client_ip, http_error, mark_logged_in};
use crate::{
    accounts::Receivers,
    front::{DeviceOutcome, MessageOutcome, Outcome},
    send_api::{SendApi, SendDenied},
};

/// The route of sending servers.
pub(super) fn routes(sender: SendApi) -> Router {
    Router::new()
        .route("/v1/send", post(send_message))
        .route_layer(middleware::from_fn_with_state(sender.clone(), authorise))
        .with_state(sender)
}

/// The body of `POST /v1/send`.
#[derive(Deserialize)]
// Error texts of serde contain this name, and senders see those texts.
#[serde(deny_unknown_fields, rename = "Sent")]
struct SendBody {
    from: Uid,
    to: Receivers,
    body: Box<RawValue>,
    id: Option<String>,
    to_device: Option<Device>,
    to_class: Option<Class>,
}

/// The answer. It has the form of `to`: the outcome of one account, or a list.
#[derive(Serialize)]
#[serde(untagged)]
enum SendAnswer {
    One {
        id: String,
        outcome: Outcome,
        devices: Vec<DeviceOutcome>,
    },
    Many {
        id: String,
        accounts: Vec<AccountOutcome>,
    },
}

/// The outcome of a message to many for one of the accounts.
#[derive(Serialize)]
struct AccountOutcome {
    uid: Uid,
    outcome: Outcome,
    devices: Vec<DeviceOutcome>,
    /// Why the message failed, if an error was the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl AccountOutcome {
    fn new(uid: &Uid, outcome: CoreResult<MessageOutcome>) -> Self {
        let (outcome, error) = MessageOutcome::of_account(outcome);
        Self {
            uid: uid.clone(),
            outcome: outcome.outcome,
            devices: outcome.devices,
            error,
        }
    }
}

/// Lets a request with the send token pass. The check runs before the body is read.
async fn authorise(State(sender): State<SendApi>, request: Request, next: Next) -> Response {
    let allowed = sender.authorise(request.headers(), client_ip(&request));
    if let Err(denied) = allowed.await {
        let code = match denied {
            SendDenied::Disabled => StatusCode::FORBIDDEN,
            SendDenied::NotShown => StatusCode::UNAUTHORIZED,
        };
        return http_error(code, denied.reason()).into_response();
    }
    mark_logged_in(&request);
    next.run(request).await
}

/// `POST /v1/send`: delivers a message to one account or to many, or stores it for later.
async fn send_message(
    State(sender): State<SendApi>,
    JsonBody(sent): JsonBody<SendBody>,
) -> Result<Json<SendAnswer>, HttpError> {
    let message = Message {
        id: sent.id.unwrap_or_else(|| Uuid::new_v4().to_string()),
        to_device: sent.to_device,
        to_class: sent.to_class,
        ..Message::new(sent.from, sent.body.get())
    };
    let answer = match sent.to {
        Receivers::One(to) => {
            let MessageOutcome { outcome, devices } = sender.send(&to, &message).await?;
            SendAnswer::One {
                id: message.id,
                outcome,
                devices,
            }
        }
        Receivers::Many(to) => {
            let outcomes = sender.send_to_many(&to, &message).await?;
            let outcomes = to.uids().iter().zip(outcomes);
            SendAnswer::Many {
                id: message.id,
                accounts: outcomes
                    .map(|(uid, outcome)| AccountOutcome::new(uid, outcome))
                    .collect(),
            }
        }
    };
    Ok(Json(answer))
}
