//! Checks the order in which the waiters of a process are served, and minimum hold times.
//!
//! Checks that no call takes longer than its documented bound.

use std::collections::BTreeMap;

use super::{
    excuses::Excuses,
    judge::{Promise, Violation},
    processes::{Stalls, last_events},
};
use crate::chaos::history::{CallKind, Event, HistoryEntry, HoldEnd, HoldNumber, Micros};

/// Finds waiters that were served after a waiter with a later place in the local queue.
///
/// A waiter that gave up, or whose call failed, is never served, so that waiter delays no other
/// waiter.
pub(super) fn wrong_serving_order(history: &[HistoryEntry]) -> Vec<Violation> {
    let mut last: BTreeMap<(u32, u64), u32> = BTreeMap::new();
    let mut found = Vec::new();
    for HistoryEntry { worker, event } in history {
        let Event::Served {
            queue, place, at, ..
        } = event
        else {
            continue;
        };
        let before = last.entry((*worker, *queue)).or_insert(*place);
        if place < before {
            found.push(Violation {
                promise: Promise::ServedInOrder,
                at: *at,
                detail: format!(
                    "process {worker}: waiter {place} of queue {queue} was served after waiter \
                     {before}, which had come later"
                ),
                excused_by: None,
            });
        }
        *before = (*before).max(*place);
    }
    found
}

/// The facts about one hold.
struct KeptLock<'a> {
    worker: u32,
    name: &'a str,
    asked: Micros,
    granted: Micros,
    /// The first `is_valid()` that returned `true`.
    valid: Option<Micros>,
    until: Option<Micros>,
    /// The time of the release, and the deadline of the lease at that time.
    released: Option<(Micros, Micros)>,
}

/// Finds locks that somebody else got before their minimum hold time was over.
///
/// Only a lease that lasted through the minimum hold time counts: a lost lock excludes nobody.
pub(super) fn broken_minimum_holds(
    history: &[HistoryEntry],
    excuses: &Excuses<'_>,
) -> Vec<Violation> {
    let mut holds: BTreeMap<(u32, HoldNumber), KeptLock<'_>> = BTreeMap::new();
    for HistoryEntry { worker, event } in history {
        if let Event::Granted {
            hold,
            name,
            asked,
            at,
            ..
        } = event
        {
            let granted = KeptLock {
                worker: *worker,
                name,
                asked: *asked,
                granted: *at,
                valid: None,
                until: None,
                released: None,
            };
            holds.insert((*worker, *hold), granted);
            continue;
        }
        let (Event::Valid { hold, .. } | Event::Keeps { hold, .. } | Event::Ended { hold, .. }) =
            event
        else {
            continue;
        };
        let Some(kept) = holds.get_mut(&(*worker, *hold)) else {
            continue;
        };
        match event {
            Event::Valid { to, .. } => kept.valid = kept.valid.or(Some(*to)),
            Event::Keeps { until, .. } => kept.until = Some(*until),
            Event::Ended {
                at,
                deadline,
                how: HoldEnd::Released | HoldEnd::Dropped,
                ..
            } => kept.released = Some((*at, *deadline)),
            _ => {}
        }
    }
    let mut by_name: BTreeMap<&str, Vec<&KeptLock<'_>>> = BTreeMap::new();
    for hold in holds.values() {
        by_name.entry(hold.name).or_default().push(hold);
    }
    let mut found = Vec::new();
    for kept in holds.values() {
        let (Some(until), Some((released, deadline))) = (kept.until, kept.released) else {
            continue;
        };
        if deadline < until {
            continue;
        }
        // Somebody who got the lock before the release held it together with this holder. The check
        // of exclusion judges that.
        let next = by_name[kept.name].iter().filter(|it| released < it.granted);
        let next = next.filter_map(|it| it.valid);
        let Some(early) = next.filter(|at| *at < until).min() else {
            continue;
        };
        found.push(Violation {
            promise: Promise::KeptAtLeast,
            at: early,
            detail: format!(
                "{:?} went to somebody else {} ms before the end of its minimum hold time",
                kept.name,
                (until - early) / 1000
            ),
            excused_by: excuses.of_early_end(kept.name, kept.worker, kept.asked, [early, until]),
        });
    }
    found
}

/// A call that has not returned yet.
struct PendingCall {
    what: CallKind,
    at: Micros,
    bound: Micros,
}

/// Extra time that a busy machine may need for any call.
const SLACK: Micros = 1_000_000;

