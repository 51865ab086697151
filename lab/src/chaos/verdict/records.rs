//! Checks that records are linearizable.
//!
//! The search is the algorithm of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993)
//! with Lowe's cache of tried states ("Testing for Linearizability", 2017). A record is a register
//! with compare-and-swap, and each value is written once, so the state is one value. Versions are
//! checked apart: no version is used twice, and a later write has a higher version. No fault
//! excuses a version.
//!
//! After a loss of data, the operations of each era must have an order of their own. A failover
//! leaves an older state of the record; a store that lost its history leaves none. Operations
//! during the loss prove nothing, but a read returns only values that somebody wrote.

use std::collections::{BTreeMap, HashSet};

use super::{
    excuses::Excuses,
    judge::{Promise, Violation},
    tokens::Eras,
};
use crate::chaos::history::{
    Event, HistoryEntry, Micros, RecordOperation, RecordStep, WriteOutcome,
};

/// Number of states that are tried for one key before the key counts as undecided.
const MAX_STATES: usize = 2_000_000;

/// Returns the violations, and the number of undecided keys.
pub(super) fn check(history: &[HistoryEntry], excuses: &Excuses<'_>) -> (Vec<Violation>, u64) {
    // The answer of an operation replaces its request.
    let mut last: BTreeMap<(u32, u64), &RecordStep> = BTreeMap::new();
    for HistoryEntry { worker, event } in history {
        if let Event::Record(step) = event {
            last.insert((*worker, step.number), step);
        }
    }
    let mut by_key: BTreeMap<&str, Vec<&RecordStep>> = BTreeMap::new();
    for step in last.into_values() {
        by_key.entry(&step.key).or_default().push(step);
    }
    let eras = Eras::of(excuses);
    let mut found = Vec::new();
    let mut undecided = 0;
    for (key, steps) in by_key {
        let at = steps.iter().map(|it| it.from).min().unwrap_or_default();
        let mut broken = |detail: String, excused_by| {
            found.push(Violation {
                promise: Promise::Linearizable,
                at,
                detail,
                excused_by,
            });
        };
        if let Some(problem) = find_version_problem(&steps) {
            broken(format!("{key:?}: {problem}"), None);
        }
        let result = Search::of(&steps, &[]).find_order(&[None]);
        if matches!(result, SearchResult::Order) {
            continue;
        }
        let excuse = find_excuse(&steps, &eras);
        let count = steps.len();
        if matches!(result, SearchResult::None) {
            let problem = "operations have no order in which each answer is right";
            broken(format!("{key:?}: its {count} {problem}"), excuse);
        } else {
            undecided += 1;
            let problem = "operations were concurrent to be judged";
            broken(
                format!("{key:?}: too many of its {count} {problem}"),
                excuse,
            );
        }
    }
    (found, undecided)
}

/// Finds a fault in which the store lost data while the record was in use. `None` means that no
/// fault did, or that the loss does not explain the answers.
fn find_excuse(steps: &[&RecordStep], eras: &Eras) -> Option<String> {
    let from = steps.iter().map(|it| it.from).min()?;
    let to = steps.iter().map(|it| it.to.unwrap_or(it.from)).max()?;
    let fault = eras.loss_between(from, to)?;
    let certain = |it: &RecordStep| {
        let to = it.to.filter(|_| !is_unknown(&it.step))?;
        eras.era_of(it.from, to)
    };
    let mut by_era: BTreeMap<usize, Vec<&RecordStep>> = BTreeMap::new();
    for step in steps {
        match (certain(step), &step.step) {
            (Some(era), _) => by_era.entry(era).or_default().push(step),
            (
                None,
                RecordOperation::Get {
                    seen: Some((value, _)),
                },
            ) => {
                let written = |it: &&RecordStep| new_value(&it.step) == Some(*value);
                if !steps.iter().copied().any(|it| written(&it)) {
                    return None;
                }
            }
            (None, _) => {}
        }
    }
    // A write during a loss may have happened on one server, on both, or be lost.
    let uncertain: Vec<_> = steps
        .iter()
        .copied()
        .filter(|it| certain(it).is_none() && may_change(&it.step))
        .collect();
    let mut states = vec![None];
    for (era, certain) in by_era {
        let base = if eras.keeps_older(era) {
            &states[..]
        } else {
            &[None]
        };
        if !matches!(
            Search::of(&certain, &uncertain).find_order(base),
            SearchResult::Order
        ) {
            return None;
        }
        states.extend(
            certain
                .iter()
                .filter_map(|it| new_value(&it.step))
                .map(Some),
        );
    }
    Some(fault.to_owned())
}

