//! The meaning of a driver's error.
//!
//! The module owns the three questions that each dialect answers for its error codes. Was the
//! statement carried out, or is that unknown? Is the store at fault, or one row? Can the connection
//! be used again? For a write, an error code without an entry counts as an unknown outcome.
//!
//! The drivers of servers panic on a packet that no server of the expected product sends. Such a
//! packet comes from another kind of server, or from a server that stopped in the middle of a
//! packet. The panic becomes an error. After such an error the state of the connection is unknown:
//! the caller must not use the connection again.

use std::{any::Any, future::Future, io};

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::config::{ServerConfig, SslMode};
use distlock_backend_kit::{batch::Failure, panics};
use distlock_core::{Error, ErrorKind, threads};

/// Whether a failed statement reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The meaning of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorMeaning {
    pub(crate) kind: ErrorKind,
    /// One row of a batch may be the cause. If each operation is sent alone, the operations on the
    /// other rows may succeed.
    pub(crate) one_row: bool,
    /// The connection cannot be used again.
    pub(crate) reconnect: bool,
    /// The same statement may succeed if it is sent again without a pause.
    pub(crate) retry: bool,
    /// The server is at a temporary limit; the statement is not at fault.
    passing: bool,
    what: &'static str,
}

impl ErrorMeaning {
    pub(crate) const fn of(kind: ErrorKind, what: &'static str) -> Self {
        Self {
            kind,
            one_row: false,
            reconnect: false,
            retry: false,
            passing: false,
            what,
        }
    }

    pub(crate) const fn one_row(mut self) -> Self {
        self.one_row = true;
        self
    }

    pub(crate) const fn reconnect(mut self) -> Self {
        self.reconnect = true;
        self
    }

    pub(crate) const fn retry(mut self) -> Self {
        self.retry = true;
        self
    }

    /// The server is temporarily short of memory, disk space or a similar resource.
    pub(crate) const fn server_limit(what: &'static str) -> Self {
        let mut meaning = Self::of(ErrorKind::LimitExceeded, what);
        meaning.passing = true;
        meaning
    }

    pub(crate) fn error(self) -> Error {
        let error = Error::new(self.kind, self.what);
        if self.passing { error.passing() } else { error }
    }
}

/// Whether the system could not start the thread that the driver needs to connect. The kind of such
/// an error is `WouldBlock`, and no answer of a server leads to this kind. A write with this error
/// may have been sent, so that its outcome stays unknown.
pub(crate) fn no_thread(error: &io::Error, access: Access) -> bool {
    matches!(access, Access::Read) && error.kind() == io::ErrorKind::WouldBlock
}

/// A failed statement.
#[derive(Debug)]
pub(crate) struct StatementError {
    pub(crate) meaning: ErrorMeaning,
    pub(crate) source: sqlx::Error,
    /// The server's own error text, where the driver's text says less.
    pub(crate) said: Option<String>,
}

impl StatementError {
    /// The error for an answer that cannot be read, although the statement was carried out.
    pub(crate) fn corrupt(error: Error) -> Self {
        Self {
            meaning: ErrorMeaning::of(error.kind(), "the answer cannot be read"),
            source: sqlx::Error::Decode(Box::new(error)),
            said: None,
        }
    }

    /// The error for an answer that belongs to another statement. The connection cannot be used
    /// again, because each later answer may belong to an earlier statement.
    #[cfg(feature = "mysql")]
    pub(crate) fn out_of_step(error: Error) -> Self {
        let mut failed = Self::corrupt(error);
        failed.meaning.reconnect = true;
        failed
    }

    /// Turns the error into an unknown outcome if an earlier statement of the batch was carried out
    /// (`partly_done`).
    pub(crate) fn after_partial_work(mut self, partly_done: bool) -> Self {
        if partly_done {
            self.meaning.kind = ErrorKind::OutcomeUnknown;
        }
        self
    }

    /// The same error, with the mark that the statement is not to be sent again.
    #[cfg(feature = "sqlite")]
    pub(crate) fn without_retry(mut self) -> Self {
        self.meaning.retry = false;
        self
    }

