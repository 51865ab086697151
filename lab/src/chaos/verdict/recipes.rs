//! Checks the promises of the recipes, as their documentation gives them.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::chaos::history::{Event, HistoryEntry, Micros, RecipeStep};

use super::{
    excuses::{Excuses, Lease, Overlap, find_first_overlaps},
    judge::{Limits, Promise, Violation},
    processes::Stalls,
    tokens::Eras,
};

/// Two starts of a job are at least this many tenths of its period apart.
const MIN_PERIOD_TENTHS: u64 = 9;
/// Allowance for the times of stores, which are rounded to milliseconds.
const ROUNDING_US: Micros = 2_000;

/// Finds the violations of all recipes.
pub(super) fn check(
    history: &[HistoryEntry],
    excuses: &Excuses<'_>,
    stalls: &Stalls,
    limits: Limits,
) -> Vec<Violation> {
    let eras = Eras::of(excuses);
    let mut found = leader_violations(history, stalls, excuses, limits);
    found.extend(job_violations(history, excuses, &eras));
    found.extend(effect_violations(history, &eras));
    found.extend(counter_violations(history, &eras));
    found.extend(gate_violations(history, &eras));
    found
}

/// Returns the steps of recipes, each with the number of its process.
fn recipe_steps(history: &[HistoryEntry]) -> impl Iterator<Item = (u32, &RecipeStep)> {
    history.iter().filter_map(|entry| match &entry.event {
        Event::Recipe(step) => Some((entry.worker, step)),
        _ => None,
    })
}

/// Returns a violation that is not excused.
fn violation(promise: Promise, at: Micros, detail: String) -> Violation {
    Violation {
        promise,
        at,
        detail,
        excused_by: None,
    }
}

/// The work of one leader.
struct LeaderTerm {
    worker: u32,
    term: u64,
    asked: Micros,
    from: Micros,
    /// `None` means that the leader was killed, or the run ended.
    to: Option<Micros>,
}

/// Collects the work of all leaders by election, in the order of its begin.
fn collect_terms(history: &[HistoryEntry]) -> BTreeMap<&str, Vec<LeaderTerm>> {
    let mut elections: BTreeMap<&str, Vec<LeaderTerm>> = BTreeMap::new();
    for (worker, step) in recipe_steps(history) {
        match step {
            RecipeStep::Leads {
                election,
                term,
                asked,
                at,
            } => {
                elections.entry(election).or_default().push(LeaderTerm {
                    worker,
                    term: *term,
                    asked: *asked,
                    from: *at,
                    to: None,
                });
            }
            RecipeStep::LedUntil { election, term, at } => {
                let terms = elections.entry(election).or_default();
                let mut its = terms.iter_mut().rev();
                let it = its.find(|it| it.term == *term && it.worker == worker && it.to.is_none());
                if let Some(it) = it {
                    it.to = Some(*at);
                }
            }
            _ => {}
        }
    }
    for terms in elections.values_mut() {
        terms.sort_by_key(|it| it.from);
    }
    elections
}

