//! The checker: reads a history and says which promises were broken.
//!
//! It is pure: no clock, no input or output. It knows the promises, and nothing of how any store
//! keeps them. A violation that the documentation allows after a fault is matched to that very
//! fault and counted apart.

mod calls;
mod holds;
mod lines;
mod machine;
mod recipes;
mod records;
#[cfg(test)]
mod tests;
mod tokens;

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::history::{Entry, Event, Fault, Fenced, Micros};

/// A promise that can be broken.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    /// Two guards of one name were valid at one instant.
    Exclusion,
    /// A later holder did not have a higher token.
    TokensRise,
    /// A fenced register lost an update that it had confirmed.
    FencedUpdates,
    /// A lost lock was not told, or too late.
    LossIsTold,
    /// After the last fault, somebody did not get in, or a lock was left behind.
    Recovery,
    /// A call took longer than its documented bound.
    CallsEnd,
    /// Reads and writes of a record have no order in which each is right.
    Linearizable,
    /// One ticket was resumed twice.
    TicketsOnce,
    /// Memory or descriptors kept growing.
    FlatResources,
    /// A process ended by itself.
    NoCrash,
    /// A waiter was overtaken by a later one of its process.
    ServedInOrder,
    /// A lock that was to be kept for a minimum time went to somebody else before.
    KeptAtLeast,
    /// The work of two leaders of one election was under way at one instant.
    OneLeader,
    /// A periodic job was started twice in a period.
    OncePerPeriod,
    /// An effect happened twice, or somebody was told another result.
    OncePerKey,
    /// Counts were lost.
    CountersAddUp,
    /// A gate let an earlier holder through after a later one.
    GateHolds,
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
        })
    }
}

/// One promise that was broken once.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) at: Micros,
    pub(crate) detail: String,
    /// The fault after which the documentation allows it.
    pub(crate) excused_by: Option<String>,
}

/// The limits that a run is judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest TTL of the run.
    pub(crate) ttl_us: Micros,
    /// How much later than its deadline a loss may be told, in running time.
    pub(crate) notice_us: Micros,
    /// How much longer than a TTL two guards may be valid together after a failover.
    pub(crate) failover_us: Micros,
}

/// The result of a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Verdict {
    /// Calls of the library, and reads and writes of records.
    pub(crate) operations: u64,
    pub(crate) grants: u64,
    pub(crate) fenced_writes: u64,
    /// Writes that the fenced registers refused because a later token had been there.
    pub(crate) fenced_refusals: u64,
    /// Updates that the unfenced registers lost.
    pub(crate) unfenced_lost: u64,
    /// Losses that were told.
    pub(crate) losses: u64,
    /// Histories of records that were too large to decide.
    pub(crate) undecided_records: u64,
    /// Longest time that two guards of one name were valid, excused or not.
    pub(crate) longest_overlap_us: Micros,
    /// From the end of each fault to the next grant.
    pub(crate) recovery: Spread,
    /// From the deadline of each lost lease to its notice, in running time.
    pub(crate) notice: Spread,
    /// Faults by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) violations: Vec<Violation>,
}

/// How times are spread.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    pub(crate) median_us: Micros,
    pub(crate) p99_us: Micros,
    pub(crate) longest_us: Micros,
}

impl Spread {
    fn of(mut times: Vec<Micros>) -> Self {
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
    /// Violations that nothing excuses.
    pub(crate) fn broken(&self) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(|it| it.excused_by.is_none())
    }

    /// The promises that were broken, each once.
    pub(crate) fn promises(&self) -> Vec<Promise> {
        let mut all: Vec<_> = self.broken().map(|it| it.promise).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Judges a whole run.
pub(crate) fn judge(history: &[Entry], limits: Limits) -> Verdict {
    let faults: Vec<&Fault> = faults(history).collect();
    let stalls = machine::Stalls::of(history);
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
                verdict.fenced_writes += u64::from(*fenced != Fenced::Refused);
                verdict.fenced_refusals += u64::from(*fenced == Fenced::Refused);
                verdict.unfenced_lost += u64::from(*unfenced_lost);
            }
            Event::Told { .. } => verdict.losses += 1,
            _ => {}
        }
    }
    for fault in &faults {
        *verdict.faults.entry(fault.kind.clone()).or_default() += 1;
    }
    let holds = holds::assemble(history);
    let (overlaps, longest) = holds::overlaps(&holds, &faults, limits);
    verdict.longest_overlap_us = longest;
    verdict.recovery = recovery(history, &faults);
    verdict.notice = Spread::of(holds::lateness(&holds, &stalls));
    let (unlinear, undecided) = records::check(history, &faults);
    verdict.undecided_records = undecided;
    verdict.violations = overlaps
        .into_iter()
        .chain(tokens::check(history))
        .chain(lost_updates(history))
        .chain(holds::notices(history, &holds, &stalls, limits))
        .chain(holds::tickets(history))
        .chain(calls::check(history, &stalls))
        .chain(unlinear)
        .chain(lines::order(history))
        .chain(lines::minimum(history, &faults))
        .chain(recipes::check(history, &faults, &stalls, limits))
        .chain(machine::check(history))
        .collect();
    verdict.violations.sort_by_key(|it| it.at);
    verdict
}

fn recovery(history: &[Entry], faults: &[&Fault]) -> Spread {
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
    Spread::of(faults.iter().filter_map(|fault| next(fault.to)).collect())
}

fn faults(history: &[Entry]) -> impl Iterator<Item = &Fault> {
    history.iter().filter_map(|entry| match &entry.event {
        Event::Fault(fault) => Some(fault),
        _ => None,
    })
}

fn lost_updates(history: &[Entry]) -> impl Iterator<Item = Violation> {
    history.iter().filter_map(|entry| match &entry.event {
        Event::Wrote {
            name,
            fenced: Fenced::AcceptedAndLost,
            ..
        } => Some(Violation {
            promise: Promise::FencedUpdates,
            at: 0,
            detail: format!("{name:?}: process {} wrote over an update", entry.worker),
            excused_by: None,
        }),
        _ => None,
    })
}