    /// Whether the connection was lost, so that nobody knows whether the statement arrived. The
    /// connection may have been lost long before the statement was sent. A timeout does not count:
    /// a slow server may still be working on the statement.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn lost_connection(&self) -> bool {
        self.meaning.kind == ErrorKind::OutcomeUnknown
            && self.meaning.reconnect
            && !self.is_timeout()
    }

    /// Whether no answer came within the timeout.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(&self.source, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut)
    }

    /// The same error, with another text in one case: the server offers no TLS, a password would
    /// leave this machine, and no option sets the mode of TLS.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn on_connecting(mut self, config: &ServerConfig) -> Self {
        if config.ssl_mode == SslMode::Auto
            && tls_trouble(&self.source, Access::Read) == Some(TlsTrouble::Absent)
        {
            self.meaning = ErrorMeaning::of(
                ErrorKind::InvalidConfig,
                "the server offers no TLS, and a password must not cross a network in clear: turn \
                 TLS on at the server, or on a network that you trust set the option `tls` to \
                 `disable`",
            )
            .reconnect();
        }
        self
    }

    pub(crate) fn into_error(self) -> Error {
        let error = self.meaning.error();
        match self.said {
            Some(said) => error.caused_by(said),
            None => error.caused_by(self.source),
        }
    }

    pub(crate) fn into_failure(self) -> Failure {
        let one_row = self.meaning.one_row;
        let error = self.into_error();
        if one_row {
            Failure::Split(error)
        } else {
            Failure::Whole(error)
        }
    }
}

/// The reason for a failed TLS handshake.
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsTrouble {
    /// The server offers no TLS.
    Absent,
    /// The driver could not use the files or the host that the options name.
    Options,
    /// The client does not accept the server's certificate.
    Certificate,
    /// The server ended the handshake, for example because a client certificate is missing.
    Refused,
    /// The other end does not speak TLS correctly.
    Protocol,
}

/// The reason for a failed TLS handshake; `None` for any other error. The driver reports the reason
/// only in the error's text. While connecting, an error of the TLS library has the kind
/// `InvalidData`. On an open connection, that kind means that data was damaged on the network.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn tls_trouble(error: &sqlx::Error, access: Access) -> Option<TlsTrouble> {
    match error {
        sqlx::Error::Tls(problem)
            if problem.to_string().contains("server does not support TLS") =>
        {
            Some(TlsTrouble::Absent)
        }
        sqlx::Error::Tls(_) => Some(TlsTrouble::Options),
        sqlx::Error::Io(error)
            if access == Access::Read && error.kind() == io::ErrorKind::InvalidData =>
        {
            let said = error.to_string();
            Some(if said.contains("invalid peer certificate") {
                TlsTrouble::Certificate
            } else if said.contains("received fatal alert") {
                TlsTrouble::Refused
            } else {
                TlsTrouble::Protocol
            })
        }
        _ => None,
    }
}

/// The error for a panic of the driver: either the system had no thread for the driver, or the
/// server sent a packet that the driver does not understand.
pub(crate) fn panic_error(panic: &(dyn Any + Send)) -> sqlx::Error {
    match threads::missed(panic) {
        Some(why) => sqlx::Error::Io(why),
        None => sqlx::Error::Protocol("a packet was not understood".into()),
    }
}

/// Awaits a call of the driver. A panic of the driver becomes an error.
pub(crate) async fn catch_panics<T>(
    does: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let done = panics::catching(does).await;
    done.unwrap_or_else(|panic| Err(panic_error(&*panic)))
}

/// Reads a value of a row. The driver panics if the value is shorter than its type needs; the panic
/// becomes an error.
pub(crate) fn decode<T>(read: impl FnOnce() -> Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
    panics::caught(read).unwrap_or_else(|panic| Err(panic_error(&*panic)))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::borrow::Cow;

    use distlock_core::ErrorKind;
    use sqlx::error::DatabaseError;

    /// Whether the same request may succeed later. A limit that one row reaches is reached again; a
    /// limit of the server is temporary.
    pub(crate) fn may_pass(kind: ErrorKind, one_row: bool) -> bool {
        match kind {
            ErrorKind::OutcomeUnknown | ErrorKind::Unavailable => true,
            ErrorKind::LimitExceeded => !one_row,
            _ => false,
        }
    }

    /// A driver's error with a code.
    #[derive(Debug)]
    pub(crate) struct Coded(pub(crate) String);

    impl std::fmt::Display for Coded {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "(code: {})", self.0)
        }
    }

    impl std::error::Error for Coded {}

    impl DatabaseError for Coded {
        fn message(&self) -> &'static str {
            "scripted"
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.as_str().into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }
}
