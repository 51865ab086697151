//! What a driver's error means: did it happen, did it not, or is that unknown; and is the store or one row at fault.

use std::io;

use distlock_core::{Error, ErrorKind, batch::Failure};

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::config::{ServerConfig, SslMode};

/// What a failed statement meant to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorMeaning {
    pub(crate) kind: ErrorKind,
    /// One row of a batch may be the cause: sent singly, the others may succeed.
    pub(crate) one_row: bool,
    /// The connection is of no more use.
    pub(crate) reconnect: bool,
    /// The same statement may succeed at once.
    pub(crate) retry: bool,
    /// It is a limit of the server, which passes, not of the statement.
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

    /// The server has no more memory, disk or the like for now.
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
/// server is of this kind, and a write that may have been sent stays unknown.
pub(crate) fn no_thread(error: &io::Error, access: Access) -> bool {
    matches!(access, Access::Read) && error.kind() == io::ErrorKind::WouldBlock
}

/// A failed statement.
#[derive(Debug)]
pub(crate) struct StatementError {
    pub(crate) meaning: ErrorMeaning,
    pub(crate) source: sqlx::Error,
    /// What the server said, where that is better than the driver's words.
    pub(crate) said: Option<String>,
}

impl StatementError {
    /// An answer that cannot be read, although the statement was carried out.
    pub(crate) fn corrupt(error: Error) -> Self {
        Self {
            meaning: ErrorMeaning::of(error.kind(), "the answer cannot be read"),
            source: sqlx::Error::Decode(Box::new(error)),
            said: None,
        }
    }

    /// Another answer than the statement has: the connection may be an answer behind.
    #[cfg(feature = "mysql")]
    pub(crate) fn out_of_step(error: Error) -> Self {
        let mut failed = Self::corrupt(error);
        failed.meaning.reconnect = true;
        failed
    }

    /// The same when an earlier statement of the batch has done a part already.
    pub(crate) fn after_partial_work(mut self, partly_done: bool) -> Self {
        if partly_done {
            self.meaning.kind = ErrorKind::OutcomeUnknown;
        }
        self
    }

    /// The same when it is not worth another try, or must not have one.
    #[cfg(feature = "sqlite")]
    pub(crate) fn without_retry(mut self) -> Self {
        self.meaning.retry = false;
        self
    }

    /// Whether the connection had gone, perhaps long before the statement was sent, so that it is not known whether the
    /// statement arrived. A server that is merely silent may be at it still.
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

    /// The same where the options say nothing of TLS, and it is needed because a password leaves
    /// this machine.
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
    /// The driver could not use what the options name.
    Options,
    /// We do not accept the server's certificate.
    Certificate,
    /// The server broke it off, as one does that accepts no client without a certificate.
    Refused,
    /// What came was not TLS as it should be.
    Protocol,
}

/// Whether no TLS could be agreed on, and why. The driver says it in words only, and what it heard from the library of
/// TLS comes as data that is not valid; later on, what is not valid was damaged on its way.
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
