//! The checks after every step. The checks must never call `is_valid()` of a guard. That call would
//! find a loss by itself, and notify the tasks that wait for the loss.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use distlock::{Error, LockWatch, LossReason, Released, Renew};

use super::{
    observed::{
        CallState, HeldGuard, ObservedCall, ObservedLock, ObservedMember, SimulatedProcess,
        StoredHolder,
    },
    promise::{Breach, SimulationPromise},
};

/// Longest allowed time from a deadline to the notice of its loss, in running time.
const NOTICE_BOUND: Duration = Duration::from_millis(250);
/// Time in which a resumed process must report its missed losses.
const RESUME_GRACE: Duration = Duration::from_millis(50);
/// Extra time, beyond its wait, that a hanging store may cost a caller.
const EXTRA_WAIT: Duration = Duration::from_secs(5);
/// The documented bound of a release: four steps at the store of at most 5 s each.
const RELEASE_BOUND: Duration = Duration::from_secs(20);
/// Time in which a free lock is granted, and an unwanted lock is released, while no fault is
/// active.
const PROMPT_TIME: Duration = Duration::from_millis(1500);

/// All observations so far.
#[derive(Default)]
pub(super) struct Judge {
    broken: Option<Breach>,
    pub(super) processes: Vec<SimulatedProcess>,
    locks: Vec<ObservedLock>,
    calls: BTreeMap<u64, ObservedCall>,
    /// Calls that have no answer yet.
    asking: BTreeSet<u64>,
    guards: BTreeMap<u64, HeldGuard>,
    /// Begin of the time without faults.
    calm_since: Option<Duration>,
    /// Whether the store decides the order in which tasks of a process are served.
    store_orders: bool,
    /// The last error of a call, or of a process that starts.
    last_error: String,
    /// The number of members that are a majority, if the locks are in a quorum; 1 in a ring.
    majority: Option<usize>,
    /// The validity of a view and the longest lease together, if the locks are in a ring.
    pub(super) view_bound: Option<Duration>,
    /// How often the member of a ring that grants a lock was another one than before.
    pub(super) moves: u64,
}

impl Judge {
    /// Creates a judge that has observed nothing.
    pub(super) fn new(
        locks: usize,
        stores: usize,
        majority: Option<usize>,
        store_orders: bool,
    ) -> Self {
        let mut judge = Self {
            store_orders,
            majority,
            ..Self::default()
        };
        judge.locks.resize_with(locks, || ObservedLock {
            members: vec![ObservedMember::default(); stores],
            ..ObservedLock::default()
        });
        judge
    }

    /// Records a broken promise. Only the first one of a run is kept.
    pub(super) fn record_breach(&mut self, promise: SimulationPromise, detail: String) {
        self.broken.get_or_insert(Breach { promise, detail });
    }

    /// Returns the broken promise, if there is one.
    pub(super) const fn broken(&self) -> Option<&Breach> {
        self.broken.as_ref()
    }

    /// Records that no fault is active from now on.
    pub(super) const fn start_calm(&mut self, now: Duration) {
        self.calm_since = Some(now);
    }

    /// Records that a call asks for a lock.
    pub(super) fn record_asked(
        &mut self,
        now: Duration,
        process: usize,
        lock: usize,
        wait: Option<Duration>,
        queues: bool,
    ) -> u64 {
        let number = u64::try_from(self.calls.len()).unwrap_or_default() + 1;
        let call = ObservedCall {
            process,
            lock,
            began: now,
            ran: self.processes[process].ran(now),
            wait,
            queues,
            state: CallState::Asking,
        };
        self.calls.insert(number, call);
        self.asking.insert(number);
        number
    }

