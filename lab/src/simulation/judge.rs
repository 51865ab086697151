//! The checks, made after every step. Nothing here asks a guard whether it is valid: such a
//! question would find a loss by itself and tell those who wait for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use distlock::{Error, LockWatch, LossReason, Released, Renew};

use super::{
    observed::{CallState, HeldGuard, ObservedCall, ObservedLock, SimulatedProcess, StoredHolder},
    promise::{Breach, SimulationPromise},
};

/// A loss is told at most so long after the deadline, in running time.
const NOTICE: Duration = Duration::from_millis(250);
/// A process that has just been resumed has this long to tell what it missed.
const RESUMED: Duration = Duration::from_millis(50);
/// A store that hangs costs a caller at most so much beyond its wait.
const BEYOND: Duration = Duration::from_secs(5);
/// A release takes four steps at the store at most, of 5 s each.
const RELEASE: Duration = Duration::from_secs(20);
/// In peace, a free lock is found, and one that nobody wants is given back, within this time.
const SOON: Duration = Duration::from_millis(1500);

/// Everything that was seen so far.
#[derive(Default)]
pub(super) struct Judge {
    broken: Option<Breach>,
    pub(super) processes: Vec<SimulatedProcess>,
    locks: Vec<ObservedLock>,
    calls: BTreeMap<u64, ObservedCall>,
    /// Those that have no answer yet.
    asking: BTreeSet<u64>,
    guards: BTreeMap<u64, HeldGuard>,
    /// Since when nothing goes wrong any more.
    calm_since: Option<Duration>,
    /// Whether the store keeps the order in which tasks of a process are served.
    store_orders: bool,
}

impl Judge {
    pub(super) fn new(locks: usize, store_orders: bool) -> Self {
        let mut judge = Self {
            store_orders,
            ..Self::default()
        };
        judge.locks.resize_with(locks, ObservedLock::default);
        judge
    }

    pub(super) fn record_breach(&mut self, promise: SimulationPromise, detail: String) {
        self.broken.get_or_insert(Breach { promise, detail });
    }

    pub(super) const fn broken(&self) -> Option<&Breach> {
        self.broken.as_ref()
    }

    pub(super) const fn calm(&mut self, now: Duration) {
        self.calm_since = Some(now);
    }

    /// A call begins to ask for a lock.
    pub(super) fn note_asked(
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

    /// A call has got the lock. Which of the lock's grants it was.
    pub(super) fn note_granted(
        &mut self,
        now: Duration,
        call: u64,
        watch: LockWatch,
        renew: Renew,
    ) -> Option<u64> {
        self.ends_in_time(now, call);
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
        let forced = at.forced.contains(&token);
        let before = at.last_held;
        at.last_held = before.max(token);
        match grant {
            Some((_, to)) if to == call => {}
            granted => {
                let detail = format!("call {call} was told of a grant to {granted:?}");
                self.record_breach(SimulationPromise::OwnAnswer, detail);
            }
        }
        // A caller whose grant was taken away by hand before it knew of it may come late.
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
            told: false,
            invalid: None,
        };
        self.guards.insert(call, held);
        grant.map(|(number, _)| number)
    }

    /// A call ended without the lock, or its caller went away.
    pub(super) fn note_over(&mut self, now: Duration, call: u64) {
        self.ends_in_time(now, call);
        self.asking.remove(&call);
        self.guards.remove(&call);
        if let Some(call) = self.calls.get_mut(&call) {
            call.state = CallState::Over(now);
        }
    }

    /// A guard is about to be released: its loss need not be told any more.
    pub(super) fn note_release_begun(&mut self, call: u64) {
        if let Some(held) = self.guards.get_mut(&call) {
            held.leaving = true;
        }
    }

    /// For how long a process has run.
    pub(super) fn ran(&self, process: usize, now: Duration) -> Duration {
        self.processes[process].ran(now)
    }

    /// A guard was released, which began when its process had run for so long.
    pub(super) fn note_released(
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
        if took > RELEASE {
            let detail = format!("the release of call {call} took {took:?}");
            self.record_breach(SimulationPromise::CallsEnd, detail);
        } else if held.is_kept(self.calm_since) && !released.is_clean() {
            let detail = format!("the release of call {call} was {released:?} in peace");
            self.record_breach(SimulationPromise::KeptInPeace, detail);
        }
    }

    /// A call failed, and not because its wait was over.
    pub(super) fn note_failed(&mut self, call: u64, error: &Error) {
        let began = self.calls.get(&call).map(|call| call.began);
        if self.calm_since.is_some_and(|calm| began > Some(calm)) {
            self.record_breach(
                SimulationPromise::KeptInPeace,
                format!("call {call}: {error}"),
            );
        }
    }

