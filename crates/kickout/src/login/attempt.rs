//! The steps of a login: admission, login queue, lock, grant, kicks, confirmation.
//!
//! Everything that may be slow for reasons of its own runs before the login queue. The lock is held
//! only around the grant; the kicks never run under it, except with `Order::TellUnderLock`.

use distlock_core::{Error, ErrorKind, Guard, Moment, Released, Result};

use crate::{
    login::{
        admission::Throttled,
        context::{LoginRun, MAX_RUNS},
        grant::{GrantContext, GrantStep},
        outcome::{LoginOutcome, denied_outcome, overtaken_outcome},
        profiles::Allowed,
        queue::{LoginClaim, QueueRefusal},
    },
    meters,
    model::{
        event::Transition, intent::Intent, notice::Code, resume::ResumeToken, settings::Order,
    },
    wait::{retry_while, within},
};

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
        self.parts.events.emit(transition, |event| {
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
        let parts = &self.parts;
        let resume = self.parse_resume_token()?;
        let _permit = match parts.admissions.take_permit(uid) {
            Ok(permit) => permit,
            Err(Throttled { scope, retry_after }) => {
                meters::count_throttled_login(scope);
                return Ok(LoginOutcome::Busy { retry_after });
            }
        };
        if parts.drain.is_refusing_logins() {
            return Ok(denied_outcome(Code::Draining, None));
        }
        if let Some(profiles) = &parts.profiles {
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
        let uid = &self.login.uid;
        let parts = &self.parts;
        // The wait is counted from here, because from here on other logins wait for this one.
        let competing = parts.clock.now();
        let Some(own) = parts.this.current_incarnation() else {
            return Ok(denied_outcome(Code::NodeFenced, None));
        };
        let claim = self.queue_claim(resume.as_ref());
        let entering = within(
            &*parts.clock,
            parts.settings.timers.lock_wait,
            parts.queues.enqueue(uid, &claim),
        );
        let mut turn = tokio::select! {
            biased;
            () = self.caller_gone.cancelled() => return Ok(self.busy_outcome()),
            turn = entering => match turn {
                None | Some(Err(QueueRefusal::Crowded)) => return Ok(self.busy_outcome()),
                Some(Err(QueueRefusal::Overtaken(by))) => return Ok(overtaken_outcome(Some(by), None)),
                Some(Ok(turn)) => turn,
            },
        };
        let until = competing + parts.settings.timers.lock_wait;
        let may_wait = || parts.clock.now() < until && !self.caller_gone.is_cancelled();
        let idle = retry_while(&*parts.clock, may_wait, || {
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
                    Err(error) if error.kind() == ErrorKind::Timeout => return Ok(self.busy_outcome()),
                    Err(error) => return Err(error),
                },
            };
            let locked = parts.clock.now();
            let under = GrantContext {
                own: &own,
                guard: &guard,
                turn: &turn,
                resume: resume.as_ref(),
                idle: &idle,
            };
            let step = self.grant_under_lock(under).await;
            let released = async {
                if let Released::AlreadyLost(reason) = guard.release().await {
                    metrics::counter!("distlock_lock_lost_total").increment(1);
                    tracing::warn!(?uid, %reason, "the account's lock was lost during a login");
                }
                metrics::histogram!("distlock_lock_hold_seconds")
                    .record(parts.clock.now().since(locked).as_secs_f64());
            };
            match step {
                Ok(GrantStep::Granted(granted)) if parts.settings.order == Order::TellUnderLock => {
                    let outcome = Box::pin(self.confirm(*granted, turn)).await;
                    released.await;
                    return outcome;
                }
                Ok(GrantStep::Granted(granted)) => {
                    // The release runs beside the kicks, so the account's next login need not wait
                    // for them.
                    let ((), outcome) =
                        tokio::join!(released, Box::pin(self.confirm(*granted, turn)));
                    return outcome;
                }
                Ok(GrantStep::Again) => released.await,
                Ok(GrantStep::Answer(outcome)) => {
                    released.await;
                    return Ok(outcome);
                }
                Err(error) => {
                    released.await;
                    return Err(error);
                }
            }
        }
        Ok(self.busy_outcome())
    }

    fn queue_claim(&self, resume: Option<&ResumeToken>) -> LoginClaim {
        let policy = &self.parts.settings.policy;
        LoginClaim {
            slot: policy.slot_of(&self.login.class, &self.login.device),
            device: self.login.device.clone(),
            last_wins: policy.last_wins(self.login.intent),
            resumes: resume.cloned(),
        }
    }

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

    async fn acquire_account_lock(&self, competing: Moment) -> Result<Guard> {
        let parts = &self.parts;
        let started = parts.clock.now();
        let left = parts
            .settings
            .timers
            .lock_wait
            .saturating_sub(started.since(competing));
        let guard = parts
            .locker
            .lock_named(&self.login.uid.lock_name()?)
            .ttl(parts.settings.timers.lock_ttl)
            .wait(left)
            .give_up_when_unreachable()
            .holder(parts.this.id.as_str())
            .acquire()
            .await?;
        metrics::histogram!("distlock_lock_wait_seconds")
            .record(parts.clock.now().since(started).as_secs_f64());
        Ok(guard)
    }
}