    /// Records that a call got the lock. Returns the number of the grant among all grants of the
    /// lock.
    pub(super) fn record_granted(
        &mut self,
        now: Duration,
        call: u64,
        watch: LockWatch,
        renew: Renew,
    ) -> Option<u64> {
        self.check_call_bound(now, call);
        self.asking.remove(&call);
        let of = self.calls.get_mut(&call)?;
        of.state = CallState::Held;
        let (process, lock, queues) = (of.process, of.lock, of.queues);
        if queues && !self.store_orders {
            let mut before = self.asking.range(..call);
            let passed_over = before.find(|other| {
                let other = &self.calls[*other];
                other.queues && other.process == process && other.lock == lock
            });
            if let Some(other) = passed_over {
                let detail = format!("call {call} of p{process} was served before call {other}");
                self.record_breach(SimulationPromise::QueueOrder, detail);
            }
        }
        let token = watch.token().get();
        let at = &mut self.locks[lock];
        let grant = at.grants.get(&token).copied();
        let forced = at.forced.contains(&token) || at.forced_calls.contains(&call);
        let before = at.last_held;
        at.last_held = before.max(token);
        let mut members = at.members.iter();
        let from = members.position(|it| it.row.is_some_and(|row| row.call == call));
        if let (Some(from), true) = (from, self.view_bound.is_some()) {
            let before = at.last_member.replace(from);
            self.moves += u64::from(before.is_some_and(|before| before != from));
        }
        let wrong = match (self.majority, grant) {
            (Some(majority), _) => at.wrong_grant(majority, call, token, self.view_bound.is_some()),
            (None, Some((_, to))) if to == call => None,
            (None, granted) => {
                let detail = format!("call {call} got the grant {granted:?}");
                Some((SimulationPromise::OwnAnswer, detail))
            }
        };
        if let Some((promise, detail)) = wrong {
            self.record_breach(promise, detail);
        }
        // A grant that was force-released before its caller knew of it may arrive late.
        if before >= token && !forced {
            let detail = format!("lock {lock}: token {token} was held after {before}");
            self.record_breach(SimulationPromise::TokensRise, detail);
        }
        let held = HeldGuard {
            process,
            lock,
            token,
            watch,
            since: now,
            renew,
            leaving: false,
            forced,
            notified: false,
            invalid: None,
        };
        self.guards.insert(call, held);
        grant.map(|(number, _)| number)
    }

    /// Returns the member of a ring that has granted the first lock to its last caller.
    pub(super) fn last_member(&self) -> Option<usize> {
        self.locks.first()?.last_member
    }

    /// Records that a call ended without the lock, that its guard was released, or that its task
    /// gave up.
    pub(super) fn record_call_ended(&mut self, now: Duration, call: u64) {
        self.check_call_bound(now, call);
        self.asking.remove(&call);
        self.guards.remove(&call);
        if let Some(call) = self.calls.get_mut(&call) {
            call.state = CallState::Ended(now);
        }
    }

    /// Records that a guard is about to be released. Its loss needs no notice after that.
    pub(super) fn record_release_begun(&mut self, call: u64) {
        if let Some(held) = self.guards.get_mut(&call) {
            held.leaving = true;
        }
    }

    /// Returns the time for which a process has run.
    pub(super) fn ran(&self, process: usize, now: Duration) -> Duration {
        self.processes[process].ran(now)
    }

    /// Records that a release has ended. `begun` is the running time of the process at the begin of
    /// the release.
    pub(super) fn record_released(
        &mut self,
        now: Duration,
        call: u64,
        begun: Duration,
        released: &Released,
    ) {
        let Some(held) = self.guards.get(&call) else {
            return;
        };
        let took = self.ran(held.process, now).saturating_sub(begun);
        if took > RELEASE_BOUND {
            let detail = format!("the release of call {call} took {took:?}");
            self.record_breach(SimulationPromise::CallsEnd, detail);
        } else if held.must_not_be_lost(self.calm_since) && !released.is_clean() {
            let detail = format!("the release of call {call} was {released:?} without faults");
            self.record_breach(SimulationPromise::KeptInPeace, detail);
        }
    }

    /// Records that a call failed for another reason than its time-out.
    pub(super) fn record_failed(&mut self, call: u64, error: &Error) {
        self.last_error = error.to_string();
        let began = self.calls.get(&call).map(|call| call.began);
        if self.calm_since.is_some_and(|calm| began > Some(calm)) {
            self.record_breach(
                SimulationPromise::KeptInPeace,
                format!("call {call}: {error}"),
            );
        }
    }

    /// Records that a process could not open its store.
    pub(super) fn record_open_failed(&mut self, error: &Error) {
        self.last_error = error.to_string();
    }

    /// Records that the tasks that wait for a guard's end got notice of a loss.
    pub(super) fn record_loss_notified(&mut self, call: u64, reason: LossReason) {
        let Some(held) = self.guards.get_mut(&call) else {
            return;
        };
        held.notified = true;
        if held.must_not_be_lost(self.calm_since) {
            let detail =
                format!("call {call} lost its lock ({reason}) although no fault is active");
            self.record_breach(SimulationPromise::KeptInPeace, detail);
        } else if held.is_valid() {
            let detail = format!("call {call} got notice of a loss ({reason}) and is valid");
            self.record_breach(SimulationPromise::LossIsTold, detail);
        }
    }

