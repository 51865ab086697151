//! Login: gate, lock, one read, one write, kicks, confirmation.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use distlock_core::{Error, ErrorKind, Guard, Moment, Released, Result};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{
    flow::{Inner, KickOut},
    login::{
        admission::Throttled,
        gate::{Claim, Refused},
        grant::Step,
        profiles::Allowed,
    },
    meters,
    model::{
        event::Transition,
        ident::{Device, Generation},
        login::{Denied, Intent, Login, Overtaken},
        notice::Code,
        resume::ResumeToken,
        settings::Order,
    },
    session::handle::Session,
    wait::{jitter, patiently, within},
};

/// How often a login runs again after a lost lock or a lost write.
pub(crate) const RUNS: u32 = 2;

/// The answer to a login.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoginOutcome {
    /// The client is in.
    Admitted(Session),
    /// Not now.
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
    /// Not at all.
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

impl KickOut {
    /// Logs a client in. Does everything that can fail before the account's lock is taken, holds the lock around one read and
    /// one write, and tells older sessions after it was released.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a resume token that is not valid; failures of the store. After
    /// [`ErrorKind::OutcomeUnknown`] the login counts as not admitted, and whatever it left is removed in the background.
    ///
    /// # Cancel safety
    /// Safe: a login whose caller went away is given up before the write, and logged out after it.
    pub async fn login(&self, login: Login) -> Result<LoginOutcome> {
        let gone = CancellationToken::new();
        let _tell = gone.clone().drop_guard();
        let (answer, outcome) = oneshot::channel();
        let run = Run {
            inner: Arc::clone(&self.inner),
            started: self.inner.clock.now(),
            login,
            gone,
        };
        self.inner.spawn(async move {
            let outcome = Box::pin(run.go()).await;
            // Nobody there any more: dropping an admitted session logs it out.
            drop(answer.send(outcome));
        });
        outcome.await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Internal,
                "login ended without an answer",
            ))
        })
    }
}

/// One login on its way.
pub(crate) struct Run {
    pub(crate) inner: Arc<Inner>,
    pub(crate) login: Login,
    pub(crate) started: Moment,
    /// Its caller went away.
    pub(crate) gone: CancellationToken,
}

