//! Checks that records are linearizable.
//!
//! The search is the algorithm of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993)
//! with Lowe's cache of tried states ("Testing for Linearizability", 2017). A record is a register
//! with compare-and-swap, and each value is written once, so the state is one value. Versions are
//! checked apart: no version is used twice, and a later write has a higher version.

use std::collections::{BTreeMap, HashSet};

use crate::chaos::history::{
    Event, HistoryEntry, Micros, RecordOperation, RecordStep, WriteOutcome,
};

use super::{
    excuses::Excuses,
    promise::{Promise, Violation},
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
    let mut found = Vec::new();
    let mut undecided = 0;
    for (key, steps) in by_key {
        let at = steps.iter().map(|it| it.from).min().unwrap_or_default();
        let mut broken = |detail: String| {
            found.push(Violation {
                promise: Promise::Linearizable,
                at,
                detail,
                excused_by: find_excuse(&steps, excuses),
            });
        };
        if let Some(problem) = find_version_problem(&steps) {
            broken(format!("{key:?}: {problem}"));
        }
        match Search::of(&steps).find_order() {
            SearchResult::Order => {}
            SearchResult::None => broken(format!(
                "{key:?}: its {} operations have no order in which each answer is right",
                steps.len()
            )),
            SearchResult::GaveUp => {
                undecided += 1;
                broken(format!(
                    "{key:?}: too many of its {} operations were concurrent to be judged",
                    steps.len()
                ));
            }
        }
    }
    (found, undecided)
}

/// Finds a fault in which the store lost data while the record was in use.
fn find_excuse(steps: &[&RecordStep], excuses: &Excuses<'_>) -> Option<String> {
    let from = steps.iter().map(|it| it.from).min()?;
    let to = steps.iter().map(|it| it.to.unwrap_or(it.from)).max()?;
    let mut losses = excuses.record_losses();
    let (fault, _) = losses.find(|(fault, until)| fault.from <= to && from <= *until)?;
    Some(format!("{} of {}", fault.kind, fault.target))
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
    /// Prepares the search. Operations that prove nothing are left out.
    fn of(steps: &[&RecordStep]) -> Self {
        let mut operations: Vec<_> = steps
            .iter()
            .filter_map(|it| {
                let unknown = matches!(
                    it.step,
                    RecordOperation::Put {
                        outcome: WriteOutcome::Unknown,
                        ..
                    } | RecordOperation::Delete {
                        outcome: WriteOutcome::Unknown,
                        ..
                    }
                );
                // A read without an answer proves nothing.
                if it.to.is_none() && !unknown {
                    return None;
                }
                Some(TimedOperation {
                    from: it.from,
                    to: if unknown { Micros::MAX } else { it.to? },
                    step: it.step.clone(),
                    may_never_happen: unknown,
                })
            })
            .collect();
        operations.sort_by_key(|it| it.from);
        Self { operations }
    }

    /// Looks for an order, depth first. A state is the set of operations that have taken effect,
    /// and the value after them.
    fn find_order(&self) -> SearchResult {
        let mut tried: HashSet<(Vec<u64>, Option<u64>)> = HashSet::new();
        let nothing = vec![0_u64; self.operations.len().div_ceil(64)];
        let mut open = vec![(nothing, None)];
        while let Some((done, value)) = open.pop() {
            if !tried.insert((done.clone(), value)) {
                continue;
            }
            if tried.len() > MAX_STATES {
                return SearchResult::GaveUp;
            }
            let is_done = |at: usize| done[at / 64] & (1 << (at % 64)) != 0;
            // An operation can take effect next only if it was requested no later than the first
            // answer to an operation that has not taken effect yet.
            let left = || (0..self.operations.len()).filter(|at| !is_done(*at));
            let Some(first_answer) = left().map(|at| self.operations[at].to).min() else {
                return SearchResult::Order;
            };
            if left().all(|at| self.operations[at].may_never_happen) {
                return SearchResult::Order;
            }
            for at in left().take_while(|at| self.operations[*at].from <= first_answer) {
                if let Some(value) = value_after(&self.operations[at].step, value) {
                    let mut done = done.clone();
                    done[at / 64] |= 1 << (at % 64);
                    open.push((done, value));
                }
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
        WriteOutcome::Done => as_expected.then_some(new),
        WriteOutcome::Conflict => (!as_expected).then_some(old),
        WriteOutcome::Unknown => Some(if as_expected { new } else { old }),
    }
}
