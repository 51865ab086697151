//! Kicks of revoked sessions, on this node and on other nodes.
//!
//! A revocation is removed from the record only after its session is known to have ended. A failed
//! kick is repeated. The session's node also finds the revocation at its next reconciliation.

use std::{sync::Arc, time::Duration};

use distlock_core::{Moment, Result, at_most};
use futures_util::future::join_all;

use crate::{
    model::{
        event::Transition,
        ident::{Generation, SessionKey, Uid},
        record::Revocation,
        request::{KickRequest, KickResult},
    },
    node::{Node, liveness::Liveness},
    tasks::jitter,
};

/// Most tries of one kick within its budget.
const MAX_TRIES: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(30);

/// The sessions that are known to have ended, each with the answer of its node.
pub(crate) type Ended = Vec<(SessionKey, KickResult)>;

/// The sessions whose revocations can be removed. A revocation stays while the session's program
/// may be saving. So another login that comes meanwhile waits for that program, too.
pub(crate) fn settled_among(ended: &[(SessionKey, KickResult)]) -> Vec<SessionKey> {
    let settled = ended.iter().filter(|(_, result)| result.is_final());
    settled.map(|(key, _)| key.clone()).collect()
}

/// The outcome of one attempt to kick a session.
enum KickAttempt {
    /// The session is known to have ended.
    Ended(KickResult),
    /// The session's node gave no answer, or the liveness of the node is not known.
    Failed,
    /// The kick was not sent: the circuit to the node is open, and another kick tries the node.
    CircuitOpen,
}

impl Node {
    /// Kicks the sessions of these revocations in parallel, with retries, within `budget`. Returns
    /// the sessions that are known to have ended. `decided` is a login's generation, and the moment
    /// at which its grant was written. The kicks that this login decided carry the time since that
    /// moment, for display.
    pub(crate) async fn kick_all(
        &self,
        uid: &Uid,
        revocations: &[Revocation],
        budget: Duration,
        decided: Option<(Generation, Moment)>,
    ) -> Ended {
        let until = self.clock.now() + budget;
        let kicks = revocations.iter().map(|revocation| async move {
            let decided = decided.filter(|(by, _)| revocation.by_gen == Some(*by));
            let kicked = self.kick_one(uid, revocation, until, decided.map(|(_, at)| at));
            Some((revocation.key.clone(), kicked.await?))
        });
        join_all(kicks).await.into_iter().flatten().collect()
    }

    /// Repeats the kicks of an account in the background, until its older sessions have ended. The
    /// repetition stops after two node leases, because a node that still does not answer has lost
    /// its lease by that time.
    pub(crate) fn keep_kicking(self: &Arc<Self>, uid: &Uid) {
        if !self.repeated_kicks.lock().insert(uid.clone()) {
            return;
        }
        let (node, uid) = (Arc::clone(self), uid.clone());
        self.tasks.spawn(async move {
            let until = node.clock.now() + node.settings.timers.node_lease * 2;
            while node.clock.now() < until {
                let tick = node.settings.timers.reconcile_period();
                tokio::select! {
                    biased;
                    () = node.tasks.stop.cancelled() => break,
                    () = node.clock.sleep(tick / 2 + jitter(tick / 2)) => {}
                }
                match node.kick_pending(&uid).await {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => tracing::debug!(?uid, %error, "older sessions could not be \
                        kicked, and are kicked again"),
                }
            }
            node.repeated_kicks.lock().remove(&uid);
        });
    }

    /// Kicks the pending sessions again. Returns true if all of them are known to have ended.
    async fn kick_pending(&self, uid: &Uid) -> Result<bool> {
        let mut record = self.directory.read(uid).await?.record;
        if !record.revocations.is_empty() {
            let budget = self.settings.timers.peer_deadline;
            let ended = self.kick_all(uid, &record.revocations, budget, None).await;
            let gone = settled_among(&ended);
            if !gone.is_empty() {
                record = self.settle(uid, &gone).await?;
            }
        }
        Ok(record.revocations.is_empty())
    }

    /// Ends one revoked session, on this node or by a kick to its node. Returns the answer of its
    /// node if the session is known to have ended.
    async fn kick_one(
        &self,
        uid: &Uid,
        revocation: &Revocation,
        until: Moment,
        decided: Option<Moment>,
    ) -> Option<KickResult> {
        if self.this.owns(&revocation.key) {
            return Some(self.end_revoked(uid, revocation).result);
        }
        // The number of tries is bounded, not only the time. When each try fails at once, a login
        // then does not wait for its whole budget.
        for round in 0..MAX_TRIES {
            if round > 0 {
                self.clock.sleep(RETRY_PAUSE + jitter(RETRY_PAUSE)).await;
            }
            if until.since(self.clock.now()).is_zero() {
                break;
            }
            match self.try_kick(uid, revocation, until, decided).await {
                KickAttempt::Ended(result) => return Some(result),
                KickAttempt::CircuitOpen => return None,
                KickAttempt::Failed => {}
            }
        }
        None
    }

    /// Makes one attempt to kick a session of another node. Records the attempt as an event.
    async fn try_kick(
        &self,
        uid: &Uid,
        revocation: &Revocation,
        until: Moment,
        decided: Option<Moment>,
    ) -> KickAttempt {
        let SessionKey { node, boot, .. } = &revocation.key;
        let left = || until.since(self.clock.now());
        let liveness = self.liveness_of(node, *boot);
        let to = match at_most(&*self.clock, left(), liveness).await {
            Some(Ok(Liveness::Dead)) => return KickAttempt::Ended(KickResult::AlreadyGone),
            Some(Ok(Liveness::Up(to))) => to,
            Some(Err(_)) | None => return KickAttempt::Failed,
        };
        let deadline = self.settings.timers.peer_deadline;
        let permission = self.peers.wait_to_kick(node, left(), deadline).await;
        let is_permitted = permission.is_ok();
        let answer = match permission {
            Ok(()) => {
                let mut request = KickRequest::for_revocation(uid, revocation, &self.this.id);
                request.after = decided.map(|at| self.clock.now().since(at));
                self.peers.kick(&to, request, left().min(deadline)).await
            }
            Err(error) => Err(error),
        };
        // A login that waits for a program repeats its kick often. Only the first one is an event.
        let repeated = answer == Ok(KickResult::Saving) && decided.is_none();
        if !repeated {
            self.events.emit(Transition::KickSent, |event| {
                event.set_revocation(uid, revocation);
                event.peer = Some(node.clone());
                event.result = Some(match &answer {
                    Ok(result) => format!("{result:?}"),
                    Err(error) => error.to_string(),
                });
            });
        }
        if answer.is_err() {
            self.forget_liveness(node);
        }
        match answer {
            Ok(result) => KickAttempt::Ended(result),
            Err(_) if is_permitted => KickAttempt::Failed,
            Err(_) => KickAttempt::CircuitOpen,
        }
    }
}