    /// Records the holder of a lock at the store after a request.
    pub(super) fn record_stored(&mut self, now: Duration, lock: usize, row: Option<StoredHolder>) {
        let at = &mut self.locks[lock];
        let before = at.set_row(now, row);
        let Some(row) = row.filter(|row| before.is_none_or(|it| it.token != row.token)) else {
            return;
        };
        let number = u64::try_from(at.grants.len()).unwrap_or_default() + 1;
        at.grants.insert(row.token, (number, row.call));
        let last = std::mem::replace(&mut at.last_token, row.token);
        if last >= row.token {
            let detail = format!("lock {lock}: token {} was granted after {last}", row.token);
            self.record_breach(SimulationPromise::TokensRise, detail);
        }
        let without_notice = self.guards.iter().find(|(_, held)| {
            let process = &self.processes[held.process];
            held.lock == lock
                && held.needs_notice()
                && process.ran_without_break(RESUME_GRACE, Duration::ZERO, now)
        });
        if let Some((call, _)) = without_notice {
            let detail = format!(
                "lock {lock} was granted to call {} before call {call} got notice of its loss",
                row.call
            );
            self.record_breach(SimulationPromise::LossIsTold, detail);
        }
    }

    /// Records the holder of a lock at one member of a quorum after a request.
    pub(super) fn record_member(
        &mut self,
        now: Duration,
        lock: usize,
        member: usize,
        row: Option<StoredHolder>,
        what: &'static str,
    ) {
        let Some(majority) = self.majority else {
            return;
        };
        let at = &mut self.locks[lock];
        let seen = &mut at.members[member];
        let before = std::mem::replace(&mut seen.row, row);
        if let Some(row) = row {
            let is_new = before.is_none_or(|it| (it.call, it.token) != (row.call, row.token));
            if is_new && matches!(what, "acquire" | "attempt") {
                seen.granted.insert((row.call, row.token));
            }
            if now >= seen.silent_until {
                let confirmed = seen.confirmed.entry(row.call).or_default();
                *confirmed = row.token.max(*confirmed);
            }
        }
        let holder = at.majority_holder(now, majority);
        at.set_row(now, holder);
    }

    /// Records that a member of a quorum has lost its locks, and may not vote until `silent_until`.
    pub(super) fn record_forgotten(
        &mut self,
        now: Duration,
        member: usize,
        silent_until: Duration,
    ) {
        let Some(majority) = self.majority else {
            return;
        };
        for at in &mut self.locks {
            let seen = &mut at.members[member];
            seen.forgotten.extend(seen.row.take());
            seen.silent_until = silent_until;
            let holder = at.majority_holder(now, majority);
            at.set_row(now, holder);
        }
    }

    /// Records a forced release of a lock at one store.
    pub(super) fn record_forced(&mut self, lock: usize, row: StoredHolder) {
        let at = &mut self.locks[lock];
        let of_quorum = self.majority.is_some();
        if of_quorum {
            at.forced_calls.insert(row.call);
        } else {
            at.forced.insert(row.token);
        }
        for (call, held) in self.guards.iter_mut().filter(|(_, it)| it.lock == lock) {
            held.forced |= match of_quorum {
                true => *call == row.call,
                false => held.token == row.token,
            };
        }
    }

    /// Returns the present holder of a lock at the store.
    pub(super) fn stored_holder(&self, lock: usize, now: Duration) -> Option<StoredHolder> {
        self.locks[lock].row.filter(|row| row.expires > now)
    }

