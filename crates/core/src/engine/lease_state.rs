//! One held lock: what its guards, its watches and the keeper share.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    contract::{AcquireRequest, Grant, HolderInfo, Lease, LossReason, Renewed},
    engine::{
        clock::{Clock, Moment},
        deadline::Deadline,
        local_queue::{LocalHolder, LocalTurn},
        log,
        meters::Meters,
    },
    fence::Fence,
    types::{
        error::{Error, ErrorKind, Result},
        ident::{HolderLabel, OwnerId},
        name::LockName,
        token::{Epoch, FencingToken},
        ttl::Ttl,
    },
};

/// How a guard's lease is kept alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renew {
    /// In the background, at a third of the TTL.
    #[default]
    Auto,
    /// Only by [`Guard::extend`](crate::Guard::extend).
    Manual,
}

/// One held lock.
pub(crate) struct LeaseState {
    id: u64,
    name: LockName,
    owner: OwnerId,
    holder: HolderLabel,
    acquired: Moment,
    clock: Arc<dyn Clock>,
    meters: Arc<Meters>,
    state: Mutex<State>,
    changed: Notify,
    /// One renewal, extension or ticket step at a time: two in flight could be applied in either order.
    pub(crate) io: tokio::sync::Mutex<()>,
}

struct State {
    phase: Phase,
    token: FencingToken,
    epoch: Epoch,
    ttl: Ttl,
    deadline: Deadline,
    renew: Renew,
    /// When the next renewal is due; `None` while one is in flight or when renewal is manual.
    renew_at: Option<Moment>,
    /// Whether the last renewal failed or hangs: it decides how an expiry is called.
    failing: bool,
    /// Whether the last guard is on its way out: nothing may touch the lease but what ends it.
    leaving: bool,
    /// The longest minimum hold of its guards.
    min_hold: Duration,
    /// Guards that share this hold.
    depth: u32,
    /// The process's place at this name, given up on loss so that local waiters are not stuck behind a lost guard.
    turn: Option<LocalTurn>,
    /// Where the keeper has scheduled it.
    pub(crate) scheduled: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Lost(LossReason),
    Released,
}

/// What the keeper has to do about a hold now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing before this moment.
    At(Moment),
    /// Renew it, and look again at this moment even if the renewal hangs.
    Renew { deadline: Moment },
    /// It is over, and everybody was told, but for the log.
    Lost(LossReason),
    /// Nothing ever again.
    Ended,
}

/// The store's history is another one since a renewal, and the lock is still ours.
#[derive(Clone, Debug)]
pub(crate) struct NewHistory {
    from: Epoch,
    to: Epoch,
}

impl State {
    fn stop_renewing(&mut self) {
        self.renew_at = None;
        self.renew = Renew::Manual;
    }

    fn leave(&mut self) {
        self.stop_renewing();
        self.leaving = true;
    }
}

