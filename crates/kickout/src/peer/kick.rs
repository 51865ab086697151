//! Kicks: sending them to other nodes, and ending a session that one names.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use distlock_core::{Moment, Result, micros};
use futures_util::future::join_all;

use crate::{
    flow::{Inner, KickOut},
    model::{
        event::Transition,
        ident::{Generation, SessionKey, Uid},
        notice::Offline,
        record::{Revocation, UserRecord},
        request::{KickRequest, KickResult, PeerError},
    },
    node::liveness::Standing,
    wait::{jitter, within},
};

/// Tries per kick within its budget.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(30);

impl KickOut {
    /// A kick from another node: ends exactly the session it names. Every answer is final.
    ///
    /// # Errors
    /// [`PeerError::NotSent`] when the kick is for another node, or for an incarnation newer than this one: then it came to
    /// the wrong process, and what it names may be alive elsewhere.
    pub fn handle_kick(&self, request: &KickRequest) -> std::result::Result<KickResult, PeerError> {
        let inner = &self.inner;
        let own = inner.own.newest();
        if !inner.is_here(&request.key) {
            return Err(PeerError::NotSent(format!(
                "this is incarnation {own} of node {}",
                inner.node
            )));
        }
        let device = inner
            .registry
            .get(&request.uid, &request.key)
            .map(|live| live.device.clone());
        let result = if request.key.boot < own {
            KickResult::BootMismatch
        } else {
            inner.kick_here(request)
        };
        if matches!(result, KickResult::AlreadyGone | KickResult::BootMismatch) {
            // That a newer session was left alone is counted where it is decided, also for what the node finds out by itself.
            metrics::counter!("distlock_stale_kick_refused_total").increment(1);
        }
        inner.events.emit(Transition::KickReceived, |event| {
            event.uid = Some(request.uid.clone());
            event.about(&request.key);
            event.gen_max = Some(request.gen_max);
            event.device = device;
            event.by_device.clone_from(&request.by_device);
            event.took_us = request.after.map(micros);
            event.code = Some(request.reason);
            event.kick_id = Some(request.kick_id);
            event.peer = Some(request.from.clone());
            event.result = Some(format!("{result:?}"));
        });
        Ok(result)
    }
}

