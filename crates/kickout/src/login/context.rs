//! One login in progress.

use std::{sync::Arc, time::Duration};

use distlock_core::Moment;
use tokio_util::sync::CancellationToken;

use crate::{
    login::outcome::LoginOutcome,
    model::{login::Login, policy::Newcomer, resume::ResumeToken},
    node::Node,
    wait::jitter,
};

/// Most times that one login acquires the account's lock, and most writes while it holds the lock
/// once.
pub(crate) const MAX_RUNS: u32 = 2;

/// One login in progress.
pub(crate) struct LoginRun {
    pub(crate) node: Arc<Node>,
    pub(crate) login: Login,
    /// Time at which the login began.
    pub(crate) started: Moment,
    /// Cancelled when the login's caller drops its future.
    pub(crate) caller_gone: CancellationToken,
}

impl LoginRun {
    /// The answer that refuses the login temporarily.
    pub(crate) fn busy_outcome(&self) -> LoginOutcome {
        // The delays are spread over most of a second, so that clients that were refused together
        // do not return together.
        LoginOutcome::Busy {
            retry_after: Duration::from_millis(200) + jitter(Duration::from_millis(800)),
        }
    }

    /// The login in the form that the policy takes.
    pub(crate) fn newcomer(&self, resume: Option<&ResumeToken>) -> Newcomer<'_> {
        Newcomer {
            class: &self.login.class,
            device: &self.login.device,
            intent: self.login.intent,
            resumes: resume.map(|token| (token.session(), token.generation())),
        }
    }
}