impl LeaseState {
    pub(crate) fn new(
        request: &AcquireRequest,
        grant: &Grant,
        sent: Moment,
        renew: Renew,
        turn: Option<LocalTurn>,
        clock: &Arc<dyn Clock>,
        meters: &Arc<Meters>,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // A store may grant less than was asked for; the rhythm of renewals follows what it granted.
        let ttl = Ttl::new(grant.valid_for).map_or(request.ttl, |granted| granted.min(request.ttl));
        let from = grant.counted_from(sent);
        meters.held.increment(1.0);
        let lease_state = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: request.name.clone(),
            owner: request.owner,
            holder: request.holder.clone(),
            acquired: sent,
            clock: Arc::clone(clock),
            meters: Arc::clone(meters),
            state: Mutex::new(State {
                phase: Phase::Held,
                token: grant.token,
                epoch: grant.epoch.clone(),
                ttl,
                deadline: Deadline::granted(sent, grant.valid_for)
                    .counted_from(from, grant.valid_for),
                renew,
                renew_at: (renew == Renew::Auto).then(|| from + ttl.duration() / 3),
                failing: false,
                leaving: false,
                min_hold: Duration::ZERO,
                depth: 1,
                turn: None,
                scheduled: None,
            }),
            changed: Notify::new(),
            io: tokio::sync::Mutex::new(()),
        });
        if let Some(turn) = turn {
            let holder: Weak<dyn LocalHolder> = Arc::<Self>::downgrade(&lease_state);
            turn.held_by(holder);
            lease_state.state().turn = Some(turn);
        }
        lease_state
    }

    /// A request of its owner that was never answered may still arrive, and set the lease to this.
    pub(crate) fn may_be_cut_to(&self, ttl: Ttl) {
        self.state().deadline.unknown(ttl.duration());
    }

    /// What an unanswered request may still set the lease to, if there is one.
    pub(crate) fn cut_to(&self) -> Option<Ttl> {
        let cap = self.state().deadline.cap();
        cap.and_then(|cap| Ttl::new(cap).ok())
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) const fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) const fn acquired(&self) -> Moment {
        self.acquired
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.state().token
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.state().epoch.clone()
    }

    pub(crate) fn ttl(&self) -> Ttl {
        self.state().ttl
    }

    /// What a fresh renewal is sure to be good for: no more than an unanswered one that may still arrive after it.
    pub(crate) fn sure_ttl(&self) -> Ttl {
        let state = self.state();
        Ttl::new(state.deadline.believed(state.ttl.duration())).unwrap_or(state.ttl)
    }

    /// The longest minimum hold that one of its guards asked for.
    pub(crate) fn min_hold(&self) -> Duration {
        self.state().min_hold
    }

    pub(crate) fn hold_at_least(&self, time: Duration) {
        let mut state = self.state();
        state.min_hold = state.min_hold.max(time);
    }

    pub(crate) const fn owner(&self) -> OwnerId {
        self.owner
    }

    pub(crate) fn lease(&self) -> Lease {
        Lease::new(self.name.clone(), self.owner, Some(self.token()))
    }

    /// What a release needs to know: the lease, the local deadline, and when the store has release_longer_lease it at the latest.
    pub(crate) fn release_terms(&self) -> (Lease, Moment, Moment) {
        let state = self.state();
        let lease = Lease::new(self.name.clone(), self.owner, Some(state.token));
        (lease, state.deadline.at(), state.deadline.latest())
    }

    pub(crate) fn fence(&self) -> Fence {
        let state = self.state();
        Fence::new(state.token, self.owner.tag(), state.epoch.clone())
    }

    /// How others of this process see it.
    fn info(&self) -> HolderInfo {
        let mut info = HolderInfo::new(self.holder.as_str());
        info.token = Some(self.token());
        let held = self.clock.now().since(self.acquired);
        info.acquired_at = self.clock.wall().checked_sub(held);
        info.expires_in = Some(self.remaining());
        info
    }

    /// Local, no I/O; sticky: the check itself notices a deadline that has passed.
    pub(crate) fn is_valid(&self) -> bool {
        self.state_now()
            .is_ok_and(|state| state.phase == Phase::Held)
    }

    pub(crate) fn remaining(&self) -> Duration {
        let state = self.state();
        match state.phase {
            Phase::Held => state.deadline.at().since(self.clock.now()),
            Phase::Lost(_) | Phase::Released => Duration::ZERO,
        }
    }

    /// When its lease ends here, also where it was lost sooner.
    pub(crate) fn deadline(&self) -> Moment {
        self.state().deadline.at()
    }

    /// The loss, if there is one by now.
    pub(crate) fn loss_now(&self) -> Option<LossReason> {
        self.state_now().err()
    }

    /// Its state, unless it is lost by now.
    fn state_now(&self) -> Result<MutexGuard<'_, State>, LossReason> {
        let state = self.state();
        if let Phase::Lost(reason) = state.phase {
            return Err(reason);
        }
        match self.expired_now(&state) {
            Some(reason) => {
                self.end(state, Phase::Lost(reason));
                self.log_loss(reason);
                Err(reason)
            }
            None => Ok(state),
        }
    }

    /// What a lock is lost to whose deadline has passed.
    fn expired_now(&self, state: &State) -> Option<LossReason> {
        let over = state.phase == Phase::Held && self.clock.now() >= state.deadline.at();
        over.then_some(if state.failing {
            LossReason::Unreachable
        } else {
            LossReason::Expired
        })
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.loss_now() {
            Some(reason) => Err(self.lost_error(reason)),
            None => Ok(()),
        }
    }

    /// As [`LeaseState::check`]; having been released is an error as well.
    pub(crate) fn check_held(&self) -> Result<()> {
        self.check()?;
        if self.is_valid() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::NotHeld, "the lock was released").about(&self.name))
        }
    }

    pub(crate) fn lost_error(&self, reason: LossReason) -> Error {
        Error::new(ErrorKind::Lost, format!("the lock was lost: {reason}")).about(&self.name)
    }

    /// Resolves once it has ended: `Some` = lost, `None` = released.
    pub(crate) async fn ended(&self) -> Option<LossReason> {
        loop {
            let changed = self.changed.notified();
            match self.state_now().map(|state| state.phase) {
                Err(reason) => return Some(reason),
                Ok(Phase::Released) => return None,
                Ok(_) => changed.await,
            }
        }
    }

    /// The store's push said so. The first reason stays; a released lock cannot be lost any more. Whether it is news.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        let state = self.state();
        let held = state.phase == Phase::Held;
        self.end(state, Phase::Lost(reason));
        held
    }

    /// The last guard is done with it. Gives back the turn, unless it was lost before.
    pub(crate) fn finish(&self) -> Result<Option<LocalTurn>, LossReason> {
        let mut state = self.state_now()?;
        let turn = state.turn.take();
        self.end(state, Phase::Released);
        Ok(turn)
    }

    /// Ends it and tells everybody. A loss is logged by the caller, after that: whoever takes the log may be slow.
    fn end(&self, mut state: MutexGuard<'_, State>, phase: Phase) {
        if state.phase != Phase::Held {
            return;
        }
        state.phase = phase;
        state.renew_at = None;
        let turn = state.turn.take();
        drop(state);
        self.meters.held.decrement(1.0);
        if let Phase::Lost(reason) = phase {
            self.meters.lost(reason);
        }
        self.changed.notify_waiters();
        // Outside of our own mutex: giving up the turn takes the queue's.
        drop(turn);
    }

    /// The last part of telling it, once nobody waits to be told.
    pub(crate) fn log_loss(&self, reason: LossReason) {
        let name = self.name.clone();
        log::write(move || tracing::warn!(lock = ?name, %reason, "lock lost"));
    }

    /// Another guard on the same hold. `false` when it has ended, or is about to.
    pub(crate) fn add_guard(&self) -> bool {
        match self.state_now() {
            Ok(mut state) if state.phase == Phase::Held && state.depth > 0 && !state.leaving => {
                state.depth += 1;
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// One guard less. `true` = it was the last.
    pub(crate) fn remove_guard(&self) -> bool {
        let mut state = self.state();
        state.depth = state.depth.saturating_sub(1);
        state.depth == 0
    }

    /// The last guard is about to go: no renewal, no extension and no further guard may start any more.
    pub(crate) fn leave(&self) {
        self.state().leave();
    }

    /// As [`LeaseState::leave`], unless other guards share it.
    pub(crate) fn leave_alone(&self) -> bool {
        let mut state = self.state();
        if state.depth > 1 {
            return false;
        }
        state.leave();
        true
    }

    /// Whether it may be renewed or extended. Asked with `io` locked: whoever leaves waits for that lock afterwards.
    pub(crate) fn may_renew(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Held && !state.leaving
    }

    /// Nobody renews it in the background any more.
    pub(crate) fn stop_renewing(&self) {
        self.state().stop_renewing();
    }

    /// What the keeper must do now. Marks a renewal as begun when it says so.
    pub(crate) fn due(&self) -> Due {
        let mut state = self.state();
        if state.phase != Phase::Held {
            return Due::Ended;
        }
        if let Some(reason) = self.expired_now(&state) {
            self.end(state, Phase::Lost(reason));
            return Due::Lost(reason);
        }
        let deadline = state.deadline.at();
        match state.renew_at {
            Some(at) if at <= self.clock.now() => {
                state.renew_at = None;
                Due::Renew { deadline }
            }
            Some(at) => Due::At(at.min(deadline)),
            None => Due::At(deadline),
        }
    }

    /// Files it for when the keeper must look at it next: that moment, and the one it was scheduled for before. `None` once it
    /// has ended.
    pub(crate) fn schedule_next(&self) -> Option<(Moment, Option<Moment>)> {
        let mut state = self.state();
        if state.phase != Phase::Held {
            return None;
        }
        let deadline = state.deadline.at();
        let at = state.renew_at.map_or(deadline, |at| at.min(deadline));
        Some((at, state.scheduled.replace(at)))
    }

    /// Takes it out of where it was scheduled.
    pub(crate) fn unschedule(&self) -> Option<Moment> {
        self.state().scheduled.take()
    }

    /// A renewal or extension is about to be sent. `Err` when there is nothing left to renew.
    pub(crate) fn sending(&self, ttl: Ttl) -> Result<Moment, LossReason> {
        let mut state = self.state_now()?;
        let sent = self.clock.now();
        state.deadline.sending(sent, ttl.duration());
        Ok(sent)
    }

    /// Whether a renewal is planned: one that waits for its turn meanwhile is no longer needed.
    pub(crate) fn renews_later(&self) -> bool {
        self.state().renew_at.is_some()
    }

    /// The answer to what was sent at `sent`; `None` = it did not come in time. What is said here goes to
    /// [`LeaseState::log_renewal`] once nobody waits for it any more.
    pub(crate) fn answered(
        &self,
        sent: Moment,
        ttl: Ttl,
        answer: Option<Result<Renewed>>,
    ) -> Result<Option<NewHistory>> {
        // An answer that comes after the deadline comes too late, whatever it says.
        self.check()?;
        let mut state = self.state();
        if state.phase != Phase::Held {
            return Ok(None);
        }
        let failure = match answer {
            Some(Ok(Renewed::Extended {
                valid_for, epoch, ..
            })) => {
                let new_history = (epoch != state.epoch).then(|| NewHistory {
                    from: std::mem::replace(&mut state.epoch, epoch.clone()),
                    to: epoch,
                });
                state.deadline.confirmed(sent, valid_for);
                state.ttl = Ttl::new(valid_for).map_or(ttl, |granted| granted.min(ttl));
                state.failing = false;
                if state.renew == Renew::Auto {
                    let believed = state.deadline.believed(state.ttl.duration());
                    state.renew_at = Some(sent + believed / 3);
                }
                self.meters.renewed.increment(1);
                drop(state);
                return self.check().map(|()| new_history);
            }
            Some(Ok(Renewed::NotHeld(reason))) => {
                self.end(state, Phase::Lost(reason));
                self.log_loss(reason);
                return Err(self.lost_error(reason));
            }
            Some(Err(error)) => {
                if !error.did_not_happen() {
                    state.deadline.unknown(ttl.duration());
                }
                error
            }
            None => {
                state.deadline.unknown(ttl.duration());
                Error::new(
                    ErrorKind::OutcomeUnknown,
                    "the store did not answer in time",
                )
            }
        };
        state.failing = true;
        if state.renew == Renew::Auto {
            // Soon again, in time for several tries, but not in a tight loop: a tenth of the TTL, 20 ms to 1 s.
            let now = self.clock.now();
            let left = state.deadline.at().since(now);
            let pause = (state.ttl.duration() / 10)
                .min(left / 4)
                .clamp(Duration::from_millis(20), Duration::from_secs(1));
            state.renew_at = Some(now + pause);
        }
        self.meters.renew_failed.increment(1);
        Err(failure.about(&self.name).during("renew"))
    }

    /// Says what came of a renewal, as the last thing that is done about it.
    pub(crate) fn log_renewal(&self, answered: &Result<Option<NewHistory>>) {
        match answered {
            Ok(Some(NewHistory { from, to })) => {
                let (name, from, to) = (self.name.clone(), from.clone(), to.clone());
                log::write(move || {
                    tracing::warn!(lock = ?name, %from, %to, "the store's history changed, the lock is still ours");
                });
            }
            Ok(None) => {}
            // A loss is logged as such.
            Err(failure) if failure.is_lost() => {}
            Err(failure) => {
                let (name, failure) = (self.name.clone(), failure.clone());
                log::write(move || {
                    tracing::warn!(lock = ?name, %failure, "renewal failed, trying again until the deadline");
                });
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in this module panics while it holds the mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalHolder for LeaseState {
    fn held_info(&self) -> Option<HolderInfo> {
        self.is_valid().then(|| self.info())
    }
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("LeaseState")
            .field("name", &self.name)
            .field("token", &state.token)
            .field("phase", &state.phase)
            .field("depth", &state.depth)
            .finish_non_exhaustive()
    }
}
