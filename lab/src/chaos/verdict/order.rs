//! Checks the order in which processes are served that wait in the order of arrival.
//!
//! The verdict sees when a caller asked, and not when it joined the queue. So a caller counts as
//! passed only by somebody who asked much later. The tasks of one process have one place in the
//! queue: a task waits for its turn from the end of the turn of the task before it.

use std::collections::BTreeMap;

use super::{
    excuses::Excuses,
    judge::{Promise, Violation},
    processes::Stalls,
};
use crate::chaos::history::{Event, Excuse, HistoryEntry, HoldNumber, InjectedFault, Micros};

/// Time within which a process that runs has joined the queue, and within which the queue moves on.
const ARRIVAL: Micros = 500_000;
/// Time after a fault in which queue entries and leases of before the fault may count, and in which
/// a caller whose entry was lost may have joined again.
const SETTLING: Micros = 8_000_000;

/// One wait, from the request to the grant or to the end of the caller's patience.
struct Wait<'a> {
    worker: u32,
    name: &'a str,
    asked: Micros,
    at: Micros,
    is_served: bool,
    /// When the turn of the process is over.
    turn_over: Micros,
    passed_us: Micros,
}

/// Finds callers that were passed. A caller that a fault may have cost its place proves nothing.
pub(super) fn passed_waiters(
    history: &[HistoryEntry],
    excuses: &Excuses<'_>,
    stalls: &Stalls,
) -> Vec<Violation> {
    let mut found = Vec::new();
    for waits in collect_waits(history).values() {
        // Only a caller that waited for longer can be found to be passed.
        let is_long = |it: &&Wait<'_>| it.at > it.asked + ARRIVAL + it.passed_us;
        for passed in waits.iter().filter(is_long) {
            let first = first_since(passed, waits);
            let is_passed_by = |by: &&Wait<'_>| {
                let late = stalls.running_time(passed.worker, first, by.asked);
                by.is_served
                    && by.at < passed.at
                    && by.asked > first
                    && late > ARRIVAL + passed.passed_us
                    && had_its_place(passed, by, excuses, stalls)
            };
            if let Some(by) = waits.iter().find(is_passed_by) {
                found.push(Violation {
                    promise: Promise::InOrder,
                    at: by.at,
                    detail: format!(
                        "{:?}: process {} asked {} ms after process {} was the first that waited, \
                         and was served {} ms before it",
                        passed.name,
                        by.worker,
                        (by.asked - first) / 1000,
                        passed.worker,
                        (passed.at - by.at) / 1000
                    ),
                    excused_by: None,
                });
            }
        }
    }
    found
}

/// Collects the waits by name.
fn collect_waits(history: &[HistoryEntry]) -> BTreeMap<&str, Vec<Wait<'_>>> {
    let mut ends: BTreeMap<(u32, HoldNumber), Micros> = BTreeMap::new();
    for HistoryEntry { worker, event } in history {
        if let Event::Ended { hold, at, .. } = event {
            ends.insert((*worker, *hold), *at);
        }
    }
    let mut all: BTreeMap<&str, Vec<Wait<'_>>> = BTreeMap::new();
    for HistoryEntry { worker, event } in history {
        if let Event::Waited {
            name,
            asked,
            at,
            hold,
            passed_us,
        } = event
        {
            let ended = hold.and_then(|hold| ends.get(&(*worker, hold)).copied());
            all.entry(name).or_default().push(Wait {
                worker: *worker,
                name,
                asked: *asked,
                at: *at,
                is_served: hold.is_some(),
                // The line of a shared lock moves on when its first caller has entered.
                turn_over: match passed_us {
                    0 => ended.unwrap_or(*at),
                    _ => *at,
                },
                passed_us: *passed_us,
            });
        }
    }
    all
}

/// Returns the time since which a caller was certainly in the queue or, if others may pass it until
/// it is the first, since which it was the first.
fn first_since(passed: &Wait<'_>, waits: &[Wait<'_>]) -> Micros {
    let ahead = |it: &&Wait<'_>| it.asked < passed.asked && it.at < passed.at;
    let own = waits.iter().filter(|it| it.worker == passed.worker);
    let own = own.filter(ahead).map(|it| it.turn_over);
    let ready = own.max().unwrap_or(0).max(passed.asked);
    if passed.passed_us == 0 {
        return ready;
    }
    let ahead = |it: &&Wait<'_>| it.asked <= ready + ARRIVAL && it.at < passed.at;
    let others = waits.iter().filter(ahead).map(|it| it.at);
    others.max().unwrap_or(0).max(ready)
}

