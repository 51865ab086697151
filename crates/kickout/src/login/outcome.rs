//! The answer to a login.

use std::{fmt, time::Duration};

use crate::{
    model::{
        ident::{Device, Generation},
        login::{Denied, Overtaken},
        notice::Code,
    },
    session::handle::Session,
};

/// The answer to a login.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoginOutcome {
    /// The client is logged in.
    Admitted(Session),
    /// The login is refused for now.
    Busy {
        /// Delay before the next attempt.
        retry_after: Duration,
    },
    /// The login is refused.
    Denied(Denied),
    /// A newer login of the account came first.
    Superseded(Overtaken),
}

impl fmt::Display for LoginOutcome {
    /// One line for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admitted(_) => f.write_str("admitted"),
            Self::Busy { retry_after } => write!(f, "busy: come back in {retry_after:?}"),
            Self::Denied(denied) => write!(f, "denied: {}", denied.reason),
            Self::Superseded(Overtaken {
                by_device: Some(by),
                ..
            }) => {
                write!(f, "superseded: device {by} logged in")
            }
            Self::Superseded(_) => f.write_str("superseded: another device logged in"),
        }
    }
}

/// The denial with the standard text of its code.
pub(crate) fn denied_outcome(code: Code, by_device: Option<Device>) -> LoginOutcome {
    LoginOutcome::Denied(Denied {
        by_device,
        ..Denied::new(code)
    })
}

/// The answer to a login that a newer one replaced.
pub(crate) const fn overtaken_outcome(
    by_device: Option<Device>,
    r#gen: Option<Generation>,
) -> LoginOutcome {
    LoginOutcome::Superseded(Overtaken { by_device, r#gen })
}
