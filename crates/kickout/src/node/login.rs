//! The steps of a login: admission, login queue, lock, grant, kicks, confirmation.
//!
//! The checks of the embedder may be slow, so they run before the login enters the queue. The idle
//! times of rivals are collected before the lock is taken, because a slow peer must not extend the
//! time for which the lock is held. The lock is held only around the grant. Kicks never run under
//! the lock.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use distlock_core::{Error, ErrorKind, Guard, Moment, Released, Result, at_most};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::{
    locks::{renewing, wanted_lock},
    meters,
    model::{
        event::Transition,
        ident::{Device, Generation},
        login::{Denied, Intent, Login, Overtaken, ResumeToken},
        notice::Code,
        policy::{IdleTimes, Newcomer, OnExceed},
    },
    node::{
        Node,
        grant::{GrantContext, GrantStep},
        liveness::Liveness,
        session::Session,
    },
    state::{
        admission::Throttled,
        api::Allowed,
        login_queue::{LoginClaim, LoginTurn, QueueRefusal},
    },
    tasks::{jitter, retry_while},
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
    pub(crate) fn newcomer<'a>(&'a self, resumes: Option<&'a ResumeToken>) -> Newcomer<'a> {
        Newcomer {
            class: &self.login.class,
            device: &self.login.device,
            intent: self.login.intent,
            resumes,
        }
    }
}

impl LoginRun {
    /// Runs the login and records its outcome.
    pub(crate) async fn run_to_end(self) -> Result<LoginOutcome> {
        let outcome = self.attempt().await;
        let result = match &outcome {
            Ok(LoginOutcome::Admitted(_)) => "admitted",
            Ok(LoginOutcome::Busy { .. }) => "busy",
            Ok(LoginOutcome::Denied(_)) => "denied",
            Ok(LoginOutcome::Superseded(_)) => "superseded",
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => "unknown",
            Err(_) => "error",
        };
        meters::count_login(result);
        let transition = match &outcome {
            Ok(LoginOutcome::Admitted(_)) => return outcome,
            Ok(LoginOutcome::Denied(_)) => Transition::Denied,
            Ok(LoginOutcome::Superseded(_)) => Transition::Overtaken,
            Ok(LoginOutcome::Busy { .. }) | Err(_) => Transition::Busy,
        };
        self.node.events.emit(transition, |event| {
            event.uid = Some(self.login.uid.clone());
            event.device = Some(self.login.device.clone());
            match &outcome {
                Ok(LoginOutcome::Denied(denied)) => {
                    event.code = Some(denied.code);
                    event.by_device.clone_from(&denied.by_device);
                }
                Ok(LoginOutcome::Superseded(by)) => {
                    event.by_device.clone_from(&by.by_device);
                    event.r#gen = by.r#gen;
                }
                Err(error) => event.result = Some(error.to_string()),
                Ok(_) => {}
            }
        });
        outcome
    }

    /// Runs the checks that need no lock, then competes with the account's other logins.
    async fn attempt(&self) -> Result<LoginOutcome> {
        let uid = &self.login.uid;
        let node = &self.node;
        let resume = self.parse_resume_token()?;
        let _permit = match node.admissions.take_permit(uid) {
            Ok(permit) => permit,
            Err(Throttled { scope, retry_after }) => {
                meters::count_throttled_login(scope);
                return Ok(LoginOutcome::Busy { retry_after });
            }
        };
        if node.is_refusing_logins() {
            return Ok(denied_outcome(Code::Draining, None));
        }
        if let Some(profiles) = &node.profiles {
            let allowed = tokio::select! {
                biased;
                () = self.caller_gone.cancelled() => return Ok(self.busy_outcome()),
                allowed = profiles.load(&self.login) => allowed?,
            };
            if let Allowed::No(denied) = allowed {
                return Ok(LoginOutcome::Denied(denied));
            }
        }
        self.compete(resume).await
    }

    /// Waits for this login's turn on this node and for the account's lock, then logs in.
    async fn compete(&self, resume: Option<ResumeToken>) -> Result<LoginOutcome> {
        let node = &self.node;
        // The wait is counted from this moment, because other logins wait for this login from now
        // on.
        let competing = node.clock.now();
        let Some(own) = node.this.current_incarnation() else {
            return Ok(denied_outcome(Code::NodeFenced, None));
        };
        let mut turn = match self.wait_for_turn(resume.as_ref()).await {
            Ok(turn) => turn,
            Err(outcome) => return Ok(outcome),
        };
        let until = competing + node.settings.timers.lock_wait;
        let may_wait = || node.clock.now() < until && !self.caller_gone.is_cancelled();
        let idle = retry_while(&*node.clock, may_wait, || {
            self.rival_idle_times(resume.as_ref())
        });
        let idle = idle.await?;
        for _ in 0..MAX_RUNS {
            let guard = tokio::select! {
                biased;
                () = self.caller_gone.cancelled() => return Ok(self.busy_outcome()),
                by = turn.replaced() => return Ok(overtaken_outcome(Some(by), None)),
                guard = self.acquire_account_lock(competing) => match guard {
                    Ok(guard) => guard,
                    Err(error) if error.kind() == ErrorKind::Timeout => {
                        return Ok(self.busy_outcome());
                    }
                    Err(error) => return Err(error),
                },
            };
            let locked = node.clock.now();
            let context = GrantContext {
                own: &own,
                guard: &guard,
                turn: &turn,
                resume: resume.as_ref(),
                idle: &idle,
            };
            let ttl = node.settings.timers.lock_ttl;
            let granting = self.grant_under_lock(context);
            let step = renewing(&*node.clock, &guard, ttl, granting).await;
            match step {
                Ok(GrantStep::Granted(granted)) => {
                    // The release runs at the same time as the kicks. So the account's next login
                    // does not wait for the kicks.
                    let release = self.release_account_lock(guard, locked);
                    let ((), outcome) =
                        tokio::join!(release, Box::pin(self.confirm(*granted, turn)));
                    return outcome;
                }
                step => {
                    self.release_account_lock(guard, locked).await;
                    if let GrantStep::Answer(outcome) = step? {
                        return Ok(outcome);
                    }
                }
            }
        }
        Ok(self.busy_outcome())
    }