/// Returns the value that an operation may have written.
const fn new_value(step: &RecordOperation) -> Option<u64> {
    match step {
        RecordOperation::Put {
            value,
            outcome: WriteOutcome::Done | WriteOutcome::Unknown,
            ..
        } => Some(*value),
        _ => None,
    }
}

/// Tells whether an operation may have changed the record.
const fn may_change(step: &RecordOperation) -> bool {
    match step {
        RecordOperation::Get { .. } => false,
        RecordOperation::Put { outcome, .. } | RecordOperation::Delete { outcome, .. } => {
            !matches!(outcome, WriteOutcome::Conflict)
        }
    }
}

/// Tells whether nobody knows if a write happened.
const fn is_unknown(step: &RecordOperation) -> bool {
    matches!(
        step,
        RecordOperation::Put {
            outcome: WriteOutcome::Unknown,
            ..
        } | RecordOperation::Delete {
            outcome: WriteOutcome::Unknown,
            ..
        }
    )
}

/// Returns the problem with the versions of one key, if there is one.
fn find_version_problem(steps: &[&RecordStep]) -> Option<String> {
    let mut of_version: BTreeMap<u64, u64> = BTreeMap::new();
    let mut writes: Vec<(Micros, Micros, u64)> = Vec::new();
    for step in steps {
        let (value, version) = match step.step {
            RecordOperation::Get { seen: Some(seen) } => seen,
            RecordOperation::Put {
                value,
                version: Some(version),
                ..
            } => {
                if let Some(to) = step.to {
                    writes.push((step.from, to, version));
                }
                (value, version)
            }
            _ => continue,
        };
        if let Some(other) = of_version.insert(version, value)
            && other != value
        {
            return Some(format!("version {version} was used twice"));
        }
    }
    writes.sort_unstable();
    for (at, (_, to, version)) in writes.iter().enumerate() {
        let later = writes[at..]
            .iter()
            .find(|(from, _, later)| from > to && later <= version);
        if let Some((_, _, later)) = later {
            return Some(format!("version {later} came after version {version}"));
        }
    }
    None
}

/// The result of a search for an order of operations.
enum SearchResult {
    Order,
    None,
    GaveUp,
}

/// One operation as the search sees it. The operation takes effect at one instant between `from`
/// and `to`. An operation without a definite answer takes effect at any later time, or never.
struct TimedOperation {
    from: Micros,
    to: Micros,
    step: RecordOperation,
    may_never_happen: bool,
}

/// The operations on one key, in the order of their requests.
struct Search {
    operations: Vec<TimedOperation>,
}

impl Search {
    /// Prepares the search. Operations that prove nothing are left out. The writes of `uncertain`
    /// may never have happened, although they were confirmed.
    fn of(certain: &[&RecordStep], uncertain: &[&RecordStep]) -> Self {
        let all = certain.iter().map(|it| (it, false));
        let all = all.chain(uncertain.iter().map(|it| (it, true)));
        let mut operations: Vec<_> = all
            .filter_map(|(it, uncertain)| {
                let unknown = is_unknown(&it.step);
                // A read without an answer proves nothing.
                if it.to.is_none() && !unknown {
                    return None;
                }
                Some(TimedOperation {
                    from: it.from,
                    to: if unknown { Micros::MAX } else { it.to? },
                    step: it.step.clone(),
                    may_never_happen: unknown || uncertain,
                })
            })
            .collect();
        operations.sort_by_key(|it| it.from);
        Self { operations }
    }

