//! The part of a login under the account's lock: one read, one decision, one write.
//!
//! Every write is conditional on the version that was read, so a lost lock cannot overwrite a newer
//! login. No call to a peer happens here, because it would extend the hold of the lock.

use std::{sync::Arc, time::Duration};

use distlock_core::{Guard, Moment, Result, Version};
use tokio::sync::mpsc;

use crate::{
    directory::accounts::{PutOutcome, VersionedRecord},
    login::{
        context::{LoginRun, MAX_RUNS},
        outcome::{LoginOutcome, denied_outcome, overtaken_outcome},
        queue::LoginTurn,
    },
    model::{
        ban::Ban,
        event::Transition,
        ident::{Generation, NodeId, SessionId, SessionKey},
        login::{Denied, Login},
        notice::Code,
        policy::IdleTimes,
        record::{MAX_REVOCATIONS, Revocation, Slot, SlotEntry, UserRecord},
        resume::ResumeToken,
    },
    node::lease::Incarnation,
    session::{
        live::{LiveSession, Phase},
        message::QueuedMessage,
        removal::GrantWrite,
    },
    wait::{jitter, retry_while, wall_millis},
};

/// Period over which refused clients come back.
const RETRY_SPREAD: Duration = Duration::from_secs(1);

/// The outcome of one run under the lock.
pub(crate) enum GrantStep {
    Granted(Box<Granted>),
    /// The lock was lost, or the write met a conflict.
    Again,
    Answer(LoginOutcome),
}

pub(crate) struct Granted {
    pub(crate) live: Arc<LiveSession>,
    pub(crate) messages: mpsc::Receiver<QueuedMessage>,
    pub(crate) r#gen: Generation,
    /// Time at which the write was confirmed.
    pub(crate) written_at: Moment,
    /// Sessions that lost their slot to this login.
    pub(crate) removed: Vec<Revocation>,
    /// All sessions of the account that are not known to be gone.
    pub(crate) pending: Vec<Revocation>,
}

/// The values that one run under the account's lock uses.
#[derive(Clone, Copy)]
pub(crate) struct GrantContext<'a> {
    pub(crate) own: &'a Incarnation,
    pub(crate) guard: &'a Guard,
    pub(crate) turn: &'a LoginTurn,
    pub(crate) resume: Option<&'a ResumeToken>,
    pub(crate) idle: &'a IdleTimes,
}

/// A grant that is decided and not written.
struct Decided {
    version: Option<Version>,
    record: UserRecord,
    /// The mark of a ban that has ended, which the write removes.
    ended_ban: Option<Ban>,
    slot: Slot,
    entry: SlotEntry,
    r#gen: Generation,
    removed: Vec<Revocation>,
}

