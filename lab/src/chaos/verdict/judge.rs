//! Judges a whole run: counts the results, and collects the violations of all checks.

use super::{
    calls,
    excuses::Excuses,
    figures::{Spread, Verdict},
    holds, processes,
    promise::{Limits, Promise, Violation},
    recipes, records, tokens, waiters,
};
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
        .chain(tokens::check(history))
        .chain(lost_updates(history))
        .chain(holds::late_notices(history, &holds, &stalls, limits))
        .chain(holds::reused_tickets(history, &excuses))
        .chain(calls::check(history, &stalls))
        .chain(unlinear)
        .chain(waiters::wrong_serving_order(history))
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
