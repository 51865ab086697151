//! The end of sessions: of this node's sessions with a notice, and of entries and revocations in
//! the directory.
//!
//! Only the first notice of a session counts. A kick or a removal names node, boot and session,
//! ends only that session up to the named generation, and changes nothing when it is repeated. This
//! module does not close connections; the session's connection closes after its client got the
//! notice.

use std::time::Duration;

use distlock_core::{Result, micros};

use crate::{
    model::{
        event::{Event, Transition},
        ident::{SessionKey, Uid},
        notice::{Offline, Retry},
        record::{Revocation, UserRecord},
        request::{KickRequest, KickResult, PeerError},
    },
    node::Node,
    state::live_session::LiveSession,
    tasks::jitter,
};

/// Time over which clients are spread that reconnect when many sessions end at once.
const RETURN_SPREAD: Duration = Duration::from_secs(1);

impl Node {
    /// Ends a session with a notice. `listed` says whether the directory may still name the
    /// session; if so, its logout deletes it from the directory. `fill` adds fields to the event.
    /// Returns true if this call ended the session.
    pub(crate) fn end_session(
        &self,
        live: &LiveSession,
        notice: Offline,
        listed: bool,
        fill: impl FnOnce(&mut Event),
    ) -> bool {
        let timers = &self.settings.timers;
        let mut notice = notice.with_grace(timers.grace_of(live.saves));
        let save_until = self.clock.now() + timers.save_budget;
        if notice.retry == Retry::Now {
            // Many sessions may end at once. The random delay keeps their clients from reconnecting
            // together.
            notice = notice.with_retry_after(jitter(RETURN_SPREAD));
        }
        let (code, by_device, by_gen) = (notice.code, notice.by_device.clone(), notice.r#gen);
        if !live.supersede(notice, listed, save_until, &self.changes) {
            return false;
        }
        self.events.emit(Transition::Superseded, |event| {
            live.describe(event);
            event.code = Some(code);
            event.by_device = by_device;
            event.by_gen = by_gen;
            fill(event);
        });
        true
    }
}

/// The effect of a kick on a session of this node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KickedHere {
    /// Whether this kick ended the session.
    pub(crate) ended_now: bool,
    pub(crate) result: KickResult,
}

impl From<KickResult> for KickedHere {
    fn from(result: KickResult) -> Self {
        Self {
            ended_now: false,
            result,
        }
    }
}

impl Node {
    /// Ends the session that a kick from another node names, and returns the answer. The answer to
    /// a kick for an earlier boot of this node is [`KickResult::BootMismatch`]. A kick for another
    /// node or a later boot is an error.
    pub(crate) fn handle_kick(&self, request: &KickRequest) -> Result<KickResult, PeerError> {
        let own = self.this.newest_boot();
        if !self.this.owns(&request.key) {
            return Err(PeerError::NotSent(format!(
                "this is incarnation {own} of node {}",
                self.this.id
            )));
        }
        let device = self
            .registry
            .get(&request.uid, &request.key)
            .map(|live| live.device.clone());
        let KickedHere { ended_now, result } = if request.key.boot < own {
            KickResult::BootMismatch.into()
        } else {
            self.end_local(request)
        };
        if result == KickResult::Saving && !ended_now {
            // A login that waits for the program repeats its kick, and nothing has happened since.
            return Ok(result);
        }
        if matches!(result, KickResult::AlreadyGone | KickResult::BootMismatch) {
            // A refusal because of a newer session is counted in `record_refused_kick`, because
            // reconciliation meets such refusals, too.
            metrics::counter!("distlock_stale_kick_refused_total").increment(1);
        }
        self.events.emit(Transition::KickReceived, |event| {
            event.uid = Some(request.uid.clone());
            event.set_session(&request.key);
            event.gen_max = Some(request.gen_max);
            event.device = device;
            event.by_device.clone_from(&request.by_device);
            event.took_us = request.after.map(micros);
            event.code = Some(request.code);
            event.kick_id = Some(request.kick_id);
            event.peer = Some(request.from.clone());
            let result = if ended_now {
                KickResult::Kicked
            } else {
                result
            };
            event.result = Some(format!("{result:?}"));
        });
        Ok(result)
    }

    /// Ends the sessions of this node that a record revokes. Returns those whose revocations can be
    /// removed, including those that had ended before.
    pub(crate) fn end_all_revoked(&self, uid: &Uid, record: &UserRecord) -> Vec<SessionKey> {
        let here = record.revocations.iter();
        let here = here.filter(|it| self.this.owns(&it.key));
        here.filter(|it| self.end_revoked(uid, it).result.is_final())
            .map(|it| it.key.clone())
            .collect()
    }

