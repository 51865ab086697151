//! Bodies, queries and errors of the admin HTTP, and whose request it is.

use std::net::IpAddr;

use axum::{
    Json,
    extract::{ConnectInfo, FromRequest, FromRequestParts, Query, Request},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use distlock_core::{Error, ErrorKind};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::listen::LineHandle;

/// Longest reason in bytes.
const MAX_REASON: usize = 256;

/// The address that a request comes from.
pub(crate) fn from(request: &Request) -> IpAddr {
    let line = request.extensions().get::<ConnectInfo<LineHandle>>();
    line.map_or(IpAddr::from([0; 4]), |line| line.0.peer().ip())
}

/// Whoever may ask keeps the connection: strangers have theirs for a short time.
pub(crate) fn let_in(request: &Request) {
    if let Some(ConnectInfo(line)) = request.extensions().get::<ConnectInfo<LineHandle>>() {
        line.logged_in();
    }
}

pub(crate) fn refused(code: StatusCode, why: &str) -> Failed {
    Failed::Http(code, why.to_owned())
}

/// A JSON body; what is wrong with it is said in JSON too. It must be declared as JSON, which keeps web pages of other origins
/// from sending one.
pub(crate) struct Given<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Given<T> {
    type Rejection = Failed;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failed> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(Failed::Http(rejection.status(), rejection.body_text())),
        }
    }
}

/// The query, with the same kind of answer.
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(Failed::Http(rejection.status(), rejection.body_text())),
        }
    }
}

/// A reason that people are shown.
pub(super) fn checked_reason(reason: Option<&str>) -> Result<Option<&str>, Error> {
    if let Some(reason) = reason {
        let problem = if reason.len() > MAX_REASON {
            format!(
                "reason is {} bytes long: at most {MAX_REASON} are allowed",
                reason.len()
            )
        } else if let Some(at) = reason.find(char::is_control) {
            format!("reason has a control character at byte {at}")
        } else {
            return Ok(Some(reason));
        };
        return Err(Error::new(ErrorKind::InvalidArgument, problem));
    }
    Ok(None)
}

/// An error as an HTTP answer.
#[derive(Debug)]
pub(crate) enum Failed {
    Error(Error),
    Http(StatusCode, String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let (code, text) = match self {
            Self::Http(code, text) => (code, text),
            Self::Error(error) => {
                let code = match error.kind() {
                    ErrorKind::InvalidArgument | ErrorKind::InvalidName => StatusCode::BAD_REQUEST,
                    ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::OutcomeUnknown => {
                        StatusCode::SERVICE_UNAVAILABLE
                    }
                    _ => StatusCode::INTERNAL_SERVER_ERROR,
                };
                (code, error.to_string())
            }
        };
        (code, Json(json!({"error": text}))).into_response()
    }
}