    /// Those who wait for a guard's end were told of a loss.
    pub(super) fn note_loss_notified(&mut self, call: u64, reason: LossReason) {
        let Some(held) = self.guards.get_mut(&call) else {
            return;
        };
        held.told = true;
        if held.is_kept(self.calm_since) {
            let detail = format!("call {call} lost its lock ({reason}) although nothing is wrong");
            self.record_breach(SimulationPromise::KeptInPeace, detail);
        } else if held.is_valid() {
            let detail = format!("call {call} was told of a loss ({reason}) and is valid");
            self.record_breach(SimulationPromise::LossIsTold, detail);
        }
    }

    /// The store was asked for a lock, and has this now.
    pub(super) fn note_stored(&mut self, now: Duration, lock: usize, row: Option<StoredHolder>) {
        let at = &mut self.locks[lock];
        let before = at.row;
        if row.is_none() && before.is_some() {
            at.freed = at.free_since(now).unwrap_or(now);
        }
        at.row = row;
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
        let untold = self.guards.iter().find(|(_, held)| {
            let process = &self.processes[held.process];
            held.lock == lock
                && held.is_open()
                && process.ran_without_break(RESUMED, Duration::ZERO, now)
        });
        if let Some((call, _)) = untold {
            let detail = format!(
                "lock {lock} was granted to call {} before call {call} was told that it lost it",
                row.call
            );
            self.record_breach(SimulationPromise::LossIsTold, detail);
        }
    }

    /// Somebody took the lock away from its holder by hand.
    pub(super) fn note_forced(&mut self, lock: usize, token: u64) {
        self.locks[lock].forced.insert(token);
        let all = self.guards.values_mut();
        for held in all.filter(|it| it.lock == lock && it.token == token) {
            held.forced = true;
        }
    }

    /// The present holder, as the store has it.
    pub(super) fn row(&self, lock: usize, now: Duration) -> Option<StoredHolder> {
        self.locks[lock].row.filter(|row| row.expires > now)
    }

    /// After every step.
    pub(super) fn check(&mut self, now: Duration) {
        let mut holders: Vec<(usize, u64)> = Vec::new();
        let mut wrong = None;
        for (call, held) in &mut self.guards {
            let process = &self.processes[held.process];
            let left = held.watch.remaining();
            if left.is_zero() {
                let since = *held.invalid.get_or_insert(now);
                if held.is_open() && process.ran_without_break(NOTICE, since, now) {
                    let detail = format!("call {call} was not told that its deadline has passed");
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
            let expires = match self.locks[held.lock].row {
                Some(row) if row.token == held.token => row.expires,
                _ => Duration::ZERO,
            };
            if believes > expires && wrong.is_none() {
                let detail = format!(
                    "call {call} believes in lock {} until {believes:?}, \
                     the store until {expires:?}",
                    held.lock
                );
                wrong = Some((SimulationPromise::Belief, detail));
            }
        }
        if let Some((promise, detail)) = wrong {
            self.record_breach(promise, detail);
        }
    }

    /// Whenever time has passed.
    pub(super) fn check_waits(&mut self, now: Duration) {
        let waits = |call: &&u64| self.processes[self.calls[*call].process].runs();
        let waiting: Vec<u64> = self.asking.iter().filter(waits).copied().collect();
        for call in &waiting {
            self.ends_in_time(now, *call);
        }
        let Some(calm) = self.calm_since else { return };
        for number in waiting {
            let call = &self.calls[&number];
            let free = self.locks[call.lock].free_since(now);
            if free.is_some_and(|free| now > free.max(call.began).max(calm) + SOON) {
                let detail = format!("call {number} waits for lock {}, which is free", call.lock);
                self.record_breach(SimulationPromise::NobodyForgotten, detail);
            }
        }
        for lock in 0..self.locks.len() {
            let Some(row) = self.row(lock, now) else {
                continue;
            };
            if let Some(call) = self.calls.get(&row.call)
                && let CallState::Over(over) = call.state
                && now > over.max(calm) + SOON
            {
                let detail = format!("lock {lock} is still held for call {}", row.call);
                self.record_breach(SimulationPromise::GivenBack, detail);
            }
        }
    }

    /// Whether a call that asks has asked for longer than it may.
    fn ends_in_time(&mut self, now: Duration, number: u64) {
        let Some(call) = self.calls.get(&number) else {
            return;
        };
        let took = self.processes[call.process]
            .ran(now)
            .saturating_sub(call.ran);
        let asks = call.state == CallState::Asking;
        if let Some(wait) = call.wait.filter(|_| asks)
            && took > wait + BEYOND + NOTICE
        {
            let detail = format!("call {number} took {took:?} although it waits for {wait:?}");
            self.record_breach(SimulationPromise::CallsEnd, detail);
        }
    }

    /// The calls that still ask or hold, in processes that are alive.
    pub(super) fn busy(&self) -> Vec<String> {
        let calls = self.calls.iter().filter(|(_, call)| {
            !matches!(call.state, CallState::Over(_)) && self.processes[call.process].alive
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
            .collect()
    }
}
