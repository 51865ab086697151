//! The error type of all backends and of the engine.
//!
//! This module owns [`Error`], its kinds, and the text that people read. Invariant: the kind
//! decides whether an operation may have happened, and the kind and the passing mark of a limit
//! decide whether the same call may succeed later. No code parses the text. An error must never
//! hold a secret.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use crate::types::{
    ident::HolderInfo,
    name::LockName,
    presentable::{excerpt, presentable},
    shell_word::quote_for_shell,
};

/// The result of a lock or record operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a lock or record operation. An error is one pointer wide and cheap to clone.
///
/// Programs match on [`Error::kind`] or call a predicate. The text is for people and never holds a
/// secret.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    backend: Option<&'static str>,
    operation: Option<&'static str>,
    name: Option<LockName>,
    /// Whether the limit is temporary (see [`Error::passing`]).
    passes: bool,
    /// The pause before the next attempt (see [`Error::retry_in`]).
    retry_pause: Option<Duration>,
    holder: Option<HolderInfo>,
    setting: Option<&'static str>,
    remedy: Option<Remedy>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store refused the credentials, or these credentials may not do the operation.
    AccessDenied,
    /// The locker or the handle on the store was closed.
    Closed,
    /// The store holds a value that this library did not write or cannot read. A lock with such a
    /// value never counts as free.
    Corrupt,
    /// A bug in this library or in a backend.
    Internal,
    /// An argument is out of its documented range.
    InvalidArgument,
    /// A URL, option or configuration file is wrong.
    InvalidConfig,
    /// A lock name or record key breaks a rule.
    InvalidName,
    /// A limit of the store or of this process is reached: memory, connections, size. Some limits
    /// are temporary, and others are permanent; [`Error::is_retryable`] returns `true` for a
    /// temporary limit.
    LimitExceeded,
    /// The lock was lost before the operation or during it.
    Lost,
    /// The caller does not hold the lock.
    NotHeld,
    /// The operation may or may not have happened, because its answer was lost.
    OutcomeUnknown,
    /// The lock did not become free within the caller's wait.
    Timeout,
    /// The store cannot be reached or cannot serve now. The operation did not happen.
    Unavailable,
    /// The backend cannot do this at all.
    Unsupported,
}

/// The step that the reader of an error can take. `Display` is a sentence for users of the library;
/// a program with its own commands prints its own sentence after [`Error::problem`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// The lock was busy: wait longer, or look who holds the lock.
    WaitLonger,
    /// Tables of the store are missing or unusable: make them.
    Migrate {
        /// The URL of the store, without its password.
        url: String,
        /// The statement that the database must carry out before the migration, such as one that
        /// drops unusable tables.
        first: Option<String>,
    },
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitLonger => {
                f.write_str("allow more time with `LockBuilder::wait`, look with `Locker::inspect`")
            }
            Self::Migrate { url, first } => {
                if let Some(statement) = first {
                    write!(
                        f,
                        "run `{}` on the database and then ",
                        presentable(statement)
                    )?;
                }
                let url = quote_for_shell(url);
                write!(f, "run `distlock migrate --backend {url}`")
            }
        }
    }
}

