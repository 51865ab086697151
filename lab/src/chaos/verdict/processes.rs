//! Checks the processes: their stalls, their use of memory, and their ends.

use std::collections::BTreeMap;

use super::judge::{Promise, Violation};
use crate::chaos::history::{Event, HistoryEntry, Micros};

/// The times in which each process did not run, because the process was stopped or the machine was
/// busy.
#[derive(Debug, Default)]
pub(super) struct Stalls(BTreeMap<u32, Vec<(Micros, Micros)>>);

impl Stalls {
    /// Collects the stalls of each process, sorted by the time at which a stall begins.
    pub(super) fn of_history(history: &[HistoryEntry]) -> Self {
        let mut all: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for HistoryEntry { worker, event } in history {
            if let Event::Stalled { from, to } = event {
                all.entry(*worker).or_default().push((*from, *to));
            }
        }
        for stalls in all.values_mut() {
            stalls.sort_unstable();
        }
        Self(all)
    }

    /// Tells whether a process ran without a stall between two moments.
    pub(super) fn ran_without_stall(&self, worker: u32, from: Micros, to: Micros) -> bool {
        let mut its = self.0.get(&worker).into_iter().flatten();
        !its.any(|(begin, end)| *begin <= to && *end >= from)
    }

    /// Returns the time for which a process ran between two moments.
    pub(super) fn running_time(&self, worker: u32, from: Micros, to: Micros) -> Micros {
        let mut left = to.saturating_sub(from);
        let mut counted = from;
        for (begin, end) in self.0.get(&worker).into_iter().flatten() {
            // Stalls may overlap, and no time must count twice.
            let begin = (*begin).max(counted);
            let end = (*end).min(to);
            if begin < end {
                left = left.saturating_sub(end - begin);
                counted = end;
            }
        }
        left
    }
}

/// Returns the time of the last event of each process.
pub(super) fn last_events(history: &[HistoryEntry]) -> BTreeMap<u32, Micros> {
    let mut all: BTreeMap<u32, Micros> = BTreeMap::new();
    for HistoryEntry { worker, event } in history {
        let at = match event {
            Event::Usage { at, .. }
            | Event::Called { at, .. }
            | Event::Answered { at, .. }
            | Event::Finished { at } => *at,
            _ => continue,
        };
        let last = all.entry(*worker).or_default();
        *last = at.max(*last);
    }
    all
}

/// Allowed growth of a process from the first third of its time to the last third.
const MAX_GROWTH_KIB: u64 = 48 * 1024;
const MAX_GROWTH_DESCRIPTORS: u64 = 64;
/// A process with fewer measurements than this is not judged.
const MIN_MEASUREMENTS: usize = 9;

/// Finds growth, crashes, and problems after the last fault.
pub(super) fn check(history: &[HistoryEntry]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut usage: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for HistoryEntry { worker, event } in history {
        let (promise, at, detail) = match event {
            Event::Usage {
                resident_kib,
                descriptors,
                ..
            } => {
                usage
                    .entry(*worker)
                    .or_default()
                    .push((*resident_kib, *descriptors));
                continue;
            }
            Event::Crashed { how } => (
                Promise::NoCrash,
                0,
                format!("process {worker} crashed: {how}"),
            ),
            Event::RollCall {
                at,
                task,
                problem: Some(problem),
            } => (
                Promise::Recovery,
                *at,
                format!("task {task} of process {worker} did not acquire the lock: {problem}"),
            ),
            Event::Left { name, holder } => (
                Promise::Recovery,
                0,
                format!("{name:?} is still held by {holder:?} after all workers have ended"),
            ),
            _ => continue,
        };
        found.push(Violation {
            promise,
            at,
            detail,
            excused_by: None,
        });
    }
    found.extend(growth(&usage));
    found
}

/// Finds processes whose memory or descriptors grew. `usage` has the measurements of each process,
/// in KiB and in descriptors.
fn growth(usage: &BTreeMap<u32, Vec<(u64, u64)>>) -> Vec<Violation> {
    let mut found = Vec::new();
    let enough = usage
        .iter()
        .filter(|(_, all)| all.len() >= MIN_MEASUREMENTS);
    for (worker, all) in enough {
        let third = all.len() / 3;
        let median = |part: &[(u64, u64)], of: fn(&(u64, u64)) -> u64| {
            let mut values: Vec<_> = part.iter().map(of).collect();
            values.sort_unstable();
            values[values.len() / 2]
        };
        let (first, last) = (&all[..third], &all[all.len() - third..]);
        for (what, of, most) in [
            (
                "KiB of memory",
                (|it| it.0) as fn(&(u64, u64)) -> u64,
                MAX_GROWTH_KIB,
            ),
            ("descriptors", |it| it.1, MAX_GROWTH_DESCRIPTORS),
        ] {
            let (before, after) = (median(first, of), median(last, of));
            if after > before + most {
                found.push(Violation {
                    promise: Promise::FlatResources,
                    at: 0,
                    detail: format!("process {worker} went from {before} to {after} {what}"),
                    excused_by: None,
                });
            }
        }
    }
    found
}
