//! The meaning of a driver's error.
//!
//! The module owns the three questions that each dialect answers for its error codes: did the
//! statement happen, not happen, or is that unknown; is the store or one row at fault; can the
//! connection be used again. A code that nobody knows counts as an unknown outcome for a write.

use std::io;

use distlock_backend_kit::batch::Failure;
use distlock_core::{Error, ErrorKind};

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::config::{ServerConfig, SslMode};

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
    /// One row of a batch may be the cause: sent one by one, the other operations may succeed.
    pub(crate) one_row: bool,
    /// The connection cannot be used again.
    pub(crate) reconnect: bool,
    /// The same statement may succeed at once.
    pub(crate) retry: bool,
    /// The server is at a limit that passes; the statement is not at fault.
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

    /// The server is short of memory, disk or the like for now.
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

/// Whether the system had no thread for the driver, which needs one to connect. No answer of a
/// server is of this kind. A write that may have been sent stays an unknown outcome.
pub(crate) fn no_thread(error: &io::Error, access: Access) -> bool {
    matches!(access, Access::Read) && error.kind() == io::ErrorKind::WouldBlock
}

/// A failed statement.
#[derive(Debug)]
pub(crate) struct StatementError {
    pub(crate) meaning: ErrorMeaning,
    pub(crate) source: sqlx::Error,
    /// The server's own words, where they are better than the driver's.
    pub(crate) said: Option<String>,
}

impl StatementError {
    /// The answer cannot be read, although the statement was carried out.
    pub(crate) fn corrupt(error: Error) -> Self {
        Self {
            meaning: ErrorMeaning::of(error.kind(), "the answer cannot be read"),
            source: sqlx::Error::Decode(Box::new(error)),
            said: None,
        }
    }

    /// The answer belongs to another statement: the connection may be one answer behind.
    #[cfg(feature = "mysql")]
    pub(crate) fn out_of_step(error: Error) -> Self {
        let mut failed = Self::corrupt(error);
        failed.meaning.reconnect = true;
        failed
    }

    /// The same error when an earlier statement of the batch was carried out already.
    pub(crate) fn after_partial_work(mut self, partly_done: bool) -> Self {
        if partly_done {
            self.meaning.kind = ErrorKind::OutcomeUnknown;
        }
        self
    }

    /// The same error when the statement is not worth another try, or must not have one.
    #[cfg(feature = "sqlite")]
    pub(crate) fn without_retry(mut self) -> Self {
        self.meaning.retry = false;
        self
    }

    /// Whether the connection was lost, perhaps long before the statement was sent, so that it is
    /// unknown whether the statement arrived. A timeout does not count: a server that is only slow
    /// may still be working on the statement.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn lost_connection(&self) -> bool {
        self.meaning.kind == ErrorKind::OutcomeUnknown
            && self.meaning.reconnect
            && !self.is_timeout()
    }

    /// Whether no answer came in time.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(&self.source, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut)
    }

    /// The same error, with a better text where the options do not mention TLS although a password
    /// leaves this machine.
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

/// Why no TLS could be agreed on.
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsTrouble {
    /// The server has none.
    Absent,
    /// The driver could not use the files or the host that the options name.
    Options,
    /// We do not accept the server's certificate.
    Certificate,
    /// The server broke the handshake off, as a server does that demands a client certificate.
    Refused,
    /// The other end does not speak TLS correctly.
    Protocol,
}

/// Whether no TLS could be agreed on, and why. The driver reports the reason only in words. An
/// error of the TLS library arrives as invalid data while connecting; later, invalid data means
/// damage on the way.
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

#[cfg(test)]
pub(crate) mod tests {
    use std::borrow::Cow;

    use distlock_core::ErrorKind;
    use sqlx::error::DatabaseError;

    /// Whether asking again may help. A limit that one row reaches is reached again; a limit of the
    /// server passes.
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
