//! The judge's observations of processes, locks, calls and guards.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use distlock::{LockWatch, Renew};

use super::{promise::SimulationPromise, time::MachineClock};

/// One process.
pub(super) struct SimulatedProcess {
    pub(super) clock: MachineClock,
    pub(super) alive: bool,
    pub(super) paused_since: Option<Duration>,
    /// Time of the last resume.
    pub(super) resumed: Duration,
    /// Total time of all pauses until the last resume.
    pub(super) paused_time: Duration,
    /// When the last answered read of a ring's view was sent, and the members in the answer.
    view: Option<(Duration, Vec<usize>)>,
}

/// One lock, as the judge saw it at the store.
#[derive(Default)]
pub(super) struct ObservedLock {
    /// The holder after the last request that arrived at the store.
    pub(super) row: Option<StoredHolder>,
    /// Time of the last release or expiry.
    pub(super) freed: Duration,
    /// The token of the last grant at the store.
    pub(super) last_token: u64,
    /// The highest token that a caller got.
    pub(super) last_held: u64,
    /// By token: the number of the grant for this lock, and the call that received the grant.
    pub(super) grants: BTreeMap<u64, (u64, u64)>,
    /// Tokens of grants that were force-released.
    pub(super) forced: BTreeSet<u64>,
    /// The members of a quorum or a ring. A run with one store does not use them.
    pub(super) members: Vec<ObservedMember>,
    /// The member of a ring that has granted the lock to the last caller.
    pub(super) last_member: Option<usize>,
    /// The calls from which a member was taken by force. The quorum may give the lock to another
    /// call while such a call still trusts its lease.
    pub(super) forced_calls: BTreeSet<u64>,
}

/// One lock, as the judge saw it at one member of a quorum.
#[derive(Clone, Default)]
pub(super) struct ObservedMember {
    pub(super) row: Option<StoredHolder>,
    /// The holders that the member has forgotten. Their leases are kept, because the member does
    /// not vote until they have ended.
    pub(super) forgotten: Vec<StoredHolder>,
    /// The end of the time for which the member may not vote, because it has forgotten.
    pub(super) silent_until: Duration,
    /// The calls to which the member has granted the lock, with the tokens.
    pub(super) granted: BTreeSet<(u64, u64)>,
    /// By call: the highest token that the member has confirmed to the holder while it might vote.
    pub(super) confirmed: BTreeMap<u64, u64>,
}

/// The holder of a lock at the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredHolder {
    pub(super) token: u64,
    pub(super) call: u64,
    pub(super) expires: Duration,
}

/// One call that asks for a lock. `ran` is the running time of its process at the begin, and
/// `queues` tells whether the call waits in a queue.
pub(super) struct ObservedCall {
    pub(super) process: usize,
    pub(super) lock: usize,
    pub(super) began: Duration,
    pub(super) ran: Duration,
    pub(super) wait: Option<Duration>,
    pub(super) queues: bool,
    pub(super) state: CallState,
}

/// The state of a call. `Ended` has the time at which the call failed or its guard was released.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallState {
    Asking,
    Held,
    Ended(Duration),
}

/// A guard that a task has. `leaving` means that its release has begun, and `forced` that its lock
/// was force-released.
pub(super) struct HeldGuard {
    pub(super) process: usize,
    pub(super) lock: usize,
    pub(super) token: u64,
    pub(super) watch: LockWatch,
    pub(super) since: Duration,
    pub(super) renew: Renew,
    pub(super) leaving: bool,
    pub(super) forced: bool,
    pub(super) notified: bool,
    /// Time from which the guard is no longer valid.
    pub(super) invalid: Option<Duration>,
}

impl SimulatedProcess {
    /// Creates a process that is alive and was never paused.
    pub(super) const fn new(clock: MachineClock) -> Self {
        Self {
            clock,
            alive: true,
            paused_since: None,
            resumed: Duration::ZERO,
            paused_time: Duration::ZERO,
            view: None,
        }
    }

    /// Records an answered read of the view, by the time at which it was sent.
    pub(super) fn record_view(&mut self, sent: Duration, members: Vec<usize>) {
        if self.view.as_ref().is_none_or(|(before, _)| *before <= sent) {
            self.view = Some((sent, members));
        }
    }

    /// Returns the members of the ring in the view that was read last.
    pub(super) fn members(&self) -> &[usize] {
        self.view.as_ref().map_or(&[], |(_, members)| members)
    }

    /// Returns the end of the longest lease that the process may trust by the view that it has read
    /// last. `bound` is the validity of a view and the longest lease, by the clock of the process.
    pub(super) fn trusts_until(&self, bound: Duration) -> Duration {
        let sent = self.view.as_ref().map_or(Duration::ZERO, |view| view.0);
        // The clock shows whole nanoseconds.
        sent + self.clock.true_span(bound) + Duration::from_nanos(10)
    }