impl LoginRun {
    /// The critical section: reads the record, decides, writes it. Makes no call to another node.
    pub(crate) async fn grant_under_lock(&self, under: GrantContext<'_>) -> Result<GrantStep> {
        let clock = &*self.parts.clock;
        let guard = under.guard;
        let until = clock.now() + self.parts.settings.timers.lock_wait;
        for _ in 0..MAX_RUNS {
            // An error means that nothing has happened, unless the write was sent and its outcome
            // is unknown. Such an error must not be retried: the login could be granted twice.
            let step = retry_while(
                clock,
                || guard.is_valid() && clock.now() < until && !self.caller_gone.is_cancelled(),
                || async move {
                    match self.read_and_write(under).await {
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

    async fn read_and_write(&self, under: GrantContext<'_>) -> Result<GrantStep> {
        let decided = match self.decide(under).await? {
            Ok(decided) => decided,
            Err(outcome) => return Ok(GrantStep::Answer(outcome)),
        };
        if self.caller_gone.is_cancelled() {
            return Ok(GrantStep::Answer(self.busy_outcome()));
        }
        if !under.guard.is_valid() {
            self.record_write_given_up(under.guard, "the account's lock was lost");
            return Ok(GrantStep::Again);
        }
        if !under.own.lease.is_valid() {
            return Ok(GrantStep::Answer(denied_outcome(Code::NodeFenced, None)));
        }
        if let Err(by) = under.turn.commit() {
            return Ok(GrantStep::Answer(overtaken_outcome(Some(by), None)));
        }
        self.write(under, decided).await
    }

    /// Reads the record and decides, or answers the login.
    async fn decide(
        &self,
        under: GrantContext<'_>,
    ) -> Result<std::result::Result<Decided, LoginOutcome>> {
        let Login {
            uid, device, class, ..
        } = &self.login;
        let parts = &self.parts;
        let GrantContext {
            own,
            guard,
            resume,
            idle,
            ..
        } = under;
        let (seen, roster) = parts.directory.read_with_roster(uid).await?;
        let VersionedRecord {
            version,
            mut record,
            ..
        } = seen;
        // Other nodes may have written their sessions again before this node noticed the loss.
        parts.history.observe_epoch(&guard.epoch());
        parts.history.observe_roster(roster.id);
        if let Some(left) = parts.history.grants_suspended_for() {
            let retry_after = left + jitter(RETRY_SPREAD);
            return Ok(Err(LoginOutcome::Busy { retry_after }));
        }
        // A store that has lost records has lost sessions, too. This node knows its own sessions,
        // so the decision counts them.
        for live in parts.registry.sessions_of(uid) {
            if live.phase() == Phase::Active && live.is_missing_in(&record) {
                record.restore(&live.slot, live.entry());
            }
        }
        let mut ended_ban = None;
        if let Some(mark) = record.ban.take() {
            if let Some(ban) = parts.bans.current_ban(uid).await? {
                return Ok(Err(banned_outcome(&ban)));
            }
            ended_ban = Some(mark);
        }
        // The account's lock is held here, so a slow inspection of a lease must not delay for long.
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
            return Ok(Err(denied_outcome(Code::Superseded, by)));
        }
        record.sweep(is_dead);
        if record.revocations.len() >= MAX_REVOCATIONS {
            return Ok(Err(self.busy_outcome()));
        }

        let newcomer = self.newcomer(resume);
        let decision = match parts.settings.policy.decide(&record, &newcomer, idle) {
            Ok(decision) => decision,
            Err(full) => return Ok(Err(denied_outcome(Code::Denied, full.by))),
        };
        let entry = SlotEntry {
            key: SessionKey {
                node: parts.this.id.clone(),
                boot: own.boot,
                session: SessionId::random(),
            },
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
        Ok(Ok(Decided {
            version,
            record,
            ended_ban,
            slot: decision.slot,
            entry,
            r#gen,
            removed,
        }))
    }

    /// Writes the decision on top of the version that was read.
    async fn write(&self, under: GrantContext<'_>, decided: Decided) -> Result<GrantStep> {
        let (parts, uid, guard) = (&self.parts, &self.login.uid, under.guard);
        let Decided {
            version,
            record,
            ended_ban,
            slot,
            entry,
            r#gen,
            removed,
        } = decided;
        let key = entry.key.clone();
        let acks = self.login.acks;
        let (live, messages) = LiveSession::new(uid.clone(), slot, entry, acks, under.own.clone());
        let live = Arc::new(live);
        live.touch(parts.clock.now());
        live.mark_listed(r#gen);
        // The session is registered before the write. Otherwise a kick that follows the write at
        // once would find no session here, and the session would live on.
        parts.registry.insert(Arc::clone(&live));
        let outcome_in = |now: &UserRecord| {
            if now.slot_of(&key).is_some() {
                Some(PutOutcome::Stored)
            } else if now.revocations.iter().any(|it| it.key == key) {
                Some(PutOutcome::Overtaken)
            } else {
                None
            }
        };
        // While the store is away the account's lock ends, and then other logins decide.
        let may_wait = || guard.is_valid();
        let put = parts
            .directory
            .put(uid, version, &record, outcome_in, may_wait)
            .await;
        match put {
            Ok(PutOutcome::Stored) => {
                if let Some(ban) = ended_ban {
                    parts.bans.remove_ended(uid, &ban).await;
                }
                parts.events.emit(Transition::Granted, |event| {
                    live.describe(event);
                    event.token = Some(guard.token().get());
                });
                for victim in &removed {
                    parts.events.emit(Transition::Revoked, |event| {
                        event.set_revocation(uid, victim)
                    });
                }
                Ok(GrantStep::Granted(Box::new(Granted {
                    live,
                    messages,
                    r#gen,
                    written_at: parts.clock.now(),
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
                Ok(GrantStep::Answer(overtaken_outcome(None, None)))
            }
            Err(error) => {
                if error.did_not_happen() {
                    parts.logouts.discard(&live);
                } else {
                    // The logout is repeated until its outcome is known and the late write can no
                    // longer arrive.
                    parts
                        .logouts
                        .retire_after_grant(&live, GrantWrite::InFlight)
                        .await;
                }
                Err(error)
            }
        }
    }

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

fn banned_outcome(ban: &Ban) -> LoginOutcome {
    LoginOutcome::Denied(Denied {
        code: Code::Banned,
        reason: ban
            .reason
            .clone()
            .unwrap_or_else(|| Code::Banned.text().into()),
        by_device: None,
    })
}