impl Error {
    /// An error with a message. The message begins in lower case, names the value or resource that
    /// caused the error, and ends without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            backend: None,
            operation: None,
            name: None,
            passes: false,
            retry_pause: None,
            holder: None,
            setting: None,
            remedy: None,
            source: None,
        }))
    }

    /// Adds the backend that reported the error. A backend that was added before stays.
    #[must_use]
    pub fn on(mut self, backend: &'static str) -> Self {
        self.0.backend.get_or_insert(backend);
        self
    }

    /// Adds the operation that failed. An operation that was added before stays.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Adds the name of the lock. A name that was added before stays.
    #[must_use]
    pub fn about(mut self, name: &LockName) -> Self {
        self.0.name.get_or_insert_with(|| name.clone());
        self
    }

    /// Adds the cause. The text of the cause is shown, so it must hold no secret. If the cause is
    /// an [`Error`] of the same kind and marks its limit as [passing](Error::passing), this error
    /// marks its limit as passing too. This error takes over the cause's
    /// [pause](Error::retry_pause), [holder](Error::holder) and [remedy](Error::remedy), unless it
    /// has its own.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let source = source.into();
        if let Some(cause) = source.downcast_ref::<Self>() {
            self.0.passes |= cause.kind() == self.kind() && cause.0.passes;
            self.0.retry_pause = self.0.retry_pause.or(cause.0.retry_pause);
            let (holder, remedy) = (&cause.0.holder, &cause.0.remedy);
            self.0.holder = self.0.holder.take().or_else(|| holder.clone());
            self.0.remedy = self.0.remedy.take().or_else(|| remedy.clone());
        }
        self.0.source = Some(Arc::from(source));
        self
    }

    /// Marks the limit as a state of the server or of this process: memory, disk or connections are
    /// used up for now. The same request may succeed later, so the error [is
    /// retryable](Error::is_retryable). For [`ErrorKind::LimitExceeded`] only.
    #[must_use]
    pub fn passing(mut self) -> Self {
        self.0.passes = true;
        self
    }

    /// Adds the pause before the next attempt. A backend whose server is away adds it, so that all
    /// waiters of the process ask again at the same moment, with one attempt to connect.
    #[must_use]
    pub fn retry_in(mut self, pause: Duration) -> Self {
        self.0.retry_pause = Some(pause);
        self
    }

    /// The pause before the next attempt that the backend suggests; `None` = the caller chooses it.
    /// An earlier attempt is allowed, and may get the same error without a request to the server.
    #[must_use]
    pub fn retry_pause(&self) -> Option<Duration> {
        self.0.retry_pause
    }

    /// Adds the holder that kept the lock busy.
    #[must_use]
    pub(crate) fn held_by(mut self, holder: Option<HolderInfo>) -> Self {
        self.0.holder = holder;
        self
    }

    /// The holder that kept the lock busy, of a [time-out](ErrorKind::Timeout); `None` if the store
    /// does not know the holder.
    #[must_use]
    pub fn holder(&self) -> Option<&HolderInfo> {
        self.0.holder.as_ref()
    }

    /// Adds the setting whose value is wrong.
    #[must_use]
    pub fn of_setting(mut self, setting: &'static str) -> Self {
        self.0.setting = Some(setting);
        self
    }

    /// The setting whose value is wrong, of an error that names one, such as
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): the key of a table in a configuration file.
    /// With it, a program can tell its user where the value was given.
    #[must_use]
    pub fn setting(&self) -> Option<&'static str> {
        self.0.setting
    }

    /// Adds the step that the reader can take.
    #[must_use]
    pub fn with_remedy(mut self, remedy: Remedy) -> Self {
        self.0.remedy = Some(remedy);
        self
    }

    /// The step that the reader can take, if there is a known one.
    #[must_use]
    pub fn remedy(&self) -> Option<&Remedy> {
        self.0.remedy.as_ref()
    }

    /// The text without the [remedy](Error::remedy).
    #[must_use]
    pub fn problem(&self) -> String {
        Problem(self).to_string()
    }

    /// The error of an operation that only reads. A read changes nothing, so a lost answer leaves
    /// nothing in doubt: [`ErrorKind::OutcomeUnknown`] becomes [`ErrorKind::Unavailable`].
    #[must_use]
    pub fn of_read(mut self) -> Self {
        if self.kind() == ErrorKind::OutcomeUnknown {
            self.0.kind = ErrorKind::Unavailable;
        }
        self
    }

    /// The kind of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without backend, operation, name and cause.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The name of the lock in this error; `None` when no lock name was added.
    #[must_use]
    pub fn name(&self) -> Option<&LockName> {
        self.0.name.as_ref()
    }

    /// Whether the same call may succeed later without a change by hand. The answer is `true` after
    /// a time-out, while the store is unavailable, when the outcome is unknown, and when the limit
    /// is a state of the server (Redis out of memory, a full disk). A limit on the request itself
    /// (a value that is too large) is permanent.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self.kind() {
            ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::OutcomeUnknown => true,
            ErrorKind::LimitExceeded => self.0.passes,
            _ => false,
        }
    }

    /// Whether the error means that the lock is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.kind(), ErrorKind::Lost | ErrorKind::NotHeld)
    }

    /// Whether the operation certainly changed nothing in the store.
    #[must_use]
    pub fn did_not_happen(&self) -> bool {
        !matches!(self.kind(), ErrorKind::OutcomeUnknown | ErrorKind::Internal)
    }
}

