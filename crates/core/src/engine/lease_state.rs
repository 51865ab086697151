//! The state of one lease, which its guards, its watches and the keeper share.
//!
//! This module owns the phase of the lease (held, lost, released), its local deadline and its next
//! renewal. Invariant: a lease leaves the phase `Held` once and never returns to it, and each check
//! itself notices that the deadline has passed. The module sends nothing to the store: it plans
//! requests and processes their answers.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    clock::{Clock, Moment},
    contract::{AcquireRequest, Grant, Lease, LossReason, Renewed},
    engine::{deadline::Deadline, local_queue::LocalTurn, log, meters::Meters},
    fence::Fence,
    sync::{Mutex, MutexGuard},
    types::{
        error::{Error, ErrorKind, Result},
        ident::{HolderInfo, HolderLabel, OwnerId},
        name::LockName,
        token::{Epoch, FencingToken},
        ttl::Ttl,
    },
};

/// The way in which the lease of a guard is renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renew {
    /// In the background, at a third of the TTL.
    #[default]
    Auto,
    /// Only by [`Guard::extend`](crate::Guard::extend).
    Manual,
}

/// The state of one lease.
pub(crate) struct LeaseState {
    id: u64,
    name: LockName,
    owner: OwnerId,
    holder: HolderLabel,
    acquired: Moment,
    clock: Arc<dyn Clock>,
    meters: Arc<Meters>,
    state: Mutex<LeaseFields>,
    changed: Notify,
    /// Whether the release passes the lock to nobody inside this process.
    pub(crate) gives_others_a_turn: bool,
    /// Locked while a renewal, an extension or a ticket step is in flight. The store could apply
    /// two of them in either order.
    pub(crate) io: tokio::sync::Mutex<()>,
}

struct LeaseFields {
    phase: Phase,
    token: FencingToken,
    epoch: Epoch,
    ttl: Ttl,
    deadline: Deadline,
    renew: Renew,
    /// The moment of the next renewal; `None` while a renewal is in flight or when renewal is
    /// manual.
    renew_at: Option<Moment>,
    /// Whether the last renewal failed or got no answer in time. An expiry is then reported as
    /// `Unreachable`.
    failing: bool,
    /// Whether the last guard has begun to end the lease. No other request may change the lease
    /// then.
    leaving: bool,
    /// The longest minimum hold of the guards of this lease.
    min_hold: Duration,
    /// The number of guards that share this lease.
    depth: u32,
    /// The local turn. A loss drops the turn, so that a lost guard does not block the waiters of
    /// this process.
    turn: Option<LocalTurn>,
    /// The moment of this lease's entry in the keeper's schedule.
    pub(crate) scheduled: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Lost(LossReason),
    Released,
}

/// The next step of the keeper for one lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// The keeper has nothing to do before this moment.
    At(Moment),
    /// The keeper renews the lease now, and serves the lease again at the deadline, also if the
    /// renewal hangs.
    Renew { deadline: Moment },
    /// The lease is lost, and its watches were woken. Only the log line is missing.
    Lost(LossReason),
    /// The lease had ended before this call.
    Ended,
}

/// The store's history changed, and a renewal found that the owner still holds the lock.
#[derive(Clone, Debug)]
pub(crate) struct NewHistory {
    from: Epoch,
    to: Epoch,
}

impl LeaseFields {
    fn stop_renewing(&mut self) {
        self.renew_at = None;
        self.renew = Renew::Manual;
    }

    fn begin_release(&mut self) {
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
        // A store may grant less than the requested TTL. Renewals then follow the granted TTL.
        let ttl = Ttl::new(grant.valid_for).map_or(request.ttl, |granted| granted.min(request.ttl));
        let from = grant.counted_from(sent);
        meters.held.increment(1.0);
        let lease_state = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: request.name.clone(),
            owner: grant.owner_after(request),
            holder: request.holder.clone(),
            acquired: sent,
            clock: Arc::clone(clock),
            meters: Arc::clone(meters),
            state: Mutex::new(LeaseFields {
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
            gives_others_a_turn: request.in_order,
            io: tokio::sync::Mutex::new(()),
        });
        if let Some(turn) = turn {
            // `held_by` locks the mutex of the local queue, so the mutex of this state is locked
            // only after it. No thread ever holds both, so no order of the two can deadlock.
            turn.held_by(Arc::downgrade(&lease_state));
            lease_state.state.lock().turn = Some(turn);
        }
        lease_state
    }

    /// Notes that a request without an answer may still arrive and set the lease to this TTL.
    pub(crate) fn note_unanswered_ttl(&self, ttl: Ttl) {
        self.state.lock().deadline.note_unanswered(ttl.duration());
    }