/// Finds elections in which a leader worked after the next leader had begun, or in which terms do
/// not rise.
///
/// A process may be stopped at any time. So only the running time of the earlier leader counts. A
/// leader that was stopped shortly before its work may begin an earlier term late.
///
/// The store may end a lease early or lose it. The documentation then allows two leaders until the
/// local end of that lease.
fn leader_violations(
    history: &[HistoryEntry],
    stalls: &Stalls,
    excuses: &Excuses<'_>,
    Limits {
        ttl_us, notice_us, ..
    }: Limits,
) -> Vec<Violation> {
    // A stopped leader may run for a moment when it continues. The check allows only a fifth of the
    // allowed delay of a notice, because the lease ends with a margin.
    let moment = notice_us / 5;
    let elections = collect_terms(history);
    let mut overlaps = Vec::new();
    for (election, terms) in &elections {
        for (at, next) in terms.iter().enumerate() {
            let overlap = |older: &LeaderTerm, from, to| Overlap {
                lock: election,
                older: Lease::Token(older.term),
                worker: older.worker,
                is_shared: false,
                asked: older.asked,
                from,
                to,
                since: from,
            };
            for before in &terms[..at] {
                let Some(to) = before.to else { continue };
                let ran_us = stalls.running_time(before.worker, next.from, to);
                if to > next.from && ran_us > moment {
                    let overlap = overlap(before, next.from, next.from + ran_us - moment);
                    let detail = format!(
                        "{election}: process {} led in term {} for {} us after process {} had \
                         begun term {}",
                        before.worker,
                        before.term,
                        to - next.from,
                        next.worker,
                        next.term
                    );
                    overlaps.push((overlap, next.from, detail));
                }
            }
            // A process that was stopped between its grant and its work begins its work late.
            let was_stopped =
                !stalls.ran_without_stall(next.worker, next.from.saturating_sub(ttl_us), next.from);
            let highest = terms[..at].iter().max_by_key(|it| it.term);
            if let Some(highest) = highest
                && highest.term >= next.term
                && !was_stopped
            {
                let detail = format!(
                    "{election}: process {} began term {} after term {}",
                    next.worker, next.term, highest.term
                );
                let overlap = overlap(next, highest.from, next.from);
                overlaps.push((overlap, next.from, detail));
            }
        }
    }
    find_first_overlaps(&mut overlaps, ttl_us);
    let judged = overlaps.into_iter().map(|(overlap, at, detail)| Violation {
        excused_by: excuses.of_overlap(&overlap),
        ..violation(Promise::OneLeader, at, detail)
    });
    judged.collect()
}

/// Finds jobs that were started twice in a period. The store records a start at some moment between
/// the request and the first step of the job. Two starts count as a violation only if every
/// possible pair of such moments is too close.
///
/// The period is measured on the store's clock. So a clock that was put forward between the two
/// starts excuses them, as documented, if the step makes up for the missing time.
fn job_violations(history: &[HistoryEntry], excuses: &Excuses<'_>, eras: &Eras) -> Vec<Violation> {
    let mut jobs: BTreeMap<_, Vec<(Micros, Micros, u64)>> = BTreeMap::new();
    for (_, step) in recipe_steps(history) {
        if let RecipeStep::JobRuns {
            job,
            period_us,
            asked,
            at,
            ..
        } = step
            && let Some(era) = eras.era_of(*asked, *at)
        {
            let runs = jobs.entry((job, era)).or_default();
            runs.push((*asked, *at, *period_us));
        }
    }
    let mut found = Vec::new();
    for ((job, _), mut runs) in jobs {
        runs.sort_by_key(|run| run.1);
        for (at, (asked, begun, period)) in runs.iter().enumerate() {
            let least = period * MIN_PERIOD_TENTHS / 10 - ROUNDING_US;
            let near = |other: &&(Micros, Micros, u64)| {
                *begun < other.0 + least && other.1 < *asked + least
            };
            let pairs = runs[..at].iter().filter(near).map(|other| {
                let missing = least.saturating_sub(begun - other.0);
                (other, excuses.of_missing_time(other.0, *begun, missing))
            });
            // A pair without an excuse is reported before an excused one.
            if let Some((other, excuse)) = pairs.min_by_key(|(_, excuse)| excuse.is_some()) {
                let mut violation = violation(
                    Promise::OncePerPeriod,
                    *begun,
                    format!(
                        "{job:?} ran twice within {} ms, and its period is {} ms",
                        (begun - other.0) / 1000,
                        period / 1000
                    ),
                );
                violation.excused_by = excuse;
                found.push(violation);
            }
        }
    }
    found
}