/// The text of an error without its remedy, which stands once at the end of the whole text.
struct Problem<'a>(&'a Error);

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0.0;
        if let Some(backend) = inner.backend {
            write!(f, "{backend}: ")?;
        }
        if let Some(operation) = inner.operation {
            write!(f, "{operation}")?;
            if let Some(name) = &inner.name {
                write!(f, " {name:?}")?;
            }
            write!(f, ": ")?;
        } else if let Some(name) = &inner.name {
            write!(f, "{name:?}: ")?;
        }
        f.write_str(&presentable(&inner.message))?;
        let Some(source) = &inner.source else {
            return Ok(());
        };
        match source.downcast_ref::<Error>() {
            Some(cause) => write!(f, ": {}", Problem(cause)),
            // The text of a driver's error quotes the server, which may send control characters and
            // pages of text.
            None => write!(f, ": {}", excerpt(&source.to_string())),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Problem(self))?;
        match &self.0.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}, \"{self}\")", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // `Display` already shows the text of the cause, and a reporter that walks the chain would
        // print that text twice. So this method skips the cause and returns the source of the
        // cause.
        self.0.source.as_deref().and_then(StdError::source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_shows_backend_operation_name_message_and_cause_in_one_line() {
        let name = LockName::new("order:42").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "no connection")
            .on("redis")
            .during("acquire")
            .about(&name)
            .caused_by("connection refused");
        assert_eq!(
            error.to_string(),
            "redis: acquire \"order:42\": no connection: connection refused"
        );
        assert!(error.is_retryable() && !error.is_lost() && error.did_not_happen());
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn the_remedy_stands_once_at_the_end_and_apart_from_the_problem() {
        let busy = Error::new(ErrorKind::Timeout, "busy")
            .held_by(Some(HolderInfo::new("ci@host:12")))
            .with_remedy(Remedy::WaitLonger);
        let outer = Error::new(ErrorKind::Unavailable, "no turn").caused_by(busy);
        assert_eq!(outer.problem(), "no turn: busy");
        assert_eq!(outer.remedy(), Some(&Remedy::WaitLonger));
        assert_eq!(outer.holder().unwrap().holder, "ci@host:12");
        let remedy = "allow more time with `LockBuilder::wait`, look with `Locker::inspect`";
        assert_eq!(outer.to_string(), format!("no turn: busy; {remedy}"));
    }

    #[test]
    fn the_advice_to_migrate_names_the_statement_and_the_store() {
        let advice = |url: &str, first: Option<&str>| {
            let (url, first) = (url.to_owned(), first.map(str::to_owned));
            Remedy::Migrate { url, first }.to_string()
        };
        let command = "run `distlock migrate --backend sqlite:/a/b.db`";
        assert_eq!(advice("sqlite:/a/b.db", None), command);
        assert_eq!(
            advice("sqlite:/a/b.db", Some("DROP TABLE t")),
            format!("run `DROP TABLE t` on the database and then {command}")
        );
        for (url, shown) in [("a?b=c&d", "'a?b=c&d'"), ("it's", "'it'\\''s'")] {
            let command = format!("run `distlock migrate --backend {shown}`");
            assert_eq!(advice(url, None), command);
        }
    }

    #[test]
    fn an_error_takes_over_the_pause_of_its_cause() {
        let [short, long] = [50, 1000].map(Duration::from_millis);
        let refused = || Error::new(ErrorKind::Unavailable, "refused").retry_in(short);
        let outer = || Error::new(ErrorKind::OutcomeUnknown, "no answer");
        assert_eq!(outer().retry_pause(), None);
        assert_eq!(outer().caused_by(refused()).retry_pause(), Some(short));
        let own = outer().retry_in(long).caused_by(refused());
        assert_eq!(own.retry_pause(), Some(long));
    }

    #[test]
    fn a_limit_error_is_retryable_only_if_it_is_marked_as_passing() {
        use ErrorKind::{Internal, LimitExceeded, Unavailable};
        let size = || Error::new(LimitExceeded, "a value is too large");
        let memory = || Error::new(LimitExceeded, "out of memory").passing();
        for (error, retryable) in [
            (size(), false),
            (memory(), true),
            (memory().on("redis").during("acquire"), true),
            (memory().clone(), true),
            // The outer error is of the same kind as its cause, so it takes the passing mark over.
            (size().caused_by(memory()), true),
            (size().caused_by(size()), false),
            (Error::new(Internal, "a bug").caused_by(memory()), false),
            (Error::new(Unavailable, "down").caused_by(size()), true),
        ] {
            assert_eq!(error.is_retryable(), retryable, "{error}");
        }
        assert!(memory().did_not_happen() && !memory().is_lost());
    }
}
