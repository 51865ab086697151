//! Checks the promises about holds: exclusion by modes, notices of loss, and tickets.
//!
//! The verdict counts a guard as valid from the first `is_valid()` that returned `true` until the
//! last call of `is_valid()` that returned `true`. The guard was valid in between as well, because
//! a guard never becomes valid again. So each reported overlap is real. An overlap between two
//! calls is missed.

use std::collections::BTreeMap;

use super::{
    excuses::{Excuses, Lease, Overlap, find_first_overlaps},
    judge::{Limits, Promise, Violation},
    processes::{Stalls, last_events},
};
use crate::chaos::history::{
    CallKind, Event, HistoryEntry, HoldEnd, HoldMode, HoldNumber, Micros, NO_TOKEN,
};

/// One guard, from its grant to its end.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) worker: u32,
    pub(crate) name: String,
    number: HoldNumber,
    token: u64,
    mode: HoldMode,
    /// Time of the first request for the lock, also if a ticket passed the lock to this guard. The
    /// store granted the lock after that time, and before the first process knew.
    asked: Micros,
    /// Time in which the guard was certainly valid: from the first `true` answer of `is_valid()` to
    /// the last call that returned `true`.
    valid: Option<(Micros, Micros)>,
    /// The last known deadline.
    deadline: Micros,
    ended: Option<(Micros, HoldEnd)>,
    notified: Option<Micros>,
}

impl Hold {
    /// Names the process, what it may do, and the token, for the text of a violation.
    fn label(&self) -> String {
        let who = match &self.mode {
            HoldMode::Alone => format!("process {}", self.worker),
            HoldMode::Writes => format!("a writer of process {}", self.worker),
            HoldMode::Reads => format!("a reader of process {}", self.worker),
            HoldMode::Permits { indices, .. } => {
                format!("permits {indices:?} of process {}", self.worker)
            }
        };
        match self.token {
            NO_TOKEN => who,
            token => format!("{who} with token {token}"),
        }
    }

    /// Identifies the lease. Holders that share a lock may share a token.
    const fn lease(&self) -> Lease {
        match self.mode {
            HoldMode::Alone => Lease::of_hold(self.worker, self.number, self.token),
            _ => Lease::Hold(self.worker, self.number),
        }
    }
}

/// Collects the holds of a history by name, in the order of their first validity. A hold that was
/// never valid proves nothing and is left out.
pub(super) fn collect_holds(history: &[HistoryEntry]) -> BTreeMap<String, Vec<Hold>> {
    let mut all: BTreeMap<(u32, HoldNumber), Hold> = BTreeMap::new();
    let mut first_requests: BTreeMap<(&str, u64), Micros> = BTreeMap::new();
    for HistoryEntry { worker, event } in history {
        match event {
            Event::Granted {
                hold,
                name,
                token,
                asked,
                at,
                resumed,
                mode,
            } => {
                let first_asked = *first_requests.entry((name, *token)).or_insert(*asked);
                let granted = Hold {
                    worker: *worker,
                    name: name.clone(),
                    number: *hold,
                    token: *token,
                    mode: mode.clone(),
                    asked: resumed.map_or(*asked, |_| first_asked),
                    valid: None,
                    deadline: *at,
                    ended: None,
                    notified: None,
                };
                all.insert((*worker, *hold), granted);
            }
            Event::Valid {
                hold,
                from,
                to,
                deadline,
            } => {
                if let Some(hold) = all.get_mut(&(*worker, *hold)) {
                    let (first, last) = hold.valid.unwrap_or((*to, *from));
                    hold.valid = Some((first.min(*to), last.max(*from)));
                    hold.deadline = hold.deadline.max(*deadline);
                }
            }
            Event::Ended {
                hold,
                at,
                deadline,
                how,
            } => {
                if let Some(hold) = all.get_mut(&(*worker, *hold)) {
                    hold.ended = Some((*at, *how));
                    hold.deadline = hold.deadline.max(*deadline);
                }
            }
            Event::LossNotified {
                hold, at, deadline, ..
            } => {
                if let Some(hold) = all.get_mut(&(*worker, *hold)) {
                    hold.notified = Some(*at);
                    hold.deadline = hold.deadline.max(*deadline);
                }
            }
            _ => {}
        }
    }
    let mut by_name: BTreeMap<String, Vec<Hold>> = BTreeMap::new();
    for hold in all.into_values().filter(|hold| hold.valid.is_some()) {
        by_name.entry(hold.name.clone()).or_default().push(hold);
    }
    for holds in by_name.values_mut() {
        holds.sort_by_key(|hold| hold.valid);
    }
    by_name
}