    /// Ends a revoked session of this node.
    pub(crate) fn end_revoked(&self, uid: &Uid, revocation: &Revocation) -> KickedHere {
        self.end_local(&KickRequest::for_revocation(uid, revocation, &self.this.id))
    }

    /// Ends the session that a kick names, unless the session has ended or has a higher generation.
    fn end_local(&self, request: &KickRequest) -> KickedHere {
        let refused = || match self.registry.newest_above(&request.uid, request.gen_max) {
            Some(newer) => {
                self.record_refused_kick(request);
                KickResult::Newer(newer)
            }
            None => KickResult::AlreadyGone,
        };
        let Some(live) = self.registry.get(&request.uid, &request.key) else {
            // The session may have left between two kicks of a login that waits for its program.
            if self.registry.was_saved(request.key.session) {
                return KickResult::Saved.into();
            }
            return refused().into();
        };
        if live.generation() > request.gen_max {
            return refused().into();
        }
        let notice = Offline::new(request.code)
            .superseded_by(request.by_device.clone(), request.by_gen)
            .with_reason(request.reason.clone());
        // The directory stopped naming the session before the kick was sent. So the session's
        // logout has nothing to delete.
        let ended_now = self.end_session(&live, notice, false, |event| {
            event.kick_id = Some(request.kick_id);
        });
        let result = if live.is_saved() {
            KickResult::Saved
        } else if live.is_saving(self.clock.now()) {
            KickResult::Saving
        } else if ended_now {
            KickResult::Kicked
        } else {
            KickResult::AlreadyGone
        };
        KickedHere { ended_now, result }
    }

    /// Counts a kick that was refused because the account has a newer session here.
    fn record_refused_kick(&self, request: &KickRequest) {
        metrics::counter!("distlock_stale_kick_refused_total").increment(1);
        self.events.emit(Transition::StaleKickRefused, |event| {
            event.uid = Some(request.uid.clone());
            event.set_session(&request.key);
            event.gen_max = Some(request.gen_max);
            event.kick_id = Some(request.kick_id);
        });
    }
}

/// Whether the write that granted a session may still arrive at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantWrite {
    /// The outcome of the write is known.
    Known,
    /// The outcome of the write is unknown, and the write may arrive after the delete. So a delete
    /// that finds nothing still writes the record: the late write then meets a conflict.
    InFlight,
}

impl Node {
    /// Removes the revocations of sessions that are known to have ended. Returns the record
    /// afterwards.
    pub(crate) async fn settle(&self, uid: &Uid, gone: &[SessionKey]) -> Result<UserRecord> {
        let record = self.directory.settle(uid, gone).await?;
        for key in gone {
            self.events.emit(Transition::Settled, |event| {
                event.uid = Some(uid.clone());
                event.set_session(key);
            });
        }
        Ok(record)
    }

    /// Removes exactly this session from the directory. The generation does not change. Returns
    /// whether the directory named the session.
    pub(crate) async fn delete_session(&self, uid: &Uid, key: &SessionKey) -> Result<bool> {
        self.delete_after_grant(uid, key, GrantWrite::Known).await
    }

    /// Same as [`delete_session`](Self::delete_session). `grant` says whether the write of the
    /// grant may still arrive at the store.
    pub(crate) async fn delete_after_grant(
        &self,
        uid: &Uid,
        key: &SessionKey,
        grant: GrantWrite,
    ) -> Result<bool> {
        let (mut there, mut found) = (false, false);
        let (written, record) = self
            .directory
            .update(uid, |record| {
                there = record.remove(key).is_some();
                found |= there;
                // The session has ended, so its revocation is removed, too.
                let settled = record.settle(|it| it == key) > 0;
                there || settled || grant == GrantWrite::InFlight
            })
            .await?;
        if grant == GrantWrite::InFlight {
            // The write with the unknown outcome may have revoked sessions of this node, and no
            // other step has ended these sessions yet.
            let gone = self.end_all_revoked(uid, &record);
            if !gone.is_empty() {
                self.settle(uid, &gone).await?;
            }
        }
        let deleted = written && found;
        if deleted {
            self.events.emit(Transition::Deleted, |event| {
                event.uid = Some(uid.clone());
                event.set_session(key);
                if !there {
                    event.result = Some("it was gone when a lost reply was looked up".into());
                }
            });
        } else {
            metrics::counter!("distlock_stale_delete_refused_total").increment(1);
            self.events.emit(Transition::StaleDeleteRefused, |event| {
                event.uid = Some(uid.clone());
                event.set_session(key);
                event.r#gen = Some(record.r#gen);
            });
        }
        Ok(deleted)
    }
}