impl Inner {
    /// Tells the sessions of these revocations to go: in parallel, each with a deadline and retries, all within `budget`.
    /// Answers those that are known to be gone. `decided` says when the grant of a generation was written.
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
            self.kick_there(uid, revocation, until, decided.map(|(_, at)| at))
                .await
                .then(|| revocation.key.clone())
        });
        join_all(kicks).await.into_iter().flatten().collect()
    }

    /// Goes on telling the sessions of an account that could not be told, until they are gone or
    /// their nodes' leases are over.
    pub(crate) fn go_on_telling(self: &Arc<Self>, uid: &Uid) {
        if !self
            .telling
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(uid.clone())
        {
            return;
        }
        let (inner, uid) = (Arc::clone(self), uid.clone());
        self.spawn(async move {
            let until = inner.clock.now() + inner.timers.node_lease * 2;
            while inner.clock.now() < until {
                let tick = inner.timers.tick();
                tokio::select! {
                    biased;
                    () = inner.stop.cancelled() => break,
                    () = inner.clock.sleep(tick / 2 + jitter(tick / 2)) => {}
                }
                match inner.tell_again(&uid).await {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => tracing::debug!(?uid, %error, "older sessions are told later"),
                }
            }
            inner
                .telling
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&uid);
        });
    }

    /// Whether every older session is known to be gone now.
    async fn tell_again(&self, uid: &Uid) -> Result<bool> {
        let mut record = self.directory.read(uid).await?.record;
        if !record.revocations.is_empty() {
            let budget = self.timers.peer_deadline;
            let gone = self.kick_all(uid, &record.revocations, budget, None).await;
            if !gone.is_empty() {
                record = self.settle(uid, &gone).await?;
            }
        }
        Ok(record.revocations.is_empty())
    }

    async fn kick_there(
        &self,
        uid: &Uid,
        revocation: &Revocation,
        until: Moment,
        decided: Option<Moment>,
    ) -> bool {
        if self.is_here(&revocation.key) {
            self.apply(uid, revocation);
            return true;
        }
        // Tries that fail at once are over soon: where nobody listens any more, a login must not wait for the dead.
        for round in 0..TRIES {
            if round > 0 {
                self.clock.sleep(PAUSE + jitter(PAUSE)).await;
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

    /// Whether the session is known to be gone now. Nothing when others are finding out whether its node, which had not answered
    /// them, is back.
    async fn try_kick(
        &self,
        uid: &Uid,
        revocation: &Revocation,
        until: Moment,
        decided: Option<Moment>,
    ) -> Option<bool> {
        let SessionKey { node, boot, .. } = &revocation.key;
        let left = || until.since(self.clock.now());
        let standing = self.standing(node, *boot);
        let to = match within(&*self.clock, left(), standing).await {
            Some(Ok(Standing::Dead)) => return Some(true),
            Some(Ok(Standing::Up(to))) => to,
            Some(Err(_)) | None => return Some(false),
        };
        let deadline = self.timers.peer_deadline;
        let turn = self.caller.turn(node, left(), deadline).await;
        let is_turn = turn.is_ok();
        let answer = match turn {
            Ok(()) => {
                let mut request = KickRequest::of(uid, revocation, &self.node);
                request.after = decided.map(|at| self.clock.now().since(at));
                self.caller.kick(&to, request, left().min(deadline)).await
            }
            Err(error) => Err(error),
        };
        self.events.emit(Transition::KickSent, |event| {
            event.revocation(uid, revocation);
            event.peer = Some(node.clone());
            event.result = Some(match &answer {
                Ok(result) => format!("{result:?}"),
                Err(error) => error.to_string(),
            });
        });
        if answer.is_err() {
            self.nodes.doubt(node);
        }
        is_turn.then_some(answer.is_ok())
    }

    /// Takes the revocations of sessions that are known to be gone out of the record. Answers the record as it is now.
    pub(crate) async fn settle(&self, uid: &Uid, gone: &[SessionKey]) -> Result<UserRecord> {
        let record = self.directory.settle(uid, gone).await?;
        for key in gone {
            self.events.emit(Transition::Settled, |event| {
                event.uid = Some(uid.clone());
                event.about(key);
            });
        }
        Ok(record)
    }

    /// Whether a session is, or was, one of this process. A later incarnation of this node's name is another process.
    pub(crate) fn is_here(&self, key: &SessionKey) -> bool {
        key.node == self.node && key.boot <= self.own.newest()
    }

    /// Ends the sessions of this node that a record says were revoked. Answers them, and how many had not been told.
    pub(crate) fn apply_all(&self, uid: &Uid, record: &UserRecord) -> (Vec<SessionKey>, usize) {
        let here = record.revocations.iter();
        let here = here.filter(|it| self.is_here(&it.key));
        let mut told = 0;
        let gone = here
            .map(|revocation| {
                told += usize::from(self.apply(uid, revocation));
                revocation.key.clone()
            })
            .collect();
        (gone, told)
    }

    /// Ends a session of this node that was revoked. Answers whether it was there.
    pub(crate) fn apply(&self, uid: &Uid, revocation: &Revocation) -> bool {
        let request = KickRequest::of(uid, revocation, &self.node);
        self.kick_here(&request) == KickResult::Kicked
    }

    fn kick_here(&self, request: &KickRequest) -> KickResult {
        let refused = || match self.registry.newer(&request.uid, request.gen_max) {
            Some(newer) => {
                self.refuse_kick(request);
                KickResult::Newer(newer)
            }
            None => KickResult::AlreadyGone,
        };
        let Some(live) = self.registry.get(&request.uid, &request.key) else {
            return refused();
        };
        if live.generation() > request.gen_max {
            return refused();
        }
        let notice = Offline::new(request.reason)
            .by(request.by_device.clone(), request.by_gen)
            .reason(request.text.clone());
        // Whoever kicks has taken it out of the directory before.
        let ended = self.end(&live, notice, false, |event| {
            event.kick_id = Some(request.kick_id);
        });
        if ended {
            KickResult::Kicked
        } else {
            KickResult::AlreadyGone
        }
    }

    fn refuse_kick(&self, request: &KickRequest) {
        metrics::counter!("distlock_stale_kick_refused_total").increment(1);
        self.events.emit(Transition::StaleKickRefused, |event| {
            event.uid = Some(request.uid.clone());
            event.about(&request.key);
            event.gen_max = Some(request.gen_max);
            event.kick_id = Some(request.kick_id);
        });
    }
}
