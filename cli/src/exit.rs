//! Exit codes, and failures with their messages.

use std::{fmt, io};

use distlock::ErrorKind;

use crate::advice::Advice;

/// The documented exit codes. `distlock run` can also end with the code of its command.
pub mod code {
    /// Success.
    pub const OK: u8 = 0;
    /// A verdict failed: `demo`, `conformance`, `doctor`.
    pub const FAILED: u8 = 1;
    /// Bad usage, name or TTL.
    pub const USAGE: u8 = 64;
    /// The backend, or the place where results are written, is not available.
    pub const UNAVAILABLE: u8 = 69;
    /// A bug.
    pub const BUG: u8 = 70;
    /// The lock was busy during the whole wait.
    pub const BUSY: u8 = 75;
    /// The lock was lost.
    pub const LOST: u8 = 76;
    /// The store refused the credentials.
    pub const DENIED: u8 = 77;
    /// The configuration is wrong.
    pub const CONFIG: u8 = 78;
    /// The command exists and cannot be executed, as in a shell.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// The command does not exist, as in a shell.
    pub const NOT_FOUND: u8 = 127;
    /// This is added to the number of the signal that ended a command, as in a shell.
    pub const SIGNALLED: u8 = 128;
}

/// The exit code for a command that a signal ended.
pub fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(code::BUG, |signal| code::SIGNALLED.saturating_add(signal))
}

/// The result of a step or of a whole command: a value or an exit code, or else a failure.
pub type Outcome<T = u8> = Result<T, Failure>;

/// A failure with its exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    message: String,
    pub(crate) advice: Option<Advice>,
}

impl Failure {
    /// A failure with this exit code and message.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            advice: None,
        }
    }

    /// The failure when a result cannot be printed. A closed pipe gives an empty message, and the
    /// code of success.
    pub(crate) fn of_output(error: &io::Error) -> Self {
        // The reader of the output has ended, so nobody could read a message.
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(code::OK, "");
        }
        Self::new(
            code::UNAVAILABLE,
            format!("cannot write to standard output: {error}"),
        )
    }

    /// Turns the silent failure of a closed pipe into a failure with a message, for a command whose
    /// purpose is its output.
    pub(crate) fn with_closed_pipe_as_failure(self) -> Self {
        if self.message.is_empty() {
            return Self::new(code::UNAVAILABLE, "nobody reads standard output");
        }
        self
    }

    /// Ignores a closed pipe, for a command whose exit code matters more than its output. Any other
    /// failure is returned.
    pub fn ignore_closed_pipe(self) -> Outcome<()> {
        if self.message.is_empty() {
            return Ok(());
        }
        Err(self)
    }

    /// The same failure with the flags that name its store, for the commands that it advises.
    pub(crate) fn at_store(mut self, flags: String) -> Self {
        if let Some(advice) = &mut self.advice {
            advice.store_flags = flags;
        }
        self
    }

    /// The same failure with another message.
    pub(crate) fn map_message(mut self, words: impl FnOnce(&str) -> String) -> Self {
        self.message = words(&self.message);
        self
    }

    /// Whether there is no message to print, because the reader of the output has ended.
    pub(crate) fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    /// A failure for bad usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(code::USAGE, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.advice.iter().try_for_each(|advice| advice.fmt(f))
    }
}

impl From<distlock::Error> for Failure {
    fn from(error: distlock::Error) -> Self {
        Self {
            code: code_of_kind(error.kind()),
            message: error.problem(),
            advice: Advice::of(&error),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(code::UNAVAILABLE, error.to_string())
    }
}

/// The exit code for a kind of error of the library.
fn code_of_kind(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidArgument | ErrorKind::InvalidName => code::USAGE,
        ErrorKind::Timeout => code::BUSY,
        ErrorKind::Lost | ErrorKind::NotHeld => code::LOST,
        ErrorKind::AccessDenied => code::DENIED,
        ErrorKind::InvalidConfig | ErrorKind::Unsupported => code::CONFIG,
        ErrorKind::Unavailable
        | ErrorKind::OutcomeUnknown
        | ErrorKind::Corrupt
        | ErrorKind::LimitExceeded
        | ErrorKind::Closed => code::UNAVAILABLE,
        // This covers `Internal`, and any kind that is added later without a row here.
        _ => code::BUG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_failure_has_its_documented_code() {
        for (kind, code) in [
            (ErrorKind::AccessDenied, 77),
            (ErrorKind::Closed, 69),
            (ErrorKind::Corrupt, 69),
            (ErrorKind::Internal, 70),
            (ErrorKind::InvalidArgument, 64),
            (ErrorKind::InvalidConfig, 78),
            (ErrorKind::InvalidName, 64),
            (ErrorKind::LimitExceeded, 69),
            (ErrorKind::Lost, 76),
            (ErrorKind::NotHeld, 76),
            (ErrorKind::OutcomeUnknown, 69),
            (ErrorKind::Timeout, 75),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Unsupported, 78),
        ] {
            let failure = Failure::from(distlock::Error::new(kind, "why"));
            assert_eq!(
                (failure.code, failure.to_string().as_str()),
                (code, "why"),
                "{kind:?}"
            );
        }
    }
}
