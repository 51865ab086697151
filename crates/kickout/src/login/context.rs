//! One login in progress, and the parts of the flow that it uses.

use std::{sync::Arc, time::Duration};

use distlock_core::{Clock, Locker, Moment};
use tokio_util::sync::CancellationToken;

use crate::{
    directory::{access::Directory, bans::Bans},
    events::Events,
    login::{admission::Admissions, outcome::LoginOutcome, profiles::Profiles, queue::LoginQueues},
    model::{login::Login, policy::Newcomer, resume::ResumeToken, settings::Settings},
    node::{drain::Drain, history::History, liveness::LivenessCache, this_node::ThisNode},
    peer::{client::PeerClient, kick::Kicks},
    session::{
        end::SessionEnder, logout::Logouts, registry::Registry, removal::Removals, revoke::Revoker,
    },
    tasks::Tasks,
    wait::jitter,
};

/// The parts of the flow that a login uses.
#[derive(Debug)]
pub(crate) struct LoginParts {
    pub(crate) this: Arc<ThisNode>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) locker: Locker,
    pub(crate) directory: Arc<Directory>,
    pub(crate) history: Arc<History>,
    pub(crate) liveness: Arc<LivenessCache>,
    pub(crate) peers: Arc<PeerClient>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) bans: Arc<Bans>,
    pub(crate) revoker: Arc<Revoker>,
    pub(crate) kicks: Arc<Kicks>,
    pub(crate) removals: Arc<Removals>,
    pub(crate) ender: Arc<SessionEnder>,
    pub(crate) logouts: Arc<Logouts>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) events: Arc<Events>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) queues: LoginQueues,
    pub(crate) admissions: Admissions,
    pub(crate) profiles: Option<Arc<dyn Profiles>>,
}

/// Most times that one login acquires the account's lock, and most writes while it holds the lock
/// once.
pub(crate) const MAX_RUNS: u32 = 2;

/// One login in progress.
pub(crate) struct LoginRun {
    pub(crate) parts: Arc<LoginParts>,
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