/// Finds every pair of guards of one name that exclude each other and were valid at one instant.
/// Also returns the longest time for which a guard was valid beside newer ones.
pub(super) fn overlapping(
    holds: &BTreeMap<String, Vec<Hold>>,
    excuses: &Excuses<'_>,
    limits: Limits,
) -> (Vec<Violation>, Micros) {
    let mut overlaps = Vec::new();
    for holds in holds.values() {
        // Guards that are still valid stay in this list, because each pair of guards needs its own
        // excuse.
        let mut open: Vec<(&Hold, Micros)> = Vec::new();
        for hold in holds {
            let Some((first, last)) = hold.valid else {
                continue;
            };
            open.retain(|(_, until)| *until > first);
            for (other, until) in &open {
                if !other.mode.excludes(&hold.mode) {
                    continue;
                }
                // The answer to the older request may arrive later, so the token decides.
                let (older, newer) = match other.token <= hold.token {
                    true => (*other, hold),
                    false => (hold, *other),
                };
                let overlap = Overlap {
                    lock: &hold.name,
                    older: older.lease(),
                    worker: older.worker,
                    is_shared: older.mode.is_shared(),
                    asked: older.asked.min(newer.asked),
                    from: first,
                    // The last call of a guard that was asked once began before its answer.
                    to: last.min(*until).max(first),
                    since: first,
                };
                overlaps.push((overlap, older, newer));
            }
            open.push((hold, last));
        }
    }
    let mut found = Vec::new();
    let mut longest = 0;
    find_first_overlaps(&mut overlaps, limits.ttl_us);
    for (overlap, older, newer) in overlaps {
        let [together, beside] = [overlap.from, overlap.since].map(|begin| overlap.to - begin);
        longest = longest.max(beside);
        let mut detail = format!(
            "{:?}: {} and {} were both valid for {} ms",
            overlap.lock,
            older.label(),
            newer.label(),
            together / 1000
        );
        if beside > together {
            detail += &format!(", the first one beside newer ones for {} ms", beside / 1000);
        }
        found.push(Violation {
            promise: Promise::Exclusion,
            at: overlap.from,
            detail,
            excused_by: excuses.of_overlap(&overlap),
        });
    }
    (found, longest)
}

/// Finds holders of permits that their semaphore does not have. Two holders of one permit exclude
/// each other, so all valid permits together are no more than the semaphore has.
pub(super) fn foreign_permits(history: &[HistoryEntry]) -> Vec<Violation> {
    let mut found = Vec::new();
    for HistoryEntry { worker, event } in history {
        if let Event::Granted {
            name,
            at,
            mode: HoldMode::Permits { indices, of },
            ..
        } = event
            && (indices.is_empty() || indices.iter().any(|index| index >= of))
        {
            found.push(Violation {
                promise: Promise::Exclusion,
                at: *at,
                detail: format!("{name:?}: process {worker} got permits {indices:?} of {of}"),
                excused_by: None,
            });
        }
    }
    found
}

/// Finds losses that were reported too late, and losses that were never reported although the
/// process continued.
pub(super) fn late_notices(
    history: &[HistoryEntry],
    holds: &BTreeMap<String, Vec<Hold>>,
    stalls: &Stalls,
    limits: Limits,
) -> Vec<Violation> {
    let alive_at = last_events(history);
    let mut found = Vec::new();
    for hold in holds.values().flatten() {
        let seen = match (hold.notified, alive_at.get(&hold.worker)) {
            (Some(notified), _) => notified,
            // The end of a released guard is no loss. A guard without a recorded end may have been
            // renewed after its last known deadline.
            (None, Some(end)) if matches!(hold.ended, Some((_, HoldEnd::NotValid))) => *end,
            _ => continue,
        };
        let late = stalls.running_time(hold.worker, hold.deadline, seen);
        if late > limits.notice_us {
            found.push(Violation {
                promise: Promise::LossIsTold,
                at: hold.deadline,
                detail: format!(
                    "{:?}: {} was {} {} ms of running time after its deadline",
                    hold.name,
                    hold.label(),
                    if hold.notified.is_some() {
                        "told"
                    } else {
                        "not told"
                    },
                    late / 1000
                ),
                excused_by: None,
            });
        }
    }
    found
}

/// Returns for each loss the time from its deadline to its notice.
pub(super) fn notice_delays(holds: &BTreeMap<String, Vec<Hold>>, stalls: &Stalls) -> Vec<Micros> {
    let notified =
        |hold: &Hold| Some(stalls.running_time(hold.worker, hold.deadline, hold.notified?));
    holds.values().flatten().filter_map(notified).collect()
}

/// Finds tickets that were resumed more than once. A store that loses data may lose the first
/// resume, and then accepts another, as documented.
pub(super) fn reused_tickets(history: &[HistoryEntry], excuses: &Excuses<'_>) -> Vec<Violation> {
    let mut resumed: BTreeMap<u64, (u32, Micros)> = BTreeMap::new();
    let mut found = Vec::new();
    for HistoryEntry { worker, event } in history {
        if let Event::Granted {
            resumed: Some(ticket),
            name,
            asked,
            at,
            ..
        } = event
            && let Some((first, first_asked)) = resumed.insert(*ticket, (*worker, *asked))
        {
            found.push(Violation {
                promise: Promise::TicketsOnce,
                at: *at,
                detail: format!(
                    "{name:?}: processes {first} and {worker} both resumed one ticket ({:?})",
                    CallKind::Resume
                ),
                excused_by: excuses.of_lost_lock(first_asked, *at),
            });
        }
    }
    found
}
