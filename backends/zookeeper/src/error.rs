//! The errors of this backend, and the translation of the client's errors. The kind of an error
//! says whether the operation happened, did not happen, or may have happened.

use distlock_backend_kit::queue_entry::ENTRY_LEASE;
use distlock_core::{Error, ErrorKind, LossReason};
use zookeeper_client as zk;

/// The purpose of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// To read. Without an answer, nothing has happened.
    Read,
    /// To change something. Without an answer, the outcome is unknown.
    Write,
}

/// Translates a client's error. The caller must first handle the errors that it expects, such as an
/// absent node or a version conflict.
pub(crate) fn translate(error: zk::Error, access: Access) -> Error {
    let (kind, text) = kind_and_text(&error, access);
    let error = Error::new(kind, text).on("zookeeper").caused_by(error);
    match kind {
        // Each limit of the ensemble is a quota. A delete frees a part of the quota, so a retry may
        // succeed.
        ErrorKind::LimitExceeded => error.passing(),
        _ => error,
    }
}

/// Maps every end of a connection to `ConnectionLoss`. The client reports `ConnectionLoss` only
/// when the server closed the connection. For a connection that was reset, or on which the server
/// fell silent, the client reports `Custom`. A caller handles all of these cases in the same way.
pub(crate) fn as_connection_loss(error: zk::Error) -> zk::Error {
    match error {
        zk::Error::Custom(why) => {
            tracing::debug!(%why, "the connection failed");
            zk::Error::ConnectionLoss
        }
        other => other,
    }
}

/// Returns the error when no answer came in time.
pub(crate) fn no_answer_error(access: Access) -> Error {
    let (kind, what) = match access {
        Access::Read => (
            ErrorKind::Unavailable,
            "the ensemble did not answer in time",
        ),
        Access::Write => (
            ErrorKind::OutcomeUnknown,
            "the ensemble did not answer in time",
        ),
    };
    Error::new(kind, what).on("zookeeper")
}

/// Returns the error when there is no connection, so that nothing was sent.
pub(crate) fn not_connected_error() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "not connected to the ensemble (no server reachable, or no quorum)",
    )
    .on("zookeeper")
}

/// Returns the error when the answers do not prove that the session lives long enough.
pub(crate) fn not_trusted_error() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "no proof yet that the session is alive for long enough; after a standstill it takes a \
         tick of the servers",
    )
    .on("zookeeper")
}

/// Returns the error when the session of an operation has ended.
pub(crate) fn session_ended_error() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the session with the ensemble has ended; a new one is being opened",
    )
    .on("zookeeper")
}

/// Returns the error when the store is closed or is being closed.
pub(crate) fn closed_error() -> Error {
    Error::new(ErrorKind::Closed, "the ZooKeeper backend was closed").on("zookeeper")
}

/// Returns the error when another client removed the caller's entry from the queue.
fn entry_removed_error() -> Error {
    Error::new(
        ErrorKind::Lost,
        "another client removed our entry from the queue",
    )
    .on("zookeeper")
}

/// Returns the error when a contender lost its queue entry, because its caller did not poll its
/// future for too long.
pub(crate) fn entry_expired_error() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the caller's task stood still for {ENTRY_LEASE:?}, so its queue entry was given up: \
             ask again"
        ),
    )
    .on("zookeeper")
}

/// Returns the error for a node that was lost for this reason before its lock was granted.
pub(crate) fn entry_lost_error(reason: LossReason) -> Error {
    match reason {
        LossReason::SessionLost => session_ended_error(),
        LossReason::Expired => entry_expired_error(),
        _ => entry_removed_error(),
    }
}

/// Returns the error when an option is wrong.
pub(crate) fn invalid_config(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message).on("zookeeper")
}

