//! Errors, and the status of a refused call.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, micros};
use prost::Message as _;
use tonic::{Code, Status};

use crate::v1::{self, error::Kind};

impl From<&Error> for v1::Error {
    fn from(error: &Error) -> Self {
        Self {
            kind: Kind::from(error.kind()).into(),
            // The remedy is for the reader of the error: the client adds its own.
            message: error.problem(),
            retryable: error.is_retryable(),
            retry_in_us: error.retry_pause().map(micros),
            holder: None,
        }
    }
}

impl From<v1::Error> for Error {
    fn from(wire: v1::Error) -> Self {
        let kind = match wire.kind() {
            Kind::AccessDenied => ErrorKind::AccessDenied,
            // It is the server's handle on its store that was closed, not the client's.
            Kind::Closed | Kind::Unavailable => ErrorKind::Unavailable,
            Kind::Corrupt => ErrorKind::Corrupt,
            Kind::Unspecified | Kind::Internal => ErrorKind::Internal,
            Kind::InvalidArgument => ErrorKind::InvalidArgument,
            Kind::InvalidConfig => ErrorKind::InvalidConfig,
            Kind::InvalidName => ErrorKind::InvalidName,
            Kind::LimitExceeded => ErrorKind::LimitExceeded,
            Kind::Lost => ErrorKind::Lost,
            Kind::NotHeld => ErrorKind::NotHeld,
            Kind::OutcomeUnknown => ErrorKind::OutcomeUnknown,
            Kind::Timeout => ErrorKind::Timeout,
            Kind::Unsupported => ErrorKind::Unsupported,
        };
        let mut error = Self::new(kind, wire.message);
        if wire.retryable {
            error = error.passing();
        }
        match wire.retry_in_us {
            Some(pause) => error.retry_in(Duration::from_micros(pause)),
            None => error,
        }
    }
}

impl From<ErrorKind> for Kind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::AccessDenied => Self::AccessDenied,
            ErrorKind::Closed => Self::Closed,
            ErrorKind::Corrupt => Self::Corrupt,
            ErrorKind::InvalidArgument => Self::InvalidArgument,
            ErrorKind::InvalidConfig => Self::InvalidConfig,
            ErrorKind::InvalidName => Self::InvalidName,
            ErrorKind::LimitExceeded => Self::LimitExceeded,
            ErrorKind::Lost => Self::Lost,
            ErrorKind::NotHeld => Self::NotHeld,
            ErrorKind::OutcomeUnknown => Self::OutcomeUnknown,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::Unsupported => Self::Unsupported,
            // A kind that this version of the protocol does not have is a bug as well.
            _ => Self::Internal,
        }
    }
}

/// What the libraries of gRPC read from the details of a status: `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct StatusDetails {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// A message with its type: `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// The type of the error in the details.
const ERROR_TYPE: &str = "type.googleapis.com/distlock.lock.v1.Error";

impl v1::Error {
    /// The status of a refused call, with this error in its details.
    #[must_use]
    pub fn into_status(self) -> Status {
        let code = match self.kind() {
            Kind::AccessDenied => Code::PermissionDenied,
            Kind::Closed | Kind::Unavailable => Code::Unavailable,
            Kind::Corrupt => Code::DataLoss,
            Kind::Unspecified | Kind::Internal => Code::Internal,
            Kind::InvalidArgument | Kind::InvalidName => Code::InvalidArgument,
            Kind::InvalidConfig | Kind::Lost | Kind::NotHeld => Code::FailedPrecondition,
            Kind::LimitExceeded => Code::ResourceExhausted,
            // The call may have changed something, so a generated client must not repeat it as it
            // repeats UNAVAILABLE.
            Kind::OutcomeUnknown => Code::Unknown,
            Kind::Timeout => Code::DeadlineExceeded,
            Kind::Unsupported => Code::Unimplemented,
        };
        let details = StatusDetails {
            code: code.into(),
            message: self.message.clone(),
            details: vec![Detail {
                type_url: ERROR_TYPE.to_owned(),
                value: self.encode_to_vec(),
            }],
        };
        Status::with_details(code, self.message, details.encode_to_vec().into())
    }

    /// The error in the details of a refused call; `None` if the server did not put it there.
    #[must_use]
    pub fn of_status(status: &Status) -> Option<Self> {
        let details = StatusDetails::decode(status.details()).ok()?;
        let ours = details.details.iter().find(|it| it.type_url == ERROR_TYPE);
        Self::decode(&*ours?.value).ok()
    }
}
