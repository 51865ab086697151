//! Bodies, queries, errors and client addresses of the admin HTTP.
//!
//! Invariant of this module: every error is answered in JSON. This module must never accept a body
//! that is not declared as JSON.

use std::net::IpAddr;

use axum::{
    Json,
    extract::{ConnectInfo, FromRequest, FromRequestParts, Query, Request},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use distlock_core::{Error, ErrorKind, excerpt};
use distlock_listen::{ConnectionHandle, is_late_body};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;

/// Longest reason in bytes.
const MAX_REASON: usize = 256;

/// The address that a request comes from; 0.0.0.0 for a request without a connection.
pub(crate) fn client_ip(request: &Request) -> IpAddr {
    let connection = request.extensions().get::<ConnectInfo<ConnectionHandle>>();
    connection.map_or(IpAddr::from([0; 4]), |connection| connection.0.peer().ip())
}

/// Lets an authorised caller keep its connection. The connection of another caller ends at its
/// login deadline.
pub(crate) fn mark_logged_in(request: &Request) {
    if let Some(ConnectInfo(connection)) =
        request.extensions().get::<ConnectInfo<ConnectionHandle>>()
    {
        connection.mark_logged_in();
    }
}

/// An error with this status, and `why` as its text.
pub(crate) fn http_error(code: StatusCode, why: &str) -> HttpError {
    HttpError::Http(code, why.to_owned())
}

/// A JSON body. Errors of the body are answered in JSON as well. The request must declare the body
/// as JSON, because a web page of another origin cannot do so without permission.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = HttpError;

    async fn from_request(request: Request, state: &S) -> Result<Self, HttpError> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) if is_late_body(&rejection) => Err(HttpError::Http(
                StatusCode::REQUEST_TIMEOUT,
                rejection.body_text(),
            )),
            Err(rejection) => Err(HttpError::Http(rejection.status(), rejection.body_text())),
        }
    }
}

/// The query of a request. Errors of the query are answered in JSON as well.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, HttpError> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(HttpError::Http(rejection.status(), rejection.body_text())),
        }
    }
}

/// Entries of one answer of a list: 1 to 1000, and 100 unless the request says otherwise.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct PageSize(pub(super) usize);

impl PageSize {
    const MOST: usize = 1000;
}

impl Default for PageSize {
    fn default() -> Self {
        Self(100)
    }
}

impl TryFrom<String> for PageSize {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.parse() {
            Ok(size @ 1..=Self::MOST) => Ok(Self(size)),
            _ => {
                let (given, most) = (excerpt(&text), Self::MOST);
                Err(format!("limit is \"{given}\": 1 to {most} is needed"))
            }
        }
    }
}

/// Checks a reason that is shown to people, and returns it.
pub(super) fn check_reason(reason: Option<&str>) -> Result<Option<&str>, Error> {
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
pub(crate) enum HttpError {
    /// An error of the flow or of the store. The error's kind decides the status.
    Error(Error),
    /// A status with a text.
    Http(StatusCode, String),
}

impl From<Error> for HttpError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl IntoResponse for HttpError {
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
