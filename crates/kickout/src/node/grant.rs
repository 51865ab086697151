//! The part of a login under the account's lock: one read, one decision, one write.
//!
//! Every write is conditional on the version that was read, so a login with a lost lock cannot
//! overwrite a newer login. This file calls no peer, because a call would extend the time for which
//! the lock is held.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use distlock_core::{Guard, Moment, Result, Version};
use tokio::sync::mpsc;

use crate::{
    directory::accounts::{PutOutcome, VersionedRecord},
    model::{
        event::Transition,
        ident::{Generation, SessionId, SessionKey},
        login::{Denied, ResumeToken},
        notice::Code,
        policy::{Decision, IdleTimes, PolicyRefusal},
        record::{Ban, MAX_REVOCATIONS, Resumed, Revocation, Slot, SlotEntry, UserRecord},
    },
    node::{
        end::GrantWrite,
        login::{LoginOutcome, LoginRun, MAX_RUNS, denied_outcome, overtaken_outcome},
    },
    state::{
        incarnation::Incarnation,
        live_session::{LiveSession, Phase},
        login_queue::LoginTurn,
        message::QueuedMessage,
    },
    tasks::{jitter, retry_while, wall_millis},
};

/// Time over which the next attempts of refused clients are spread.
const RETRY_SPREAD: Duration = Duration::from_secs(1);

/// The outcome of a login's part under the account's lock.
pub(crate) enum GrantStep {
    /// The session is in the directory.
    Granted(Box<Granted>),
    /// The lock was lost, or the write met a conflict.
    Again,
    /// The login ends with this answer.
    Answer(LoginOutcome),
}

/// A login whose session is in the directory.
pub(crate) struct Granted {
    pub(crate) live: Arc<LiveSession>,
    pub(crate) messages: mpsc::Receiver<Box<QueuedMessage>>,
    pub(crate) r#gen: Generation,
    /// Time at which the write was confirmed.
    pub(crate) written_at: Moment,
    /// Sessions that this login removed from their slots.
    pub(crate) removed: Vec<Revocation>,
    /// All sessions of the account that have to end and are not known to have ended.
    pub(crate) pending: Vec<Revocation>,
    /// Whether this login removed sessions of dead nodes from the record.
    pub(crate) swept: bool,
}

/// The values that a login uses under the account's lock.
#[derive(Clone, Copy)]
pub(crate) struct GrantContext<'a> {
    /// The incarnation of this node that the session will belong to.
    pub(crate) own: &'a Incarnation,
    pub(crate) guard: &'a Guard,
    pub(crate) turn: &'a LoginTurn,
    pub(crate) resume: Option<&'a ResumeToken>,
    pub(crate) idle: &'a IdleTimes,
}

/// A record that was read, with the changes of this login so far.
struct RecordToChange {
    /// The version that was read; `None` if the store had no record.
    version: Option<Version>,
    record: UserRecord,
    /// The mark of an ended ban, which was taken out of the record.
    ended_ban: Option<Ban>,
    /// Whether sessions of dead nodes were taken out of the record.
    swept: bool,
}

/// A grant that is decided and not yet written.
struct PreparedGrant {
    base: RecordToChange,
    slot: Slot,
    entry: SlotEntry,
    r#gen: Generation,
    removed: Vec<Revocation>,
}

