//! The part of a login that holds the account's lock: one read, one decision, one write.

use std::{sync::Arc, time::Duration};

use distlock_core::{Guard, Moment, Result};
use tokio::sync::mpsc;

use crate::{
    directory::store::{PutOutcome, VersionedRecord},
    login::{
        context::{LoginRun, MAX_RUNS},
        outcome::{LoginOutcome, denied, overtaken},
        queue::LoginTurn,
    },
    model::{
        ban::Ban,
        event::Transition,
        ident::{Generation, NodeId, SessionId, SessionKey},
        login::{Denied, Login},
        notice::Code,
        policy::IdleTimes,
        record::{MAX_REVOCATIONS, Revocation, SlotEntry, UserRecord},
        resume::ResumeToken,
    },
    node::lease::Incarnation,
    session::{
        live::{LiveSession, Phase},
        message::QueuedMessage,
        removal::Grant,
    },
    wait::{jitter, retry_while, wall_millis},
};

/// Over how long those come back who were turned away together.
const SPREAD: Duration = Duration::from_secs(1);

/// What one run under the lock came to.
pub(crate) enum GrantStep {
    Granted(Box<Granted>),
    /// The lock or the write was lost.
    Again,
    Answer(LoginOutcome),
}

pub(crate) struct Granted {
    pub(crate) live: Arc<LiveSession>,
    pub(crate) messages: mpsc::Receiver<QueuedMessage>,
    pub(crate) r#gen: Generation,
    /// When the write was confirmed.
    pub(crate) decided: Moment,
    /// Sessions that lost their slot to this login.
    pub(crate) removed: Vec<Revocation>,
    /// Every session that is not known to be gone.
    pub(crate) pending: Vec<Revocation>,
}

impl LoginRun {
    /// The critical section: reads the record, decides, writes it. No call to another node.
    pub(crate) async fn under_lock(
        &self,
        own: &Incarnation,
        guard: &Guard,
        turn: &LoginTurn,
        resume: Option<&ResumeToken>,
        idle: &IdleTimes,
    ) -> Result<GrantStep> {
        let clock = &*self.parts.clock;
        let until = clock.now() + self.parts.settings.timers.lock_wait;
        for _ in 0..MAX_RUNS {
            // Unless the write was sent and its outcome is not known, nothing has happened.
            let step = retry_while(
                clock,
                || guard.is_valid() && clock.now() < until && !self.gone.is_cancelled(),
                || async move {
                    match self.read_and_write(own, guard, turn, resume, idle).await {
                        Err(error) if !error.did_not_happen() => Ok(Err(error)),
                        step => step.map(Ok),
                    }
                },
            );
            let step = step.await??;
            if !matches!(step, GrantStep::Again) || !guard.is_valid() {
                return Ok(step);
            }
        }
        Ok(GrantStep::Again)
    }