impl Run {
    async fn go(self) -> Result<LoginOutcome> {
        let outcome = self.attempt().await;
        let result = match &outcome {
            Ok(LoginOutcome::Admitted(_)) => "admitted",
            Ok(LoginOutcome::Busy { .. }) => "busy",
            Ok(LoginOutcome::Denied(_)) => "denied",
            Ok(LoginOutcome::Superseded(_)) => "superseded",
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => "unknown",
            Err(_) => "error",
        };
        meters::login(result);
        let transition = match &outcome {
            Ok(LoginOutcome::Admitted(_)) => return outcome,
            Ok(LoginOutcome::Denied(_)) => Transition::Denied,
            Ok(LoginOutcome::Superseded(_)) => Transition::Overtaken,
            Ok(LoginOutcome::Busy { .. }) | Err(_) => Transition::Busy,
        };
        self.inner.events.emit(transition, |event| {
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

    async fn attempt(&self) -> Result<LoginOutcome> {
        let uid = &self.login.uid;
        let inner = &self.inner;
        let resume = self.resume()?;
        let _place = match inner.admissions.enter(uid) {
            Ok(place) => place,
            Err(Throttled { scope, retry_after }) => {
                meters::throttled(scope);
                return Ok(LoginOutcome::Busy { retry_after });
            }
        };
        if inner.draining.load(Ordering::Acquire) {
            return Ok(denied(Code::Draining, None));
        }
        if let Some(profiles) = &inner.profiles {
            let allowed = tokio::select! {
                biased;
                () = self.gone.cancelled() => return Ok(self.busy()),
                allowed = profiles.load(&self.login) => allowed?,
            };
            if let Allowed::No(denied) = allowed {
                return Ok(LoginOutcome::Denied(denied));
            }
        }
        // However long that took: from here on others wait for this login.
        let competing = inner.clock.now();
        let Some(own) = inner.own.now() else {
            return Ok(denied(Code::NodeFenced, None));
        };
        let claim = self.claim(resume.as_ref());
        let entering = within(
            &*inner.clock,
            inner.timers.lock_wait,
            inner.gates.enter(uid, &claim),
        );
        let mut pass = tokio::select! {
            biased;
            () = self.gone.cancelled() => return Ok(self.busy()),
            pass = entering => match pass {
                None | Some(Err(Refused::Crowded)) => return Ok(self.busy()),
                Some(Err(Refused::Overtaken(by))) => return Ok(overtaken(Some(by), None)),
                Some(Ok(pass)) => pass,
            },
        };
        let until = competing + inner.timers.lock_wait;
        let may_wait = || inner.clock.now() < until && !self.gone.is_cancelled();
        let idle = patiently(&*inner.clock, may_wait, || {
            self.idle_rivals(resume.as_ref())
        });
        let idle = idle.await?;
        for _ in 0..RUNS {
            let guard = tokio::select! {
                biased;
                () = self.gone.cancelled() => return Ok(self.busy()),
                by = pass.replaced() => return Ok(overtaken(Some(by), None)),
                guard = self.lock(competing) => match guard {
                    Ok(guard) => guard,
                    Err(error) if error.kind() == ErrorKind::Timeout => return Ok(self.busy()),
                    Err(error) => return Err(error),
                },
            };
            let locked = inner.clock.now();
            let step = self
                .under_lock(&own, &guard, &pass, resume.as_ref(), &idle)
                .await;
            let released = async {
                if let Released::AlreadyLost(reason) = guard.release().await {
                    metrics::counter!("distlock_lock_lost_total").increment(1);
                    tracing::warn!(?uid, %reason, "the account's lock was lost during a login");
                }
                metrics::histogram!("distlock_lock_hold_seconds")
                    .record(inner.clock.now().since(locked).as_secs_f64());
            };
            match step {
                Ok(Step::Granted(granted)) if inner.order == Order::TellUnderLock => {
                    let outcome = Box::pin(self.confirm(*granted, pass)).await;
                    released.await;
                    return outcome;
                }
                Ok(Step::Granted(granted)) => {
                    // The next login of this account may start while this one tells the older sessions.
                    let ((), outcome) =
                        tokio::join!(released, Box::pin(self.confirm(*granted, pass)));
                    return outcome;
                }
                Ok(Step::Again) => released.await,
                Ok(Step::Answer(outcome)) => {
                    released.await;
                    return Ok(outcome);
                }
                Err(error) => {
                    released.await;
                    return Err(error);
                }
            }
        }
        Ok(self.busy())
    }

    fn claim(&self, resume: Option<&ResumeToken>) -> Claim {
        let policy = &self.inner.policy;
        Claim {
            slot: policy.slot_of(&self.login.class, &self.login.device),
            device: self.login.device.clone(),
            last_wins: policy.last_wins(self.login.intent),
            resumes: resume.cloned(),
        }
    }

    fn resume(&self) -> Result<Option<ResumeToken>> {
        match (self.login.intent, &self.login.resume) {
            (Intent::Resume, Some(text)) => ResumeToken::parse(text, &self.login.uid).map(Some),
            (Intent::Resume, None) => Err(Error::new(
                ErrorKind::InvalidArgument,
                "a login that resumes needs a resume token",
            )),
            _ => Ok(None),
        }
    }

    async fn lock(&self, competing: Moment) -> Result<Guard> {
        let inner = &self.inner;
        let started = inner.clock.now();
        let left = inner
            .timers
            .lock_wait
            .saturating_sub(started.since(competing));
        let guard = inner
            .locker
            .lock_named(&self.login.uid.lock()?)
            .ttl(inner.timers.lock_ttl)
            .wait(left)
            .give_up_when_unreachable()
            .holder(inner.node.as_str())
            .acquire()
            .await?;
        metrics::histogram!("distlock_lock_wait_seconds")
            .record(inner.clock.now().since(started).as_secs_f64());
        Ok(guard)
    }

    pub(crate) fn busy(&self) -> LoginOutcome {
        // Spread over a second: those who were turned away together do not come back together.
        LoginOutcome::Busy {
            retry_after: Duration::from_millis(200) + jitter(Duration::from_millis(800)),
        }
    }
}

pub(crate) fn denied(code: Code, by_device: Option<Device>) -> LoginOutcome {
    LoginOutcome::Denied(Denied {
        by_device,
        ..Denied::new(code)
    })
}

pub(crate) const fn overtaken(
    by_device: Option<Device>,
    r#gen: Option<Generation>,
) -> LoginOutcome {
    LoginOutcome::Superseded(Overtaken { by_device, r#gen })
}
