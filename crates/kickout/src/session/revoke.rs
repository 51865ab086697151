//! Ends sessions of this node that a kick or a revocation names.
//!
//! Only the named session ends, and only up to the named generation. A repeated kick changes
//! nothing.

use distlock_core::micros;

use crate::{
    model::{
        event::Transition,
        ident::{SessionKey, Uid},
        notice::Offline,
        record::{Revocation, UserRecord},
        request::{KickRequest, KickResult, PeerError},
    },
    node::Node,
};

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
            event.code = Some(request.reason);
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
        let notice = Offline::new(request.reason)
            .superseded_by(request.by_device.clone(), request.by_gen)
            .with_reason(request.text.clone());
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