/// Finds the calls that took longer than their bound, or have not returned although their process
/// ran.
pub(super) fn overdue_calls(history: &[HistoryEntry], stalls: &Stalls) -> Vec<Violation> {
    let mut open: BTreeMap<(u32, u64), PendingCall> = BTreeMap::new();
    let mut found = Vec::new();
    let mut judge = |worker, PendingCall { what, at, bound }: PendingCall, until, end: &str| {
        let took = stalls.running_time(worker, at, until);
        if took > bound + SLACK {
            found.push(Violation {
                promise: Promise::CallsEnd,
                at,
                detail: format!(
                    "{what:?} of process {worker} {end} {} ms of running time; its bound is {} ms",
                    took / 1000,
                    bound / 1000
                ),
                excused_by: None,
            });
        }
    };
    for HistoryEntry { worker, event } in history {
        match event {
            Event::Called {
                call,
                what,
                at,
                bound_us,
            } => {
                let asked = PendingCall {
                    what: *what,
                    at: *at,
                    bound: *bound_us,
                };
                open.insert((*worker, *call), asked);
            }
            Event::Answered { call, at, .. } => {
                if let Some(asked) = open.remove(&(*worker, *call)) {
                    judge(*worker, asked, *at, "took");
                }
            }
            _ => {}
        }
    }
    // A process that still reports events should have reported the end of its calls as well.
    let alive = last_events(history);
    for ((worker, _), asked) in open {
        if let Some(last) = alive.get(&worker) {
            judge(worker, asked, *last, "had not answered after");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::{
        history::{Excuse, HoldMode, InjectedFault},
        verdict::Limits,
    };

    fn served(queue: u64, place: u32) -> HistoryEntry {
        let (token, at) = (1, 1);
        let event = Event::Served {
            queue,
            place,
            token,
            at,
        };
        HistoryEntry { worker: 1, event }
    }

    #[test]
    fn a_waiter_served_after_a_later_waiter_is_a_violation() {
        // The second waiter gave up.
        let fair = [served(1, 0), served(2, 1), served(1, 2), served(2, 2)];
        assert_eq!(wrong_serving_order(&fair).len(), 0);
        let overtaken = [served(1, 0), served(1, 2), served(1, 1)];
        assert_eq!(wrong_serving_order(&overtaken).len(), 1);
    }

    /// Returns one lock that is kept until `until` and released at 10, and another hold that begins
    /// at `next`.
    fn kept(until: Micros, deadline: Micros, next: Micros) -> Vec<HistoryEntry> {
        let granted = |hold, at| Event::Granted {
            hold,
            name: "lock".into(),
            token: hold,
            asked: at,
            at,
            resumed: None,
            mode: HoldMode::Alone,
        };
        let valid = |hold, at| Event::Valid {
            hold,
            from: at,
            to: at,
            deadline,
        };
        let ended = Event::Ended {
            hold: 1,
            at: 10,
            deadline,
            how: HoldEnd::Released,
        };
        let events = [
            granted(1, 1),
            Event::Keeps { hold: 1, until },
            valid(1, 2),
            ended,
            granted(2, next),
            valid(2, next),
        ];
        let entry = |event| HistoryEntry { worker: 1, event };
        events.into_iter().map(entry).collect()
    }

    /// Judges the locks after a fault.
    fn judged(mut history: Vec<HistoryEntry>, excuse: Option<Excuse>) -> Vec<Violation> {
        let fault = InjectedFault {
            kind: "fault".into(),
            target: "store".into(),
            from: 20,
            to: 21,
            excuse,
        };
        let event = Event::Fault(fault);
        history.push(HistoryEntry { worker: 0, event });
        let limits = Limits {
            ttl_us: 1_000,
            notice_us: 0,
            failover_us: 0,
            record_failover_us: 0,
        };
        broken_minimum_holds(&history, &Excuses::of_history(&history, limits))
    }

    #[test]
    fn a_lock_freed_before_its_minimum_hold_time_is_a_violation() {
        assert_eq!(judged(kept(50, 100, 50), None).len(), 0);
        assert_eq!(judged(kept(50, 100, 49), None).len(), 1);
        // The lease ended before the minimum hold time.
        assert_eq!(judged(kept(50, 40, 45), None).len(), 0);
        let session = |name: &str, token| Excuse::EndedSession {
            name: name.into(),
            token,
        };
        for (excuse, excused) in [
            (Excuse::LostHistory, true),
            (Excuse::SteppedClock { by_us: 1 }, true),
            (Excuse::SteppedClock { by_us: 0 }, false),
            (session("lock", 1), true),
            (session("another", 1), false),
        ] {
            let found = judged(kept(50, 100, 49), Some(excuse.clone()));
            assert_eq!(found[0].excused_by.is_some(), excused, "{excuse:?}");
        }
    }
}
