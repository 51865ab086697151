//! Messages of servers over gRPC.
//!
//! This module checks the send token before it reads the body. The token of a call between nodes
//! must never be accepted instead.

use std::net::IpAddr;

use axum::{
    extract::{self, State},
    middleware::Next,
    response,
};
use distlock_core::ErrorKind;
use distlock_kickout::{Class, Device, Message, Uid};
use distlock_listen::ConnectionHandle;
use serde_json::value::RawValue;
use tonic::{Code, Request, Response, Status};
use uuid::Uuid;

use super::{
    v1::{self, messages_server::Messages, send_response},
    wire::invalid_status,
};
use crate::{
    accounts::Accounts,
    front::{MessageOutcome, Outcome},
    send_api::{SendApi, SendDenied},
};

/// The version of `Send` that this node speaks: see the protocol definition.
const SEND_VERSION: u32 = 0;

pub(super) struct MessagesService(pub(super) SendApi);

#[tonic::async_trait]
impl Messages for MessagesService {
    async fn send(
        &self,
        request: Request<v1::SendRequest>,
    ) -> Result<Response<v1::SendResponse>, Status> {
        let request = request.into_inner();
        if request.version > SEND_VERSION {
            let version = request.version;
            return Err(Status::failed_precondition(format!(
                "version {version} of Send is not known here, only those up to {SEND_VERSION}"
            )));
        }
        let to = Accounts::new(request.to.iter().map(Uid::new)).map_err(invalid_status)?;
        let message = message_from_request(request).map_err(invalid_status)?;
        let outcomes = self.0.send_to_many(&to, &message).await;
        let outcomes = to.uids().iter().zip(outcomes.map_err(error_status)?);
        Ok(Response::new(v1::SendResponse {
            id: message.id,
            accounts: outcomes
                .map(|(uid, outcome)| account_to_wire(uid, outcome))
                .collect(),
        }))
    }
}

/// Admits callers with the send token. The check runs before the body is read.
pub(super) async fn authorise(
    State(sender): State<SendApi>,
    request: extract::Request,
    next: Next,
) -> response::Response {
    let connection = request.extensions().get::<ConnectionHandle>().cloned();
    let from = connection
        .as_ref()
        .map_or(IpAddr::from([0; 4]), |connection| connection.peer().ip());
    if let Err(denied) = sender.authorise(request.headers(), from).await {
        let code = match denied {
            SendDenied::Disabled => Code::PermissionDenied,
            SendDenied::NotShown => Code::Unauthenticated,
        };
        return Status::new(code, denied.reason()).into_http();
    }
    if let Some(connection) = connection {
        connection.mark_logged_in();
    }
    next.run(request).await
}

fn message_from_request(request: v1::SendRequest) -> distlock_core::Result<Message> {
    let body: &RawValue = serde_json::from_str(&request.body).map_err(|error| {
        let says = format!("body is no JSON: {error}");
        distlock_core::Error::new(ErrorKind::InvalidArgument, says)
    })?;
    Ok(Message {
        id: request.id.unwrap_or_else(|| Uuid::new_v4().to_string()),
        to_device: request.to_device.map(Device::new).transpose()?,
        to_class: request.to_class.map(Class::new).transpose()?,
        ..Message::new(Uid::new(request.from)?, body.get())
    })
}

fn error_status(error: distlock_core::Error) -> Status {
    match error.kind() {
        ErrorKind::InvalidArgument => invalid_status(error),
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::OutcomeUnknown => {
            Status::unavailable(error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}

fn account_to_wire(
    uid: &Uid,
    outcome: distlock_core::Result<MessageOutcome>,
) -> send_response::Account {
    let (outcome, error) = MessageOutcome::of_account(outcome);
    let devices = outcome.devices.into_iter().map(|it| send_response::Device {
        device: it.device.into(),
        class: it.class.into(),
        outcome: outcome_to_wire(it.outcome).into(),
    });
    send_response::Account {
        uid: uid.to_string(),
        outcome: outcome_to_wire(outcome.outcome).into(),
        devices: devices.collect(),
        error,
    }
}

const fn outcome_to_wire(outcome: Outcome) -> v1::Outcome {
    match outcome {
        Outcome::Delivered => v1::Outcome::Delivered,
        Outcome::Written => v1::Outcome::Written,
        Outcome::Stored => v1::Outcome::Stored,
        Outcome::Failed => v1::Outcome::Failed,
    }
}
