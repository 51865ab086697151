//! The errors of this backend, and the meaning of a refused session.

use distlock_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// The backend's short name.
pub(crate) const BACKEND: &str = "distlock";

pub(crate) fn invalid(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, problem)
}

/// The error of operations that were not sent.
pub(crate) fn unavailable(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, problem)
}

/// The error of an operation that was sent and has no answer.
pub(crate) fn no_answer(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::OutcomeUnknown, why)
}

/// The error of an answer that breaks a rule of the protocol. The operation may have happened.
pub(crate) fn unreadable(error: Error) -> Error {
    no_answer("the server's answer cannot be read").caused_by(error)
}

/// The error of an answer of the wrong kind.
pub(crate) fn wrong_kind() -> Error {
    no_answer("the server's answer belongs to another kind of operation")
}

/// The error of a session that a server refused. None of its operations was read.
pub(crate) fn refused(host: &str, status: &Status) -> Error {
    let said = status.message();
    let (kind, problem) = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => (
            ErrorKind::AccessDenied,
            format!("{host} refused this client: {said}"),
        ),
        Code::Unimplemented => (
            ErrorKind::InvalidConfig,
            format!("{host} is no lock server of distlock: {said}"),
        ),
        Code::FailedPrecondition | Code::InvalidArgument => (
            ErrorKind::Unsupported,
            format!("{host} refused this client: {said}"),
        ),
        _ => (
            ErrorKind::Unavailable,
            format!("{host} serves no session: {said}"),
        ),
    };
    Error::new(kind, problem)
}
