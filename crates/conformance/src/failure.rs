//! The failure of a case, and the macros that report a failure.
//!
//! Invariant: a failure names the line of the suite that noticed it.

use std::{fmt, panic::Location};

use distlock_core::{Error, ErrorKind};

/// The failure of a case, with the place in the suite that noticed it.
#[derive(Clone)]
pub struct Failure {
    message: String,
    place: &'static Location<'static>,
    not_applicable: bool,
}

/// The result of a case.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure that names the line of its caller.
    #[track_caller]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            place: Location::caller(),
            not_applicable: false,
        }
    }

    /// Builds the failure that ends a case as not applicable, because the store lacks the feature
    /// that the case tests. `reason` names the feature. A case uses this function when only a
    /// request to the store shows that the feature is missing. Before the call, the case must check
    /// that the store does not promise the feature.
    #[track_caller]
    pub(crate) fn not_applicable(reason: &str) -> Self {
        Self {
            not_applicable: true,
            ..Self::new(reason)
        }
    }

    pub(crate) fn is_not_applicable(&self) -> bool {
        self.not_applicable
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.place.file().rsplit('/').next().unwrap_or_default();
        write!(f, "{} ({file}:{})", self.message, self.place.line())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::new(format!("unexpected error: {:?}: {error}", error.kind()))
    }
}

impl From<std::io::Error> for Failure {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::new(format!("unexpected input or output error: {error}"))
    }
}

impl From<String> for Failure {
    #[track_caller]
    fn from(message: String) -> Self {
        Self::new(message)
    }
}

/// Fails the case unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Failure::new(format!($($message)+)));
        }
    };
}

/// Fails the case unless two values are equal, and shows both.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err($crate::Failure::new(format!(
                        "{}: got {left:?}, expected {right:?}", format!($($message)+)
                    )));
                }
            }
        }
    };
}

/// Fails the case.
macro_rules! fail {
    ($($message:tt)+) => {
        return Err($crate::Failure::new(format!($($message)+)))
    };
}

pub(crate) use {ensure, ensure_eq, fail};

/// Returns the error of a call that must fail with one of these kinds. Any other answer is a
/// failure.
#[track_caller]
pub(crate) fn expect_error<T: fmt::Debug>(
    what: &str,
    answer: distlock_core::Result<T>,
    kinds: &[ErrorKind],
) -> Outcome<Error> {
    match answer {
        Err(error) if kinds.contains(&error.kind()) => Ok(error),
        Err(error) => Err(Failure::new(format!(
            "{what}: got {:?} ({error}), expected one of {kinds:?}",
            error.kind()
        ))),
        Ok(value) => Err(Failure::new(format!(
            "{what}: succeeded with {value:?}, expected one of {kinds:?}"
        ))),
    }
}
