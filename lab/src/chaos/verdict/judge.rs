//! Judges a whole run: counts the results, and collects the violations of all checks.
//!
//! The results of a run, as numbers and violations.
//!
//! The promises, and a violation of one.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{excuses::Excuses, holds, order, processes, recipes, records, tokens, waiters};
use crate::chaos::history::{Event, FencedAnswer, HistoryEntry, InjectedFault, Micros};

/// Judges a whole run.
pub(crate) fn judge(history: &[HistoryEntry], limits: Limits) -> Verdict {
    let excuses = Excuses::of_history(history, limits);
    let stalls = processes::Stalls::of_history(history);
    let mut verdict = Verdict::default();
    for entry in history {
        match &entry.event {
            Event::Called { .. } => verdict.operations += 1,
            Event::Record(step) => verdict.operations += u64::from(step.to.is_some()),
            Event::Granted { .. } => verdict.grants += 1,
            Event::Wrote {
                fenced,
                unfenced_lost,
                ..
            } => {
                verdict.fenced_writes += u64::from(*fenced != FencedAnswer::Refused);
                verdict.fenced_refusals += u64::from(*fenced == FencedAnswer::Refused);
                verdict.unfenced_lost += u64::from(*unfenced_lost);
            }
            Event::LossNotified { .. } => verdict.losses += 1,
            _ => {}
        }
    }
    for fault in excuses.faults() {
        *verdict.faults.entry(fault.kind.clone()).or_default() += 1;
    }
    let holds = holds::collect_holds(history);
    let (overlaps, longest) = holds::overlapping(&holds, &excuses, limits);
    verdict.longest_overlap_us = longest;
    verdict.recovery = recovery_times(history, excuses.faults());
    verdict.notice = Spread::of_times(holds::notice_delays(&holds, &stalls));
    let (unlinear, undecided) = records::check(history, &excuses);
    verdict.undecided_records = undecided;
    verdict.violations = overlaps
        .into_iter()
        .chain(holds::foreign_permits(history))
        .chain(tokens::check(history))
        .chain(tokens::interrupted_downgrades(history, &excuses))
        .chain(lost_updates(history))
        .chain(holds::late_notices(history, &holds, &stalls, limits))
        .chain(holds::reused_tickets(history, &excuses))
        .chain(waiters::overdue_calls(history, &stalls))
        .chain(unlinear)
        .chain(waiters::wrong_serving_order(history))
        .chain(order::passed_waiters(history, &excuses, &stalls))
        .chain(waiters::broken_minimum_holds(history, &excuses))
        .chain(recipes::check(history, &excuses, &stalls, limits))
        .chain(processes::check(history))
        .collect();
    verdict.violations.sort_by_key(|it| it.at);
    verdict
}

/// Returns the times from the end of each fault to the next grant.
fn recovery_times(history: &[HistoryEntry], faults: &[&InjectedFault]) -> Spread {
    let mut grants: Vec<Micros> = history
        .iter()
        .filter_map(|entry| match entry.event {
            Event::Granted { at, .. } => Some(at),
            _ => None,
        })
        .collect();
    grants.sort_unstable();
    let next = |after: Micros| {
        let at = grants.partition_point(|grant| *grant < after);
        grants.get(at).map(|grant| grant - after)
    };
    Spread::of_times(faults.iter().filter_map(|fault| next(fault.to)).collect())
}

/// Finds the accepted writes that overwrote an update of another process.
fn lost_updates(history: &[HistoryEntry]) -> impl Iterator<Item = Violation> {
    history.iter().filter_map(|entry| match &entry.event {
        Event::Wrote {
            name,
            fenced: FencedAnswer::AcceptedAndLost,
            ..
        } => Some(Violation {
            promise: Promise::FencedUpdates,
            at: 0,
            detail: format!("{name:?}: process {} overwrote an update", entry.worker),
            excused_by: None,
        }),
        _ => None,
    })
}

/// The result of a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Verdict {
    /// Calls of the library, and reads and writes of records.
    pub(crate) operations: u64,
    pub(crate) grants: u64,
    pub(crate) fenced_writes: u64,
    /// Writes that the fenced registers refused because they had seen a later token.
    pub(crate) fenced_refusals: u64,
    /// Updates that the unfenced registers lost.
    pub(crate) unfenced_lost: u64,
    /// Losses that were reported to a holder.
    pub(crate) losses: u64,
    /// Records with too many concurrent operations to decide.
    pub(crate) undecided_records: u64,
    /// Longest time for which a guard was valid beside newer ones of its name, from the first of
    /// them to the last, excused or not.
    pub(crate) longest_overlap_us: Micros,
    /// Times from the end of each fault to the next grant.
    pub(crate) recovery: Spread,
    /// Times from the deadline of each lost lease to its notice, in running time.
    pub(crate) notice: Spread,
    /// Number of faults by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) violations: Vec<Violation>,
}