    /// The TTL that a request without an answer may still set the lease to.
    pub(crate) fn unanswered_ttl(&self) -> Option<Ttl> {
        let cap = self.state.lock().deadline.cap();
        cap.and_then(|cap| Ttl::new(cap).ok())
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) const fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) const fn holder(&self) -> &HolderLabel {
        &self.holder
    }

    pub(crate) const fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    pub(crate) const fn acquired(&self) -> Moment {
        self.acquired
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.state.lock().token
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.state.lock().epoch.clone()
    }

    pub(crate) fn ttl(&self) -> Ttl {
        self.state.lock().ttl
    }

    /// The TTL that a new renewal may count on: no longer than the TTL of a request without an
    /// answer, because that request may still reach the store after the renewal.
    pub(crate) fn believed_ttl(&self) -> Ttl {
        let state = self.state.lock();
        Ttl::new(state.deadline.believed(state.ttl.duration())).unwrap_or(state.ttl)
    }

    /// The longest minimum hold of the guards of this lease.
    pub(crate) fn min_hold(&self) -> Duration {
        self.state.lock().min_hold
    }

    pub(crate) fn hold_at_least(&self, time: Duration) {
        let mut state = self.state.lock();
        state.min_hold = state.min_hold.max(time);
    }

    pub(crate) const fn owner(&self) -> OwnerId {
        self.owner
    }

    pub(crate) fn lease(&self) -> Lease {
        Lease::new(self.name.clone(), self.owner, Some(self.token()))
    }

    /// The values for a release: the lease, the local deadline, and the moment at which the store
    /// has ended the lease at the latest.
    pub(crate) fn release_terms(&self) -> (Lease, Moment, Moment) {
        let state = self.state.lock();
        let lease = Lease::new(self.name.clone(), self.owner, Some(state.token));
        (lease, state.deadline.at(), state.deadline.latest())
    }

    pub(crate) fn fence(&self) -> Fence {
        let state = self.state.lock();
        Fence::new(state.token, self.owner.tag(), state.epoch.clone())
    }

    /// The holder, as other tasks of this process see it; `None` when the lease may have ended.
    pub(crate) fn held_info(&self) -> Option<HolderInfo> {
        if !self.is_valid() {
            return None;
        }
        let mut info = HolderInfo::new(self.holder.as_str());
        info.token = Some(self.token());
        let held = self.clock.now().since(self.acquired);
        info.acquired_at = self.clock.wall().checked_sub(held);
        info.expires_in = Some(self.remaining());
        Some(info)
    }

    /// Whether the lock is certainly held, without I/O. After `false`, the answer stays `false`:
    /// the check ends the lease when its deadline has passed.
    pub(crate) fn is_valid(&self) -> bool {
        self.state_now()
            .is_ok_and(|state| state.phase == Phase::Held)
    }

    pub(crate) fn remaining(&self) -> Duration {
        let state = self.state.lock();
        match state.phase {
            Phase::Held => state.deadline.at().since(self.clock.now()),
            Phase::Lost(_) | Phase::Released => Duration::ZERO,
        }
    }

    /// The local deadline, also of a lease that was lost before its deadline.
    pub(crate) fn deadline(&self) -> Moment {
        self.state.lock().deadline.at()
    }

    /// The reason if the lease is lost by now; `None` otherwise.
    pub(crate) fn loss_now(&self) -> Option<LossReason> {
        self.state_now().err()
    }

    /// Locks the state. Ends a lease whose deadline has passed, and returns the reason of a lost
    /// lease.
    fn state_now(&self) -> Result<MutexGuard<'_, LeaseFields>, LossReason> {
        let state = self.state.lock();
        if let Phase::Lost(reason) = state.phase {
            return Err(reason);
        }
        // The check itself ends an expired lease. If it only looked, a renewal whose answer comes
        // late could make the lease valid again after a caller was told that it is not.
        match self.expired_now(&state) {
            Some(reason) => {
                self.end(state, Phase::Lost(reason));
                self.log_loss(reason);
                Err(reason)
            }
            None => Ok(state),
        }
    }

    /// The loss reason of a lease whose deadline has passed; `None` while it has not.
    fn expired_now(&self, state: &LeaseFields) -> Option<LossReason> {
        let has_expired = state.phase == Phase::Held && self.clock.now() >= state.deadline.at();
        has_expired.then_some(if state.failing {
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

    /// As [`LeaseState::check`], and also an error after a release.
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

    /// Resolves once the lease has ended: `Some` = lost, `None` = released.
    pub(crate) async fn ended(&self) -> Option<LossReason> {
        loop {
            // Registered before the look at the phase, so that an end between the two is not
            // missed.
            let changed = self.changed.notified();
            match self.state_now().map(|state| state.phase) {
                Err(reason) => return Some(reason),
                Ok(Phase::Released) => return None,
                Ok(_) => changed.await,
            }
        }
    }

    /// Ends a held lease because the store reported a loss. A lease that was lost before keeps its
    /// first reason, and a released lease stays released. Returns whether this call ended the
    /// lease.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        let state = self.state.lock();
        let held = state.phase == Phase::Held;
        self.end(state, Phase::Lost(reason));
        held
    }

    /// Ends the lease for its last guard. Returns the local turn, or the reason if the lease was
    /// lost before.
    pub(crate) fn finish(&self) -> Result<Option<LocalTurn>, LossReason> {
        let mut state = self.state_now()?;
        // Taken out before `end`, which would pass the turn on: the next task would then ask the
        // store before this release has reached it.
        let turn = state.turn.take();
        self.end(state, Phase::Released);
        Ok(turn)
    }

    /// Ends a held lease and wakes all its watches. The caller must log a loss after this call,
    /// because a slow log would delay the watches.
    fn end(&self, mut state: MutexGuard<'_, LeaseFields>, phase: Phase) {
        if state.phase != Phase::Held {
            return;
        }
        state.phase = phase;
        state.renew_at = None;
        let turn = state.turn.take();
        drop(state);
        self.meters.held.decrement(1.0);
        let held = self.clock.now().since(self.acquired);
        self.meters.hold_seconds.record(held.as_secs_f64());
        if let Phase::Lost(reason) = phase {
            self.meters.count_loss(reason);
        }
        self.changed.notify_waiters();
        // The turn is dropped after the mutex of this state is released, because the drop locks the
        // local queue's mutex.
        drop(turn);
    }

    /// Logs the loss. Call this after all watches were woken.
    pub(crate) fn log_loss(&self, reason: LossReason) {
        let name = self.name.clone();
        log::write(move || tracing::warn!(lock = ?name, %reason, "lock lost"));
    }

    /// Counts another guard on this lease. Returns `false`, and changes nothing, when the lease has
    /// ended or its last guard is ending it.
    pub(crate) fn add_guard(&self) -> bool {
        match self.state_now() {
            // A depth of zero: the last guard was just dropped, and has not marked the release yet.
            // A guard that joined now would lose its lock without a loss.
            Ok(mut state) if state.phase == Phase::Held && state.depth > 0 && !state.leaving => {
                state.depth += 1;
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// Counts one guard less. Returns whether no guard is left.
    pub(crate) fn remove_guard(&self) -> bool {
        let mut state = self.state.lock();
        state.depth = state.depth.saturating_sub(1);
        state.depth == 0
    }

    /// Marks that the last guard is ending the lease: no renewal, no extension and no further guard
    /// may start any more.
    pub(crate) fn begin_release(&self) {
        self.state.lock().begin_release();
    }

    /// As [`LeaseState::begin_release`]; `false`, and no change, when other guards share the lease.
    pub(crate) fn begin_release_of_only_guard(&self) -> bool {
        let mut state = self.state.lock();
        // One step with the mark below: a guard that joins in between would share the lease of a
        // ticket.
        if state.depth > 1 {
            return false;
        }
        state.begin_release();
        true
    }

    /// Whether the lease may be renewed or extended. The caller must have `io` locked. The last
    /// guard sets `leaving` and then waits for `io`, so no renewal can start after that wait.
    pub(crate) fn may_renew(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Held && !state.leaving
    }

    /// Ends the renewals in the background.
    pub(crate) fn stop_renewing(&self) {
        self.state.lock().stop_renewing();
    }

    /// Returns the keeper's next step. For `Due::Renew`, also marks the renewal as in flight.
    pub(crate) fn take_due_step(&self) -> Due {
        let mut state = self.state.lock();
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
                // Until `take_answer` plans the next renewal, the keeper only watches the deadline,
                // so a renewal that hangs does not start a second one.
                state.renew_at = None;
                Due::Renew { deadline }
            }
            Some(at) => Due::At(at.min(deadline)),
            None => Due::At(deadline),
        }
    }

    /// Records the moment of the next event as scheduled. Returns that moment, and the moment that
    /// was recorded before. `None` when the lease has ended.
    pub(crate) fn schedule_next(&self) -> Option<(Moment, Option<Moment>)> {
        let mut state = self.state.lock();
        if state.phase != Phase::Held {
            return None;
        }
        let deadline = state.deadline.at();
        let at = state.renew_at.map_or(deadline, |at| at.min(deadline));
        Some((at, state.scheduled.replace(at)))
    }

    /// Removes the recorded moment of the next event, and returns that moment.
    pub(crate) fn unschedule(&self) -> Option<Moment> {
        self.state.lock().scheduled.take()
    }

    /// Notes that a renewal or extension is about to be sent, and returns the moment of sending.
    /// `Err` when the lease is lost.
    pub(crate) fn note_sending(&self, ttl: Ttl) -> Result<Moment, LossReason> {
        let mut state = self.state_now()?;
        // The deadline drops before the request is sent. In the reverse order, the store could
        // shorten the lease while a check still reads the old deadline.
        let sent = self.clock.now();
        state.deadline.note_sending(sent, ttl.duration());
        Ok(sent)
    }

    /// Whether a later renewal is planned. A background renewal that waited for `io` is then not
    /// needed any more, because an extension was sent before.
    pub(crate) fn renews_later(&self) -> bool {
        self.state.lock().renew_at.is_some()
    }

    /// Processes the answer to the renewal that was sent at `sent`; `None` = no answer in time. The
    /// caller passes the result to [`LeaseState::log_renewal`] after it has answered every waiting
    /// task.
    pub(crate) fn take_answer(
        &self,
        sent: Moment,
        ttl: Ttl,
        answer: Option<Result<Renewed>>,
    ) -> Result<Option<NewHistory>> {
        // An answer after the deadline does not count, because another process may hold the lock by
        // now.
        self.check()?;
        let mut state = self.state.lock();
        // Another thread may have ended the lease between the check and this lock.
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
                let left = state.deadline.at().since(self.clock.now());
                self.meters.count_renewal(left, ttl.min(state.ttl));
                state.deadline.note_confirmed(sent, valid_for);
                state.ttl = Ttl::new(valid_for).map_or(ttl, |granted| granted.min(ttl));
                state.failing = false;
                if state.renew == Renew::Auto {
                    let believed = state.deadline.believed(state.ttl.duration());
                    state.renew_at = Some(sent + believed / 3);
                }
                drop(state);
                // The confirmed lease counts from the sending, and may be over by now.
                return self.check().map(|()| new_history);
            }
            Some(Ok(Renewed::NotHeld(reason))) => {
                self.end(state, Phase::Lost(reason));
                self.log_loss(reason);
                return Err(self.lost_error(reason));
            }
            Some(Err(error)) => {
                if !error.did_not_happen() {
                    state.deadline.note_unanswered(ttl.duration());
                }
                error
            }
            None => {
                state.deadline.note_unanswered(ttl.duration());
                Error::new(
                    ErrorKind::OutcomeUnknown,
                    "the store did not answer in time",
                )
            }
        };
        state.failing = true;
        if state.renew == Renew::Auto {
            // The next try follows after a tenth of the TTL, or together with the other attempts of
            // this process at an absent server, whichever is later. But it follows within a quarter
            // of the time to the deadline, limited to 20 ms to 1 s. So there are several tries
            // before the deadline, and a store that refuses is not asked in a tight loop.
            let now = self.clock.now();
            let left = state.deadline.at().since(now);
            let pause = (state.ttl.duration() / 10)
                .max(failure.retry_pause().unwrap_or_default())
                .min(left / 4)
                .clamp(Duration::from_millis(20), Duration::from_secs(1));
            state.renew_at = Some(now + pause);
        }
        self.meters.renew_failed.increment(1);
        Err(failure.about(&self.name).during("renew"))
    }

    /// Logs the result of a renewal, unless it is a loss or an ordinary success. Call this last,
    /// because a log may be slow.
    pub(crate) fn log_renewal(&self, answered: &Result<Option<NewHistory>>) {
        match answered {
            Ok(Some(NewHistory { from, to })) => {
                let (name, from, to) = (self.name.clone(), from.clone(), to.clone());
                log::write(move || {
                    tracing::warn!(
                        lock = ?name,
                        %from,
                        %to,
                        "the store's history changed, the lock is still ours",
                    );
                });
            }
            Ok(None) => {}
            // `log_loss` logs a loss.
            Err(failure) if failure.is_lost() => {}
            Err(failure) => {
                let (name, failure) = (self.name.clone(), failure.clone());
                log::write(move || {
                    tracing::warn!(
                        lock = ?name,
                        %failure,
                        "renewal failed, trying again until the deadline",
                    );
                });
            }
        }
    }
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("LeaseState")
            .field("name", &self.name)
            .field("token", &state.token)
            .field("phase", &state.phase)
            .field("depth", &state.depth)
            .finish_non_exhaustive()
    }
}