    /// Tells whether the process is alive and not paused.
    pub(super) const fn runs(&self) -> bool {
        self.alive && self.paused_since.is_none()
    }

    /// Records that the process is paused.
    pub(super) const fn pause(&mut self, now: Duration) {
        self.paused_since = Some(now);
    }

    /// Records that the process runs again, if it was paused.
    pub(super) fn resume(&mut self, now: Duration) {
        if let Some(since) = self.paused_since.take() {
            self.paused_time += now.saturating_sub(since);
            self.resumed = now;
        }
    }

    /// Returns the time for which the process has run.
    pub(super) fn ran(&self, now: Duration) -> Duration {
        let pause = self.paused_since.map(|since| now.saturating_sub(since));
        now.saturating_sub(self.paused_time + pause.unwrap_or_default())
    }

    /// Tells whether the process has run for `time` without a pause since `since`.
    pub(super) fn ran_without_break(&self, time: Duration, since: Duration, now: Duration) -> bool {
        self.runs() && now > since.max(self.resumed) + time
    }
}

impl ObservedLock {
    /// Replaces the holder, and returns the former one.
    pub(super) fn set_row(
        &mut self,
        now: Duration,
        row: Option<StoredHolder>,
    ) -> Option<StoredHolder> {
        if row.is_none() && self.row.is_some() {
            self.freed = self.free_since(now).unwrap_or(now);
        }
        std::mem::replace(&mut self.row, row)
    }

    /// Checks a grant of a quorum: a majority of members that might vote has confirmed the token to
    /// the call, and a member has granted it to the call, unless `raised` tokens are handed out.
    pub(super) fn wrong_grant(
        &self,
        majority: usize,
        call: u64,
        token: u64,
        raised: bool,
    ) -> Option<(SimulationPromise, String)> {
        let confirmed = self.members.iter().filter(|member| {
            let confirmed = member.confirmed.get(&call);
            confirmed.is_some_and(|confirmed| *confirmed >= token)
        });
        let confirmed = confirmed.count();
        if confirmed < majority {
            let detail = format!(
                "call {call} got token {token}, which {confirmed} members have confirmed to it"
            );
            return Some((SimulationPromise::Majority, detail));
        }
        let granted = |member: &ObservedMember| member.granted.contains(&(call, token));
        if !raised && !self.members.iter().any(granted) {
            let detail = format!("call {call} got token {token}, which no member granted to it");
            return Some((SimulationPromise::OwnAnswer, detail));
        }
        None
    }

    /// Returns the holder at a majority of the members, with the time until which a majority keeps
    /// its lease.
    pub(super) fn majority_holder(&self, now: Duration, majority: usize) -> Option<StoredHolder> {
        let rows = self.members.iter().filter_map(|it| it.row);
        let rows: Vec<StoredHolder> = rows.filter(|row| row.expires > now).collect();
        rows.iter().find_map(|row| {
            let mut of_call: Vec<StoredHolder> = rows
                .iter()
                .filter(|it| it.call == row.call)
                .copied()
                .collect();
            of_call.sort_by_key(|it| std::cmp::Reverse(it.expires));
            of_call.get(majority - 1).copied()
        })
    }

    /// Returns the time since which nobody holds the lock. `None` means that the lock is held.
    pub(super) fn free_since(&self, now: Duration) -> Option<Duration> {
        match self.row {
            None => Some(self.freed),
            Some(row) if row.expires <= now => Some(row.expires),
            Some(_) => None,
        }
    }
}

impl ObservedMember {
    /// Tells whether the member keeps a lease of a call with at least this token until `until`.
    pub(super) fn keeps(&self, call: u64, token: u64, until: Duration) -> bool {
        let mut rows = self.row.iter().chain(&self.forgotten);
        rows.any(|row| row.call == call && row.token >= token && row.expires >= until)
    }
}

impl HeldGuard {
    /// Tells whether the deadline of the guard has not passed.
    pub(super) fn is_valid(&self) -> bool {
        !self.watch.remaining().is_zero()
    }

    /// Tells whether no fault can explain a loss of this guard.
    pub(super) fn must_not_be_lost(&self, calm: Option<Duration>) -> bool {
        let in_peace = calm.is_some_and(|calm| self.since > calm);
        in_peace && self.renew == Renew::Auto && !self.forced
    }

    /// Tells whether a loss of this guard still needs a notice.
    pub(super) const fn needs_notice(&self) -> bool {
        !self.notified && !self.leaving && !self.forced
    }
}