/// Returns the kind and the text of the error that a caller of this backend gets.
fn kind_and_text(error: &zk::Error, access: Access) -> (ErrorKind, &'static str) {
    use zk::Error as E;
    let unanswered = match access {
        Access::Read => ErrorKind::Unavailable,
        Access::Write => ErrorKind::OutcomeUnknown,
    };
    match error {
        // The request may have been in flight when the connection or the session ended, so it may
        // have happened.
        E::ConnectionLoss | E::ClientClosed | E::SessionExpired | E::Timeout => {
            (unanswered, "the connection was lost before the answer came")
        }
        E::NoHosts => (ErrorKind::Unavailable, "no server can be reached"),
        E::SessionMoved | E::Throttled | E::NotReadOnly => {
            (ErrorKind::Unavailable, "the server cannot serve this now")
        }
        E::NoAuth => (
            ErrorKind::AccessDenied,
            "these credentials may not do this here",
        ),
        E::AuthFailed => (ErrorKind::AccessDenied, "the credentials were refused"),
        E::InvalidAcl => (
            ErrorKind::AccessDenied,
            "the server refused the access list: `acl=creator` needs credentials",
        ),
        E::QuotaExceeded => (
            ErrorKind::LimitExceeded,
            "a quota of the ensemble is used up",
        ),
        E::Unimplemented => (
            ErrorKind::Unsupported,
            "the server is too old for this (3.6 or later is needed)",
        ),
        // The client reports other failures of its connection as `Custom`.
        E::Custom(_) => (unanswered, "the connection failed"),
        E::UnexpectedError(_) | E::UnmarshalError { .. } => {
            (unanswered, "the answer cannot be understood")
        }
        E::NoNode | E::NodeExists | E::BadVersion | E::NotEmpty | E::NoChildrenForEphemerals => (
            ErrorKind::Corrupt,
            "another program has changed the nodes of distlock",
        ),
        // A server answers `BadArguments` only to a malformed request. `MarshallingError` means
        // that the client cannot encode a request. Both are bugs of this library.
        E::BadArguments(_) | E::MarshallingError => (
            ErrorKind::Internal,
            "the server does not understand the request",
        ),
        _ => (
            unanswered,
            "the server answered with an unknown error; the log of the server may say more",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_whether_the_operation_happened() {
        use zk::Error as E;
        let table = [
            (
                E::ConnectionLoss,
                ErrorKind::Unavailable,
                ErrorKind::OutcomeUnknown,
            ),
            (
                E::ClientClosed,
                ErrorKind::Unavailable,
                ErrorKind::OutcomeUnknown,
            ),
            (
                E::SessionExpired,
                ErrorKind::Unavailable,
                ErrorKind::OutcomeUnknown,
            ),
            (
                E::Timeout,
                ErrorKind::Unavailable,
                ErrorKind::OutcomeUnknown,
            ),
            (
                E::UnexpectedError("x".into()),
                ErrorKind::Unavailable,
                ErrorKind::OutcomeUnknown,
            ),
            (E::NoHosts, ErrorKind::Unavailable, ErrorKind::Unavailable),
            (
                E::SessionMoved,
                ErrorKind::Unavailable,
                ErrorKind::Unavailable,
            ),
            (
                E::NotReadOnly,
                ErrorKind::Unavailable,
                ErrorKind::Unavailable,
            ),
            (E::Throttled, ErrorKind::Unavailable, ErrorKind::Unavailable),
            (E::NoAuth, ErrorKind::AccessDenied, ErrorKind::AccessDenied),
            (
                E::AuthFailed,
                ErrorKind::AccessDenied,
                ErrorKind::AccessDenied,
            ),
            (
                E::InvalidAcl,
                ErrorKind::AccessDenied,
                ErrorKind::AccessDenied,
            ),
            (
                E::QuotaExceeded,
                ErrorKind::LimitExceeded,
                ErrorKind::LimitExceeded,
            ),
            (
                E::Unimplemented,
                ErrorKind::Unsupported,
                ErrorKind::Unsupported,
            ),
            (E::NodeExists, ErrorKind::Corrupt, ErrorKind::Corrupt),
            (
                E::UnexpectedErrorCode(-7),
                ErrorKind::Unavailable,
                ErrorKind::OutcomeUnknown,
            ),
            (
                E::ReconfigDisabled,
                ErrorKind::Unavailable,
                ErrorKind::OutcomeUnknown,
            ),
            (
                E::MarshallingError,
                ErrorKind::Internal,
                ErrorKind::Internal,
            ),
        ];
        for (error, read, write) in table {
            let passes = matches!(read, ErrorKind::Unavailable | ErrorKind::LimitExceeded);
            let said = translate(error.clone(), Access::Read);
            assert_eq!(said.is_retryable(), passes, "{error}");
            assert_eq!(
                translate(error.clone(), Access::Read).kind(),
                read,
                "{error}"
            );
            assert_eq!(
                translate(error.clone(), Access::Write).kind(),
                write,
                "{error}"
            );
        }
        assert!(no_answer_error(Access::Read).did_not_happen());
        assert!(!no_answer_error(Access::Write).did_not_happen());
        assert!(not_connected_error().is_retryable() && session_ended_error().is_retryable());
    }
}