/// The distribution of times.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    pub(crate) median_us: Micros,
    pub(crate) p99_us: Micros,
    pub(crate) longest_us: Micros,
}

impl Spread {
    /// Computes the distribution.
    pub(super) fn of_times(mut times: Vec<Micros>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let last = times.len().saturating_sub(1);
            times.get(last * percent / 100).copied().unwrap_or_default()
        };
        Self {
            count: times.len(),
            median_us: at(50),
            p99_us: at(99),
            longest_us: at(100),
        }
    }
}

impl Verdict {
    /// Returns the violations that no fault excuses.
    pub(crate) fn broken(&self) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(|it| it.excused_by.is_none())
    }

    /// Returns each broken promise once.
    pub(crate) fn broken_promises(&self) -> Vec<Promise> {
        let mut all: Vec<_> = self.broken().map(|it| it.promise).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// A promise. The documentation of each variant describes its violation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    /// Two guards of one name that exclude each other were valid at one instant.
    Exclusion,
    /// A later holder did not have a higher token.
    TokensRise,
    /// A fenced register lost an update that it had confirmed.
    FencedUpdates,
    /// The holder of a lost lock got no notice, or a late one.
    LossIsTold,
    /// After the last fault, a task did not acquire a lock, or a lock was left in the store.
    Recovery,
    /// A call took longer than its documented bound.
    CallsEnd,
    /// Reads and writes of a record have no order in which each answer is right.
    Linearizable,
    /// One ticket was resumed twice.
    TicketsOnce,
    /// Memory or descriptors kept growing.
    FlatResources,
    /// A process ended although nobody killed it.
    NoCrash,
    /// A later waiter of the same process was served first.
    ServedInOrder,
    /// Somebody else got a lock before its minimum hold time was over.
    KeptAtLeast,
    /// The work of two leaders of one election ran at one instant.
    OneLeader,
    /// A periodic job was started twice in a period.
    OncePerPeriod,
    /// An effect happened twice, or a caller received a different result.
    OncePerKey,
    /// A counter lost counts.
    CountersAddUp,
    /// A gate accepted an earlier holder after a later one.
    GateHolds,
    /// Somebody who came later was served before a caller that waited in the order of arrival.
    InOrder,
    /// Another writer held a lock while a writer became a reader.
    NoWriterBetween,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "exclusion",
            Self::TokensRise => "tokens rise",
            Self::FencedUpdates => "no lost update on a fenced register",
            Self::LossIsTold => "a loss is told in time",
            Self::Recovery => "everybody gets in again",
            Self::CallsEnd => "calls end within their bound",
            Self::Linearizable => "records are linearizable",
            Self::TicketsOnce => "a ticket is good once",
            Self::FlatResources => "memory and descriptors are flat",
            Self::NoCrash => "no process crashes",
            Self::ServedInOrder => "waiters of a process are served in order",
            Self::KeptAtLeast => "a lock is kept for its minimum time",
            Self::OneLeader => "one leader at a time",
            Self::OncePerPeriod => "a job starts once per period",
            Self::OncePerKey => "an effect happens once per key",
            Self::CountersAddUp => "counters add up",
            Self::GateHolds => "a gate lets no earlier holder through",
            Self::InOrder => "processes are served in the order of arrival",
            Self::NoWriterBetween => "no writer gets between a writer and its reader",
        })
    }
}

/// One violation of a promise.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) at: Micros,
    pub(crate) detail: String,
    /// The fault after which the documentation allows the violation.
    pub(crate) excused_by: Option<String>,
}

/// The limits of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest TTL of the run.
    pub(crate) ttl_us: Micros,
    /// Longest allowed time from a deadline to the notice of its loss, in running time.
    pub(crate) notice_us: Micros,
    /// Time after a failover in which the old primary may still grant locks. By this time, two
    /// guards may be valid together for longer than a TTL.
    pub(crate) failover_us: Micros,
    /// Time after a failover in which a client may still use the old primary for records.
    pub(crate) record_failover_us: Micros,
}
