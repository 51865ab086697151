//! Kicks to other nodes.
//!
//! A revocation is removed from the record only after its session is known to be gone. A kick that
//! fails is repeated, and the session's node also finds the revocation by itself.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Moment, Result};
use futures_util::future::join_all;

use crate::{
    directory::access::Directory,
    events::Events,
    model::{
        event::Transition,
        ident::{Generation, SessionKey, Uid},
        record::Revocation,
        request::KickRequest,
        settings::Settings,
    },
    node::{
        liveness::{Liveness, LivenessCache},
        this_node::ThisNode,
    },
    peer::client::PeerClient,
    session::{removal::Removals, revoke::Revoker},
    tasks::Tasks,
    wait::{jitter, within},
};

/// Tries per kick within its budget.
const MAX_TRIES: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(30);

#[derive(Debug)]
pub(crate) struct Kicks {
    pub(crate) this: Arc<ThisNode>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) liveness: Arc<LivenessCache>,
    pub(crate) peers: Arc<PeerClient>,
    pub(crate) revoker: Arc<Revoker>,
    pub(crate) removals: Arc<Removals>,
    pub(crate) events: Arc<Events>,
    pub(crate) tasks: Arc<Tasks>,
    /// Accounts whose kicks are repeated in the background.
    pub(crate) retrying: Mutex<HashSet<Uid>>,
}

impl Kicks {
    /// Kicks the sessions of these revocations in parallel, with retries, within `budget`. Returns
    /// the sessions that are known to be gone. `decided` is a generation, and the moment at which
    /// its grant was written. The kicks of that generation carry the time since then, for display.
    pub(crate) async fn kick_all(
        &self,
        uid: &Uid,
        revocations: &[Revocation],
        budget: Duration,
        decided: Option<(Generation, Moment)>,
    ) -> Vec<SessionKey> {
        let until = self.clock.now() + budget;
        let kicks = revocations.iter().map(|revocation| async move {
            let decided = decided.filter(|(by, _)| revocation.by_gen == Some(*by));
            self.kick_one(uid, revocation, until, decided.map(|(_, at)| at))
                .await
                .then(|| revocation.key.clone())
        });
        join_all(kicks).await.into_iter().flatten().collect()
    }

    /// Repeats the kicks of an account in the background until its older sessions are gone or their
    /// nodes' leases have ended.
    pub(crate) fn keep_kicking(self: &Arc<Self>, uid: &Uid) {
        if !self.retrying().insert(uid.clone()) {
            return;
        }
        let (kicks, uid) = (Arc::clone(self), uid.clone());
        self.tasks.spawn(async move {
            let until = kicks.clock.now() + kicks.settings.timers.node_lease * 2;
            while kicks.clock.now() < until {
                let tick = kicks.settings.timers.reconcile_period();
                tokio::select! {
                    biased;
                    () = kicks.tasks.stop.cancelled() => break,
                    () = kicks.clock.sleep(tick / 2 + jitter(tick / 2)) => {}
                }
                match kicks.kick_pending(&uid).await {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => tracing::debug!(?uid, %error, "older sessions are told later"),
                }
            }
            kicks.retrying().remove(&uid);
        });
    }

    /// Kicks the pending sessions again. Returns whether all of them are known to be gone.
    async fn kick_pending(&self, uid: &Uid) -> Result<bool> {
        let mut record = self.directory.read(uid).await?.record;
        if !record.revocations.is_empty() {
            let budget = self.settings.timers.peer_deadline;
            let gone = self.kick_all(uid, &record.revocations, budget, None).await;
            if !gone.is_empty() {
                record = self.removals.settle(uid, &gone).await?;
            }
        }
        Ok(record.revocations.is_empty())
    }

    async fn kick_one(
        &self,
        uid: &Uid,
        revocation: &Revocation,
        until: Moment,
        decided: Option<Moment>,
    ) -> bool {
        if self.this.owns(&revocation.key) {
            self.revoker.end_revoked(uid, revocation);
            return true;
        }
        // Three tries that fail at once take little time, so a login does not wait long for a dead
        // node.
        for round in 0..MAX_TRIES {
            if round > 0 {
                self.clock.sleep(RETRY_PAUSE + jitter(RETRY_PAUSE)).await;
            }
            if until.since(self.clock.now()).is_zero() {
                break;
            }
            match self.try_kick(uid, revocation, until, decided).await {
                Some(false) => {}
                gone => return gone.unwrap_or(false),
            }
        }
        false
    }

    /// Whether the session is known to be gone. `None` if another kick tries the node behind an
    /// open circuit.
    async fn try_kick(
        &self,
        uid: &Uid,
        revocation: &Revocation,
        until: Moment,
        decided: Option<Moment>,
    ) -> Option<bool> {
        let SessionKey { node, boot, .. } = &revocation.key;
        let left = || until.since(self.clock.now());
        let liveness = self.liveness.look_up(node, *boot);
        let to = match within(&*self.clock, left(), liveness).await {
            Some(Ok(Liveness::Dead)) => return Some(true),
            Some(Ok(Liveness::Up(to))) => to,
            Some(Err(_)) | None => return Some(false),
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
        self.events.emit(Transition::KickSent, |event| {
            event.set_revocation(uid, revocation);
            event.peer = Some(node.clone());
            event.result = Some(match &answer {
                Ok(result) => format!("{result:?}"),
                Err(error) => error.to_string(),
            });
        });
        if answer.is_err() {
            self.liveness.forget(node);
        }
        is_permitted.then_some(answer.is_ok())
    }

    fn retrying(&self) -> MutexGuard<'_, HashSet<Uid>> {
        self.retrying.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