    /// Looks for an order that begins with one of the values `base`, depth first. A state is the
    /// set of operations that have taken effect, and the value after them.
    fn find_order(&self, base: &[Option<u64>]) -> SearchResult {
        let mut tried: HashSet<(Vec<u64>, Option<u64>)> = HashSet::new();
        let nothing = vec![0_u64; self.operations.len().div_ceil(64)];
        let mut open: Vec<_> = base.iter().map(|value| (nothing.clone(), *value)).collect();
        while let Some((done, value)) = open.pop() {
            if !tried.insert((done.clone(), value)) {
                continue;
            }
            if tried.len() > MAX_STATES {
                return SearchResult::GaveUp;
            }
            let is_done = |at: usize| done[at / 64] & (1 << (at % 64)) != 0;
            // An operation can take effect next only if it was requested no later than the first
            // answer to an operation that must still take effect.
            let left = || (0..self.operations.len()).filter(|at| !is_done(*at));
            let must = left().filter(|at| !self.operations[*at].may_never_happen);
            let Some(first_answer) = must.map(|at| self.operations[at].to).min() else {
                return SearchResult::Order;
            };
            // An operation that was answered before the request of one that has taken effect can
            // take effect no more.
            let last_request = (0..self.operations.len()).filter(|at| is_done(*at));
            let last_request = last_request.map(|at| self.operations[at].from).max();
            let last_request = last_request.unwrap_or_default();
            let in_time = || left().filter(|at| last_request <= self.operations[*at].to);
            let can_be_next: Vec<_> = in_time()
                .take_while(|at| self.operations[*at].from <= first_answer)
                .filter_map(|at| Some((at, value_after(&self.operations[at].step, value)?)))
                .collect();
            // An operation without effect comes first, if it makes no other one too late: no order
            // needs it later. This keeps the number of states small.
            let without_effect = can_be_next.iter().find(|(at, _)| {
                let TimedOperation { from, step, .. } = &self.operations[*at];
                !may_change(step) && in_time().all(|at| *from <= self.operations[at].to)
            });
            for (at, value) in without_effect.map_or(&can_be_next[..], std::slice::from_ref) {
                let mut done = done.clone();
                done[at / 64] |= 1 << (at % 64);
                open.push((done, *value));
            }
        }
        SearchResult::None
    }
}

/// Returns the value after an operation that took effect on `value`. `None` means that the answer
/// does not fit.
#[expect(
    clippy::option_option,
    reason = "the outer one is about the step, the inner one about the record"
)]
fn value_after(step: &RecordOperation, value: Option<u64>) -> Option<Option<u64>> {
    match *step {
        RecordOperation::Get { seen } => (seen.map(|seen| seen.0) == value).then_some(value),
        RecordOperation::Put {
            expected,
            value: new,
            outcome,
            ..
        } => value_after_write(expected == value, outcome, Some(new), value),
        RecordOperation::Delete { expected, outcome } => {
            value_after_write(Some(expected) == value, outcome, None, value)
        }
    }
}

/// Returns the value after a conditional write. `None` means that the outcome does not fit.
#[expect(clippy::option_option, reason = "as above")]
fn value_after_write(
    as_expected: bool,
    outcome: WriteOutcome,
    new: Option<u64>,
    old: Option<u64>,
) -> Option<Option<u64>> {
    match outcome {
        // A write that nobody knows about needs no place in the order unless it had an effect.
        // Without this rule, many such writes would give too many states.
        WriteOutcome::Done | WriteOutcome::Unknown => as_expected.then_some(new),
        WriteOutcome::Conflict => (!as_expected).then_some(old),
    }
}