    /// Waits in the login queue until this login may compete for the account's lock. `Err` holds
    /// the answer to a login that gets no turn.
    async fn wait_for_turn(&self, resume: Option<&ResumeToken>) -> Result<LoginTurn, LoginOutcome> {
        let node = &self.node;
        let claim = self.queue_claim(resume);
        let waiting = at_most(
            &*node.clock,
            node.settings.timers.lock_wait,
            node.queues.enqueue(&self.login.uid, &claim),
        );
        let turn = tokio::select! {
            biased;
            () = self.caller_gone.cancelled() => None,
            turn = waiting => turn,
        };
        match turn {
            None | Some(Err(QueueRefusal::Crowded)) => Err(self.busy_outcome()),
            Some(Err(QueueRefusal::Overtaken(by))) => Err(overtaken_outcome(Some(by), None)),
            Some(Ok(turn)) => Ok(turn),
        }
    }

    /// Releases the account's lock, and records how long the lock was held.
    async fn release_account_lock(&self, guard: Guard, locked: Moment) {
        if let Released::AlreadyLost(reason) = guard.release().await {
            metrics::counter!("distlock_login_lock_lost_total").increment(1);
            tracing::warn!(
                uid = ?self.login.uid, %reason,
                "the account's lock was lost during a login"
            );
        }
        metrics::histogram!("distlock_login_lock_hold_seconds")
            .record(self.node.clock.now().since(locked).as_secs_f64());
    }

    /// The claim with which this login enters the login queue.
    fn queue_claim(&self, resume: Option<&ResumeToken>) -> LoginClaim {
        let policy = &self.node.settings.policy;
        LoginClaim {
            slot: policy.slot_of(&self.login.class),
            device: self.login.device.clone(),
            last_wins: policy.last_wins(self.login.intent),
            resumes: resume.cloned(),
            attempt: self.login.attempt,
        }
    }

    /// The resume token that the client sent; `None` unless the client wants to resume.
    fn parse_resume_token(&self) -> Result<Option<ResumeToken>> {
        match (self.login.intent, &self.login.resume) {
            (Intent::Resume, Some(text)) => ResumeToken::parse(text, &self.login.uid).map(Some),
            (Intent::Resume, None) => Err(Error::new(
                ErrorKind::InvalidArgument,
                "a login that resumes needs a resume token",
            )),
            _ => Ok(None),
        }
    }

    /// Acquires the account's lock. `competing` is the moment before this login entered the login
    /// queue. The setting `lock_wait` limits the time from that moment until the lock is acquired.
    async fn acquire_account_lock(&self, competing: Moment) -> Result<Guard> {
        let node = &self.node;
        let started = node.clock.now();
        let left = node
            .settings
            .timers
            .lock_wait
            .saturating_sub(started.since(competing));
        let (name, ttl) = (self.login.uid.lock_name()?, node.settings.timers.lock_ttl);
        let guard = wanted_lock(&node.locker, &name, ttl, &node.this.id)
            .wait(left)
            .give_up_when_unreachable()
            .acquire()
            .await;
        node.note_lock(&guard);
        let guard = guard?;
        metrics::histogram!("distlock_login_lock_wait_seconds")
            .record(node.clock.now().since(started).as_secs_f64());
        Ok(guard)
    }
}

impl LoginRun {
    /// The idle times of this login's rivals. The result is empty if the policy does not use idle
    /// times, or if no rival has to end.
    pub(crate) async fn rival_idle_times(&self, resume: Option<&ResumeToken>) -> Result<IdleTimes> {
        let node = &self.node;
        let mut idle = IdleTimes::new();
        if node.settings.policy.on_exceed != OnExceed::EvictIdle {
            return Ok(idle);
        }
        let uid = &self.login.uid;
        let record = node.directory.read(uid).await?.record;
        let rivals = node.settings.policy.rivals(&record, &self.newcomer(resume));
        if node.settings.policy.excess(rivals.len()) == 0 {
            return Ok(idle);
        }
        let mut nodes = BTreeMap::new();
        for (_, entry) in rivals {
            // A session counts as idle for ever unless its node reports a time.
            idle.insert(entry.key.clone(), Duration::MAX);
            nodes.insert(entry.key.node.clone(), entry.key.boot);
        }
        let answers = nodes.into_iter().map(|(rival, boot)| async move {
            if rival == node.this.id {
                return node.registry.idle_times(uid, node.clock.now());
            }
            let deadline = node.settings.timers.peer_deadline;
            let liveness = node.liveness_of(&rival, boot);
            match at_most(&*node.clock, deadline, liveness).await {
                Some(Ok(Liveness::Up(to))) => {
                    let answer = node.peers.idle(&to, uid, deadline).await;
                    answer.unwrap_or_default()
                }
                _ => Vec::new(),
            }
        });
        for (key, time) in join_all(answers).await.into_iter().flatten() {
            if let Some(known) = idle.get_mut(&key) {
                *known = time;
            }
        }
        Ok(idle)
    }
}

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