/// Tells whether no fault and no stall can have cost a caller its place before `by` was served.
fn had_its_place(passed: &Wait<'_>, by: &Wait<'_>, excuses: &Excuses<'_>, stalls: &Stalls) -> bool {
    let concerns = |fault: &&&InjectedFault| match &fault.excuse {
        Some(Excuse::Removed { name }) => name == passed.name,
        // A plain queue keeps the order also while another process is broken.
        None if passed.passed_us == 0 && fault.target.starts_with("worker ") => {
            [passed.worker, by.worker]
                .iter()
                .any(|worker| fault.target == format!("worker {worker}"))
        }
        _ => true,
    };
    let mut faults = excuses.faults().iter().filter(concerns);
    let is_touched = faults.any(|it| it.from <= by.at && passed.asked <= it.to + SETTLING);
    let waited = by.at - passed.asked;
    let stalled = waited - stalls.running_time(passed.worker, passed.asked, by.at);
    !is_touched && stalled <= ARRIVAL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::verdict::judge::Limits;

    const SECOND: Micros = 1_000_000;

    /// A caller of a process that asked and was served at these times.
    fn waited(worker: u32, asked: Micros, at: Micros, passed_us: Micros) -> HistoryEntry {
        let event = Event::Waited {
            name: "lock".into(),
            asked,
            at,
            hold: Some(at),
            passed_us,
        };
        HistoryEntry { worker, event }
    }

    fn count(history: &[HistoryEntry]) -> usize {
        let limits = Limits {
            ttl_us: SECOND,
            notice_us: 0,
            failover_us: 0,
            record_failover_us: 0,
        };
        let excuses = Excuses::of_history(history, limits);
        passed_waiters(history, &excuses, &Stalls::of_history(history)).len()
    }

    #[test]
    fn a_caller_that_is_passed_long_after_it_asked_is_a_violation() {
        let patient = waited(1, 0, 5 * SECOND, 0);
        for (asked, at, passes) in [
            (ARRIVAL, 2 * SECOND, 0),
            (ARRIVAL + 1, 2 * SECOND, 1),
            (ARRIVAL + 1, 5 * SECOND, 0),
        ] {
            let history = [patient.clone(), waited(2, asked, at, 0)];
            assert_eq!(count(&history), passes, "{asked} {at}");
        }
    }

    #[test]
    fn the_turn_of_the_same_process_comes_first() {
        // Two tasks of process 1, and one turn for each.
        let history = [
            waited(1, 0, 3 * SECOND, 0),
            waited(1, 1, 5 * SECOND, 0),
            waited(2, SECOND, 4 * SECOND, 0),
        ];
        assert_eq!(count(&history), 0);
    }

    #[test]
    fn a_shared_lock_may_be_passed_until_the_caller_is_the_first() {
        let passes_for = SECOND / 4;
        let ahead = waited(3, 0, 2 * SECOND, passes_for);
        let patient = waited(1, 1, 9 * SECOND, passes_for);
        let newcomer = |asked| waited(2, asked, 5 * SECOND, passes_for);
        for (asked, passes) in [(2_700_000, 0), (2_800_000, 1)] {
            let history = [ahead.clone(), patient.clone(), newcomer(asked)];
            assert_eq!(count(&history), passes, "{asked}");
        }
    }

    #[test]
    fn a_fault_that_may_have_cost_the_place_proves_nothing() {
        let passed = [
            waited(1, 0, 5 * SECOND, 0),
            waited(2, SECOND, 2 * SECOND, 0),
        ];
        for (target, excuse, proves) in [
            ("worker 1", None, false),
            ("worker 3", None, true),
            ("redis", None, false),
            ("lock", Some("another"), true),
            ("lock", Some("lock"), false),
        ] {
            let fault = InjectedFault {
                kind: "fault".into(),
                target: target.into(),
                from: SECOND,
                to: SECOND,
                excuse: excuse.map(|name| Excuse::Removed { name: name.into() }),
            };
            let mut history = passed.to_vec();
            history.push(HistoryEntry {
                worker: 0,
                event: Event::Fault(fault),
            });
            assert_eq!(count(&history) == 1, proves, "{target} {excuse:?}");
        }
    }
}