    /// Checks the promises about guards. The run calls this after every step.
    pub(super) fn check(&mut self, now: Duration) {
        let mut holders: Vec<(usize, u64)> = Vec::new();
        let mut wrong = None;
        for (call, held) in &mut self.guards {
            let process = &self.processes[held.process];
            let left = held.watch.remaining();
            if left.is_zero() {
                let since = *held.invalid.get_or_insert(now);
                if held.needs_notice() && process.ran_without_break(NOTICE_BOUND, since, now) {
                    let detail = format!("call {call} got no notice that its deadline has passed");
                    wrong = Some((SimulationPromise::LossIsTold, detail));
                }
                continue;
            }
            if held.forced {
                continue;
            }
            if let Some((_, other)) = holders.iter().find(|(lock, _)| *lock == held.lock) {
                let detail = format!("lock {} is held by calls {other} and {call}", held.lock);
                wrong = Some((SimulationPromise::Exclusion, detail));
            }
            holders.push((held.lock, *call));
            let believes = now + process.clock.true_span(left);
            let fresh = self.view_bound.map(|bound| process.trusts_until(bound));
            if fresh.is_some_and(|fresh| believes > fresh) && wrong.is_none() {
                let detail = format!(
                    "call {call} trusts its lease of lock {} until {believes:?}, and its process \
                     had no view for that",
                    held.lock
                );
                wrong = Some((SimulationPromise::FreshView, detail));
            }
            if let Some(majority) = self.majority {
                let at = &self.locks[held.lock];
                let keep = at.members.iter();
                let keep = keep.filter(|it| it.keeps(*call, held.token, believes));
                if keep.count() < majority && wrong.is_none() {
                    let detail = format!(
                        "call {call} trusts its lease of lock {} until {believes:?}, and no \
                         majority keeps it so long",
                        held.lock
                    );
                    wrong = Some((SimulationPromise::Belief, detail));
                }
                continue;
            }
            let expires = match self.locks[held.lock].row {
                Some(row) if row.token == held.token => row.expires,
                _ => Duration::ZERO,
            };
            if believes > expires && wrong.is_none() {
                let detail = format!(
                    "call {call} trusts its lease of lock {} until {believes:?}, \
                     and the store keeps it until {expires:?}",
                    held.lock
                );
                wrong = Some((SimulationPromise::Belief, detail));
            }
        }
        if let Some((promise, detail)) = wrong {
            self.record_breach(promise, detail);
        }
    }

    /// Checks the promises about waiting. The run calls this whenever time has passed.
    pub(super) fn check_waits(&mut self, now: Duration) {
        let waits = |call: &&u64| self.processes[self.calls[*call].process].runs();
        let waiting: Vec<u64> = self.asking.iter().filter(waits).copied().collect();
        for call in &waiting {
            self.check_call_bound(now, *call);
        }
        let Some(calm) = self.calm_since else { return };
        for number in waiting {
            let call = &self.calls[&number];
            let free = self.locks[call.lock].free_since(now);
            if free.is_some_and(|free| now > free.max(call.began).max(calm) + PROMPT_TIME) {
                let detail = format!("call {number} waits for lock {}, which is free", call.lock);
                self.record_breach(SimulationPromise::NobodyForgotten, detail);
            }
        }
        for lock in 0..self.locks.len() {
            let Some(row) = self.stored_holder(lock, now) else {
                continue;
            };
            if let Some(call) = self.calls.get(&row.call)
                && let CallState::Ended(over) = call.state
                && now > over.max(calm) + PROMPT_TIME
            {
                let detail = format!("lock {lock} is still held for call {}", row.call);
                self.record_breach(SimulationPromise::GivenBack, detail);
            }
        }
    }

    /// Checks that a waiting call has not waited for too long.
    fn check_call_bound(&mut self, now: Duration, number: u64) {
        let Some(call) = self.calls.get(&number) else {
            return;
        };
        let took = self.processes[call.process]
            .ran(now)
            .saturating_sub(call.ran);
        let asks = call.state == CallState::Asking;
        if let Some(wait) = call.wait.filter(|_| asks)
            && took > wait + EXTRA_WAIT + NOTICE_BOUND
        {
            let detail = format!("call {number} took {took:?} although it waits for {wait:?}");
            self.record_breach(SimulationPromise::CallsEnd, detail);
        }
    }

    /// Describes the calls that still ask or hold, in processes that are alive, and the last error.
    pub(super) fn busy_calls(&self) -> Vec<String> {
        let calls = self.calls.iter().filter(|(_, call)| {
            !matches!(call.state, CallState::Ended(_)) && self.processes[call.process].alive
        });
        calls
            .map(|(number, call)| {
                let does = if call.state == CallState::Held {
                    "holds"
                } else {
                    "asks for"
                };
                format!(
                    "call {number} of p{} {does} lock {}",
                    call.process, call.lock
                )
            })
            .chain([format!("the last error was {:?}", self.last_error)])
            .collect()
    }
}