/// Finds effects that happened twice, and callers that received a different result.
fn effect_violations(history: &[HistoryEntry], eras: &Eras) -> Vec<Violation> {
    let mut made: BTreeMap<(&str, Option<usize>), u64> = BTreeMap::new();
    let mut found = Vec::new();
    for (worker, step) in recipe_steps(history) {
        if let RecipeStep::Made {
            key,
            value,
            asked,
            at,
        } = step
            && let era @ Some(_) = eras.era_of(*asked, *at)
            && made.insert((key, era), *value).is_some()
        {
            let detail = format!("the effect of {key:?} happened again, in process {worker}");
            found.push(violation(Promise::OncePerKey, *at, detail));
        }
    }
    for (worker, step) in recipe_steps(history) {
        if let RecipeStep::Told {
            key,
            value,
            asked,
            at,
        } = step
            && let era @ Some(_) = eras.era_of(*asked, *at)
            && made.get(&(key.as_str(), era)).is_some_and(|it| it != value)
        {
            let detail = format!("process {worker} got a result of {key:?} that never happened");
            found.push(violation(Promise::OncePerKey, *at, detail));
        }
    }
    found
}

/// Finds counts that two callers received, and counts that fell although no caller marked a message
/// as read.
fn counter_violations(history: &[HistoryEntry], eras: &Eras) -> Vec<Violation> {
    /// Time of the request, time of the answer, and the unread messages then.
    type Count = (Micros, Micros, u64);
    let mut counts: BTreeMap<(String, usize), Vec<Count>> = BTreeMap::new();
    for (_, step) in recipe_steps(history) {
        if let RecipeStep::Counted {
            conversation,
            in_conversation,
            total,
            asked,
            at,
        } = step
            && let Some(era) = eras.era_of(*asked, *at)
        {
            let of = format!("conversation {conversation}");
            let one = (*asked, *at, *in_conversation);
            counts.entry((of, era)).or_default().push(one);
            let all = (*asked, *at, *total);
            let of = "the total".to_owned();
            counts.entry((of, era)).or_default().push(all);
        }
    }
    let mut found = Vec::new();
    for ((of, _), mut counts) in counts {
        counts.sort_by_key(|(asked, ..)| *asked);
        let mut answered: Vec<_> = counts.clone();
        answered.sort_by_key(|(_, at, _)| *at);
        let mut answered = answered.into_iter().peekable();
        let mut highest = 0;
        let mut seen = std::collections::BTreeSet::new();
        for (asked, at, value) in counts {
            // Only answers that came before this request bound the count.
            while let Some((.., before)) = answered.next_if(|it| it.1 < asked) {
                highest = highest.max(before);
            }
            if value <= highest || !seen.insert(value) {
                let detail = format!("{of} was counted up to {value}, and had been {highest}");
                found.push(violation(Promise::CountersAddUp, at, detail));
            }
        }
    }
    found
}

/// Finds holders that a gate accepted after a later holder.
fn gate_violations(history: &[HistoryEntry], eras: &Eras) -> Vec<Violation> {
    let mut admitted: BTreeMap<usize, Vec<(Micros, Micros, u64)>> = BTreeMap::new();
    for (_, step) in recipe_steps(history) {
        if let RecipeStep::Admitted { token, asked, at } = step
            && let Some(era) = eras.era_of(*asked, *at)
        {
            let its = admitted.entry(era).or_default();
            its.push((*asked, *at, *token));
        }
    }
    let mut found = Vec::new();
    for mut admitted in admitted.into_values() {
        let mut answered = admitted.clone();
        answered.sort_by_key(|(_, at, _)| *at);
        admitted.sort_by_key(|(asked, ..)| *asked);
        let mut answered = answered.into_iter().peekable();
        let mut highest = 0;
        for (asked, at, token) in admitted {
            while let Some((.., before)) = answered.next_if(|it| it.1 < asked) {
                highest = highest.max(before);
            }
            if token < highest {
                let detail = format!("token {token} was accepted after token {highest}");
                found.push(violation(Promise::GateHolds, at, detail));
            }
        }
    }
    found
}