impl LoginRun {
    /// The critical section: reads the record, decides, and writes the record. Calls no other node.
    pub(crate) async fn grant_under_lock(&self, context: GrantContext<'_>) -> Result<GrantStep> {
        let clock = &*self.node.clock;
        let guard = context.guard;
        let until = clock.now() + self.node.settings.timers.lock_wait;
        for _ in 0..MAX_RUNS {
            // Most errors mean that nothing was written, so the step is repeated. After an unknown
            // outcome the step must not be repeated, because the login could be granted twice.
            let step = retry_while(
                clock,
                || guard.is_valid() && clock.now() < until && !self.caller_gone.is_cancelled(),
                || async move {
                    match self.read_and_write(context).await {
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

    /// Reads the record once, decides, and writes it once.
    async fn read_and_write(&self, context: GrantContext<'_>) -> Result<GrantStep> {
        let prepared = match self.decide(context).await? {
            Ok(prepared) => prepared,
            Err(outcome) => return Ok(GrantStep::Answer(outcome)),
        };
        if self.caller_gone.is_cancelled() {
            return Ok(GrantStep::Answer(self.busy_outcome()));
        }
        if !context.guard.is_valid() {
            self.record_write_given_up(context.guard, "the account's lock was lost");
            return Ok(GrantStep::Again);
        }
        if !context.own.lease.is_valid() {
            return Ok(GrantStep::Answer(denied_outcome(Code::NodeFenced, None)));
        }
        if let Err(by) = context.turn.commit() {
            return Ok(GrantStep::Answer(overtaken_outcome(Some(by), None)));
        }
        self.write(context, prepared).await
    }

    /// Reads the record and decides about this login. The inner `Err` holds the answer to a login
    /// that gets no session.
    async fn decide(
        &self,
        context: GrantContext<'_>,
    ) -> Result<std::result::Result<PreparedGrant, LoginOutcome>> {
        let node = &self.node;
        let (seen, roster) = node.directory.read_with_roster(&self.login.uid).await?;
        // Asked after the read: if the store of the records loses data before it answers the read,
        // an epoch from before the loss would not show that the record lacks a session.
        node.observe_epoch_of_records().await?;
        let VersionedRecord {
            version,
            mut record,
            ..
        } = seen;
        // Other nodes may have written their sessions again before this node noticed the loss.
        node.observe_epoch(&context.guard.epoch());
        node.observe_roster(roster.id);
        if let Some(left) = node.grants_suspended_for() {
            let retry_after = left + jitter(RETRY_SPREAD);
            return Ok(Err(LoginOutcome::Busy { retry_after }));
        }
        self.restore_own_sessions(&mut record);
        let ended_ban = match self.take_ended_ban(&mut record).await? {
            Ok(ended_ban) => ended_ban,
            Err(outcome) => return Ok(Err(outcome)),
        };
        // The caller holds the account's lock, so the time for slow inspections of leases is
        // limited.
        let limit = node.settings.timers.peer_deadline;
        let dead = node.dead_among(record.incarnations(), limit).await;
        let mut continued = None;
        if let Some(resume) = context.resume {
            continued = resume.now_in(&record, self.login.attempt);
            if continued.is_none() {
                let by = record.slots.values().max_by_key(|entry| entry.r#gen);
                let by = by.map(|entry| entry.device.clone());
                return Ok(Err(denied_outcome(Code::Superseded, by)));
            }
        }
        let (ghosts, settled) = record.sweep(|node, boot| dead.contains(&(node.clone(), boot)));
        let swept = !ghosts.is_empty() || settled > 0;
        if record.revocations.len() >= MAX_REVOCATIONS {
            return Ok(Err(self.busy_outcome()));
        }

        let decision = self.decide_by_policy(&record, continued.as_ref(), context.idle);
        Ok(match decision {
            Ok(decision) => {
                let base = RecordToChange {
                    version,
                    record,
                    ended_ban,
                    swept,
                };
                Ok(self.prepare_grant(context, base, decision))
            }
            Err(refusal) => Err(refused_outcome(refusal, record)),
        })
    }

    /// The decision of the policy. The sessions that the client wants to end do not count, and end
    /// with a login that is granted.
    fn decide_by_policy(
        &self,
        record: &UserRecord,
        continued: Option<&ResumeToken>,
        idle: &IdleTimes,
    ) -> std::result::Result<Decision, PolicyRefusal> {
        let newcomer = self.newcomer(continued);
        let policy = &self.node.settings.policy;
        if self.login.end.is_empty() {
            return policy.decide(record, &newcomer, idle);
        }
        let mut remaining = record.clone();
        remaining
            .slots
            .retain(|_, entry| !self.login.end.contains(&entry.key.session));
        let mut decision = policy.decide(&remaining, &newcomer, idle)?;
        let named = record.slots.keys();
        let named = named.filter(|slot| !remaining.slots.contains_key(*slot));
        let named = named.map(|slot| (slot.clone(), Code::Superseded));
        decision.victims.extend(named);
        Ok(decision)
    }

    /// Adds to the record the sessions of this node that the store has lost. Otherwise the policy
    /// would not count these sessions, and the login could exceed the limit.
    fn restore_own_sessions(&self, record: &mut UserRecord) {
        for live in self.node.registry.sessions_of(&self.login.uid) {
            if live.phase() == Phase::Active && live.is_missing_in(record) {
                record.restore(&live.slot, live.entry());
            }
        }
    }

    /// Takes the mark of an ended ban out of the record and returns it. The inner `Err` denies the
    /// login of an account whose ban still holds.
    async fn take_ended_ban(
        &self,
        record: &mut UserRecord,
    ) -> Result<std::result::Result<Option<Ban>, LoginOutcome>> {
        let Some(mark) = record.ban.take() else {
            return Ok(Ok(None));
        };
        let ban = self.node.current_ban(&self.login.uid).await?;
        Ok(match ban {
            Some(ban) => Err(banned_outcome(&ban)),
            None => Ok(Some(mark)),
        })
    }

    /// Puts the new session in the record, as the policy decided.
    fn prepare_grant(
        &self,
        context: GrantContext<'_>,
        base: RecordToChange,
        decision: Decision,
    ) -> PreparedGrant {
        let node = &self.node;
        let mut base = base;
        let entry = SlotEntry {
            key: SessionKey {
                node: node.this.id.clone(),
                boot: context.own.boot,
                session: SessionId::random(),
            },
            r#gen: Generation::default(),
            device: self.login.device.clone(),
            class: self.login.class.clone(),
            since_ms: wall_millis(&*node.clock),
            client: self.login.client.clone(),
        };
        let (r#gen, removed) = base.record.grant(
            decision.slot.clone(),
            context.guard.token().get(),
            |r#gen| SlotEntry {
                r#gen,
                ..entry.clone()
            },
            // The session that the client named: it names the same one until an answer arrives.
            context.resume.map(|named| Resumed {
                session: named.session(),
                attempt: self.login.attempt,
            }),
            &decision.victims,
        );
        PreparedGrant {
            base,
            slot: decision.slot,
            entry,
            r#gen,
            removed,
        }
    }

    /// Writes the decision on top of the version that was read.
    async fn write(&self, context: GrantContext<'_>, prepared: PreparedGrant) -> Result<GrantStep> {
        let (node, uid, guard) = (&self.node, &self.login.uid, context.guard);
        let PreparedGrant {
            base,
            slot,
            entry,
            r#gen,
            removed,
        } = prepared;
        let RecordToChange {
            version,
            record,
            ended_ban,
            swept,
        } = base;
        let key = entry.key.clone();
        let (live, messages) = LiveSession::new(slot, entry, &self.login, context.own.clone());
        let live = Arc::new(live);
        live.touch(node.clock.now());
        live.mark_listed(r#gen);
        // The session is registered before the write. Otherwise a kick that arrives right after the
        // write would find no session here, and the session would never get its notice.
        node.registry.insert(Arc::clone(&live));
        let outcome_in = |now: &UserRecord| {
            if now.slot_of(&key).is_some() {
                Some(PutOutcome::Stored)
            } else if now.revocations.iter().any(|it| it.key == key) {
                Some(PutOutcome::Overtaken)
            } else {
                None
            }
        };
        // The lock expires while the store is unreachable. After the expiry, other logins may
        // decide.
        let may_wait = || guard.is_valid();
        let put = node
            .directory
            .put(uid, version, &record, outcome_in, may_wait)
            .await;
        match put {
            Ok(PutOutcome::Stored) => {
                if let Some(ban) = ended_ban {
                    node.remove_ended_ban(uid, &ban).await;
                }
                node.events.emit(Transition::Granted, |event| {
                    live.describe(event);
                    event.token = Some(guard.token().get());
                });
                for victim in &removed {
                    node.events.emit(Transition::Revoked, |event| {
                        event.set_revocation(uid, victim);
                    });
                }
                Ok(GrantStep::Granted(Box::new(Granted {
                    live,
                    messages,
                    r#gen,
                    written_at: node.clock.now(),
                    removed,
                    pending: record.revocations,
                    swept,
                })))
            }
            Ok(PutOutcome::Conflict) => {
                node.discard(&live);
                self.record_write_given_up(guard, "the record had changed");
                Ok(GrantStep::Again)
            }
            Ok(PutOutcome::Overtaken) => {
                node.discard(&live);
                Ok(GrantStep::Answer(overtaken_outcome(None, None)))
            }
            Err(error) => {
                if error.did_not_happen() {
                    node.discard(&live);
                } else {
                    // The logout is repeated until its outcome is known and the late write can no
                    // longer arrive.
                    node.retire_after_grant(&live, GrantWrite::InFlight).await;
                }
                Err(error)
            }
        }
    }

    /// Records that this login did not write its decision, and the reason.
    fn record_write_given_up(&self, guard: &Guard, why: &str) {
        let events = &self.node.events;
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
        reason: ban
            .reason
            .clone()
            .unwrap_or_else(|| Code::Banned.text().into()),
        ..Denied::new(Code::Banned)
    })
}

/// The denial of a login that the policy refused. If the account has too many sessions, the client
/// learns which they are.
fn refused_outcome(refusal: PolicyRefusal, record: UserRecord) -> LoginOutcome {
    let mut sessions = Vec::new();
    if refusal.code == Code::Denied {
        sessions.extend(record.slots.into_values());
        sessions.sort_by_key(|entry| Reverse(entry.r#gen));
    }
    LoginOutcome::Denied(Denied {
        by_device: refusal.by,
        sessions,
        ..Denied::new(refusal.code)
    })
}
