//! Checks that no call takes longer than its documented bound.

use std::collections::BTreeMap;

use crate::chaos::history::{CallKind, Event, HistoryEntry, Micros};

use super::{
    processes::{Stalls, last_events},
    promise::{Promise, Violation},
};

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
pub(super) fn check(history: &[HistoryEntry], stalls: &Stalls) -> Vec<Violation> {
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