    async fn read_and_write(
        &self,
        own: &Incarnation,
        guard: &Guard,
        turn: &LoginTurn,
        resume: Option<&ResumeToken>,
        idle: &IdleTimes,
    ) -> Result<GrantStep> {
        let Login {
            uid, device, class, ..
        } = &self.login;
        let parts = &self.parts;
        let (seen, roster) = parts.directory.read_with_roster(uid).await?;
        let VersionedRecord {
            version,
            mut record,
            ..
        } = seen;
        // Other nodes may have written their sessions again before this one noticed.
        parts.history.observe_epoch(&guard.epoch());
        parts.history.observe_roster(roster.id);
        if let Some(left) = parts.history.grants_suspended_for() {
            let retry_after = left + jitter(SPREAD);
            return Ok(GrantStep::Answer(LoginOutcome::Busy { retry_after }));
        }
        // A store that has forgotten some of its records has forgotten sessions, too; those of this
        // node are known.
        for live in parts.registry.of(uid) {
            if live.phase() == Phase::Active && live.is_missing_in(&record) {
                record.restore(&live.slot, live.entry());
            }
        }
        let mut ended_ban = None;
        if let Some(mark) = record.ban.take() {
            if let Some(ban) = parts.bans.standing(uid).await? {
                return Ok(GrantStep::Answer(banned(&ban)));
            }
            ended_ban = Some(mark);
        }
        // The account's lock is held: a lease that is hard to ask about must not hold it much longer.
        let limit = parts.settings.timers.peer_deadline;
        let dead = parts
            .liveness
            .dead_among(record.incarnations(), limit)
            .await;
        let is_dead = |node: &NodeId, boot| dead.contains(&(node.clone(), boot));
        if let Some(resume) = resume
            && !resume.is_current(&record)
        {
            let by = record.slots.values().max_by_key(|entry| entry.r#gen);
            let by = by.map(|entry| entry.device.clone());
            return Ok(GrantStep::Answer(denied(Code::Superseded, by)));
        }
        record.sweep(is_dead);
        if record.revocations.len() >= MAX_REVOCATIONS {
            return Ok(GrantStep::Answer(self.busy()));
        }

        let newcomer = self.newcomer(resume);
        let decision = match parts.settings.policy.decide(&record, &newcomer, idle) {
            Ok(decision) => decision,
            Err(full) => return Ok(GrantStep::Answer(denied(Code::Denied, full.by))),
        };
        let key = SessionKey {
            node: parts.this.id.clone(),
            boot: own.boot,
            session: SessionId::random(),
        };
        let entry = SlotEntry {
            key: key.clone(),
            r#gen: Generation::default(),
            device: device.clone(),
            class: class.clone(),
            since: wall_millis(&*parts.clock),
        };
        let (r#gen, removed) = record.grant(
            decision.slot.clone(),
            guard.token().get(),
            |r#gen| SlotEntry {
                r#gen,
                ..entry.clone()
            },
            &decision.victims,
        );
        if self.gone.is_cancelled() {
            return Ok(GrantStep::Answer(self.busy()));
        }
        if !guard.is_valid() {
            self.record_write_given_up(guard, "the account's lock was lost");
            return Ok(GrantStep::Again);
        }
        if !own.lease.is_valid() {
            return Ok(GrantStep::Answer(denied(Code::NodeFenced, None)));
        }
        if let Err(by) = turn.commit() {
            return Ok(GrantStep::Answer(overtaken(Some(by), None)));
        }
        let acks = self.login.acks;
        let (live, messages) =
            LiveSession::new(uid.clone(), decision.slot, entry, acks, own.clone());
        let live = Arc::new(live);
        live.touch(parts.clock.now());
        live.mark_listed(r#gen);
        // Before the write, so that a kick that follows it at once finds the session.
        parts.registry.insert(Arc::clone(&live));
        let landed = |now: &UserRecord| {
            if now.slot_of(&key).is_some() {
                Some(PutOutcome::Stored)
            } else if now.revocations.iter().any(|it| it.key == key) {
                Some(PutOutcome::Overtaken)
            } else {
                None
            }
        };
        // Without the store the account's lock ends, and then others decide.
        let may_wait = || guard.is_valid();
        let put = parts
            .directory
            .put(uid, version, &record, landed, may_wait)
            .await;
        match put {
            Ok(PutOutcome::Stored) => {
                if let Some(ban) = ended_ban {
                    parts.bans.ended(uid, &ban).await;
                }
                parts.events.emit(Transition::Granted, |event| {
                    live.describe(event);
                    event.token = Some(guard.token().get());
                });
                for victim in &removed {
                    parts
                        .events
                        .emit(Transition::Revoked, |event| event.revocation(uid, victim));
                }
                Ok(GrantStep::Granted(Box::new(Granted {
                    live,
                    messages,
                    r#gen,
                    decided: parts.clock.now(),
                    removed,
                    pending: record.revocations,
                })))
            }
            Ok(PutOutcome::Conflict) => {
                parts.logouts.discard(&live);
                self.record_write_given_up(guard, "the record had changed");
                Ok(GrantStep::Again)
            }
            Ok(PutOutcome::Overtaken) => {
                parts.logouts.discard(&live);
                Ok(GrantStep::Answer(overtaken(None, None)))
            }
            Err(error) => {
                if error.did_not_happen() {
                    parts.logouts.discard(&live);
                } else {
                    // The logout tries until it knows, and until the write cannot arrive any more.
                    parts.logouts.retire_granted(&live, Grant::InFlight).await;
                }
                Err(error)
            }
        }
    }
}

impl LoginRun {
    fn record_write_given_up(&self, guard: &Guard, why: &str) {
        let events = &self.parts.events;
        events.emit(Transition::WriteGivenUp, |event| {
            event.uid = Some(self.login.uid.clone());
            event.device = Some(self.login.device.clone());
            event.token = Some(guard.token().get());
            event.result = Some(why.into());
        });
    }
}

fn banned(ban: &Ban) -> LoginOutcome {
    LoginOutcome::Denied(Denied {
        code: Code::Banned,
        reason: ban
            .reason
            .clone()
            .unwrap_or_else(|| Code::Banned.text().into()),
        by_device: None,
    })
}
