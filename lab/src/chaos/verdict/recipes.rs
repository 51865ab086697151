//! The promises of the recipes, as their documentation gives them.

use std::collections::BTreeMap;

use crate::chaos::history::{Entry, Event, Excuse, Fault, Micros, RecipeStep};

use super::{Promise, Violation, machine::Stalls};

/// Two starts of a job are at least so many tenths of its period apart.
const TENTHS: u64 = 9;
/// The stores count milliseconds.
const TICK_US: Micros = 2_000;

pub(super) fn check(
    history: &[Entry],
    faults: &[&Fault],
    stalls: &Stalls,
    ttl_us: Micros,
) -> Vec<Violation> {
    let eras = Eras::of(faults);
    let mut found = leaders(history, stalls, &eras, ttl_us);
    // Two may lead until the lease ends that the store forgot: that is in the documentation.
    for violation in &mut found {
        let forgot = |it: &&&Fault| {
            it.excuse == Some(Excuse::LostHistory)
                && it.from <= violation.at
                && violation.at <= it.to + ttl_us
        };
        if let Some(fault) = faults.iter().find(forgot) {
            violation.excused_by = Some(format!("{} of {}", fault.kind, fault.target));
        }
    }
    found.extend(jobs(history, &eras));
    found.extend(effects(history, &eras));
    found.extend(counters(history, &eras));
    found.extend(gates(history, &eras));
    found
}

/// The times between losses of the store's history. A recipe that finds nothing on record begins
/// anew, as its documentation says, so only what happened within one era is compared.
struct Eras(Vec<(Micros, Micros)>);

impl Eras {
    fn of(faults: &[&Fault]) -> Self {
        let forgets = faults
            .iter()
            .filter(|it| it.excuse == Some(Excuse::LostHistory));
        Self(forgets.map(|it| (it.from, it.to)).collect())
    }

    /// The era of something that took from `asked` to `at`; `None` = it was under way while the
    /// store forgot.
    fn at(&self, asked: Micros, at: Micros) -> Option<usize> {
        let meanwhile = |(from, to): &&(Micros, Micros)| *from <= at && *to >= asked;
        if self.0.iter().any(|it| meanwhile(&it)) {
            return None;
        }
        Some(self.0.iter().filter(|(_, to)| *to < asked).count())
    }
}

fn steps(history: &[Entry]) -> impl Iterator<Item = (u32, &RecipeStep)> {
    history.iter().filter_map(|entry| match &entry.event {
        Event::Recipe(step) => Some((entry.worker, step)),
        _ => None,
    })
}

fn broken(promise: Promise, at: Micros, detail: String) -> Violation {
    Violation {
        promise,
        at,
        detail,
        excused_by: None,
    }
}

/// One leader's work.
struct Term {
    worker: u32,
    term: u64,
    from: Micros,
    /// `None` = it was killed, or the run ended.
    to: Option<Micros>,
}

/// Elections in which the work of one leader was not over when that of the next one began, or
/// whose terms do not rise.
///
/// A process that stood still within a lease of the end of its work is left out: it may run on for
/// a moment when it wakes up.
fn leaders(history: &[Entry], stalls: &Stalls, eras: &Eras, ttl_us: Micros) -> Vec<Violation> {
    let mut elections: BTreeMap<&str, Vec<Term>> = BTreeMap::new();
    for (worker, step) in steps(history) {
        match step {
            RecipeStep::Leads { election, term, at } => {
                elections.entry(election).or_default().push(Term {
                    worker,
                    term: *term,
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
    let mut found = Vec::new();
    for (election, mut terms) in elections {
        terms.sort_by_key(|it| it.from);
        for (at, next) in terms.iter().enumerate() {
            for before in &terms[..at] {
                let Some(to) = before.to else { continue };
                let stood = !stalls.ran_through(before.worker, to.saturating_sub(ttl_us), to);
                if to > next.from && !stood {
                    found.push(broken(
                        Promise::OneLeader,
                        next.from,
                        format!(
                            "{election}: process {} led in term {} for {} us after process {} \
                             had begun term {}",
                            before.worker,
                            before.term,
                            to - next.from,
                            next.worker,
                            next.term
                        ),
                    ));
                }
            }
            let era = eras.at(next.from, next.from);
            let same = terms[..at]
                .iter()
                .filter(|it| eras.at(it.from, it.from) == era);
            let highest = same.map(|it| it.term).max();
            // A process that stood still between its grant and its work begins late.
            let stood =
                !stalls.ran_through(next.worker, next.from.saturating_sub(ttl_us), next.from);
            if let Some(highest) = highest
                && highest >= next.term
                && !stood
            {
                found.push(broken(
                    Promise::OneLeader,
                    next.from,
                    format!(
                        "{election}: process {} began term {} after term {highest}",
                        next.worker, next.term
                    ),
                ));
            }
        }
    }
    found
}

/// Jobs that were started twice in a period. A start is put on record between the question and the
/// first step of the job, so only pairs that are too close either way count.
fn jobs(history: &[Entry], eras: &Eras) -> Vec<Violation> {
    let mut jobs: BTreeMap<_, Vec<(Micros, Micros, u64)>> = BTreeMap::new();
    for (_, step) in steps(history) {
        if let RecipeStep::JobRuns {
            job,
            period_us,
            asked,
            at,
            ..
        } = step
            && let Some(era) = eras.at(*asked, *at)
        {
            let runs = jobs.entry((job, era)).or_default();
            runs.push((*asked, *at, *period_us));
        }
    }
    let mut found = Vec::new();
    for ((job, _), mut runs) in jobs {
        runs.sort_by_key(|run| run.1);
        for (at, (asked, begun, period)) in runs.iter().enumerate() {
            let least = period * TENTHS / 10 - TICK_US;
            let near = |other: &&(Micros, Micros, u64)| {
                *begun < other.0 + least && other.1 < *asked + least
            };
            if let Some(other) = runs[..at].iter().find(near) {
                found.push(broken(
                    Promise::OncePerPeriod,
                    *begun,
                    format!(
                        "{job:?} ran twice within {} ms, and its period is {} ms",
                        (begun - other.0) / 1000,
                        period / 1000
                    ),
                ));
            }
        }
    }
    found
}

/// Effects that happened twice, and callers who were told of another one.
fn effects(history: &[Entry], eras: &Eras) -> Vec<Violation> {
    let mut made: BTreeMap<(&str, Option<usize>), u64> = BTreeMap::new();
    let mut found = Vec::new();
    for (worker, step) in steps(history) {
        if let RecipeStep::Made {
            key,
            value,
            asked,
            at,
        } = step
            && let era @ Some(_) = eras.at(*asked, *at)
            && made.insert((key, era), *value).is_some()
        {
            let detail = format!("{key:?} was made again, by process {worker}");
            found.push(broken(Promise::OncePerKey, *at, detail));
        }
    }
    for (worker, step) in steps(history) {
        if let RecipeStep::Told {
            key,
            value,
            asked,
            at,
        } = step
            && let era @ Some(_) = eras.at(*asked, *at)
            && made.get(&(key.as_str(), era)).is_some_and(|it| it != value)
        {
            let detail = format!("process {worker} was told of {key:?} what never happened");
            found.push(broken(Promise::OncePerKey, *at, detail));
        }
    }
    found
}

/// Counts that two callers got alike, or that fell although nobody marked anything as read.
fn counters(history: &[Entry], eras: &Eras) -> Vec<Violation> {
    /// When it was asked for and answered, and what was unread then.
    type Count = (Micros, Micros, u64);
    let mut counts: BTreeMap<(String, usize), Vec<Count>> = BTreeMap::new();
    for (_, step) in steps(history) {
        if let RecipeStep::Counted {
            conversation,
            in_conversation,
            total,
            asked,
            at,
        } = step
            && let Some(era) = eras.at(*asked, *at)
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
            // The highest of those who had their answer before this one asked.
            while let Some((.., before)) = answered.next_if(|it| it.1 < asked) {
                highest = highest.max(before);
            }
            if value <= highest || !seen.insert(value) {
                let detail = format!("{of} was counted up to {value}, and had been {highest}");
                found.push(broken(Promise::CountersAddUp, at, detail));
            }
        }
    }
    found
}

/// Holders that a gate let through after a later one.
fn gates(history: &[Entry], eras: &Eras) -> Vec<Violation> {
    let mut admitted: BTreeMap<usize, Vec<(Micros, Micros, u64)>> = BTreeMap::new();
    for (_, step) in steps(history) {
        if let RecipeStep::Admitted { token, asked, at } = step
            && let Some(era) = eras.at(*asked, *at)
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
                let detail = format!("token {token} was let through after token {highest}");
                found.push(broken(Promise::GateHolds, at, detail));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Micros = 1_000;

    fn judged(steps: &[(u32, RecipeStep)], faults: &[&Fault]) -> Vec<Promise> {
        judged_with(steps, faults, &[])
    }

    fn judged_with(
        steps: &[(u32, RecipeStep)],
        faults: &[&Fault],
        stalled: &[(u32, Micros, Micros)],
    ) -> Vec<Promise> {
        let recipe = |(worker, step): &(u32, RecipeStep)| Entry {
            worker: *worker,
            event: Event::Recipe(step.clone()),
        };
        let mut history: Vec<_> = steps.iter().map(recipe).collect();
        for (worker, from, to) in stalled {
            let (worker, from, to) = (*worker, *from, *to);
            let event = Event::Stalled { from, to };
            history.push(Entry { worker, event });
        }
        let stalls = Stalls::of(&history);
        let found = check(&history, faults, &stalls, TTL);
        let open = found.into_iter().filter(|it| it.excused_by.is_none());
        open.map(|it| it.promise).collect()
    }

    fn led(worker: u32, term: u64, from: Micros, to: Micros) -> [(u32, RecipeStep); 2] {
        let election = "e".to_owned();
        let leads = RecipeStep::Leads {
            election: election.clone(),
            term,
            at: from,
        };
        let until = RecipeStep::LedUntil {
            election,
            term,
            at: to,
        };
        [(worker, leads), (worker, until)]
    }

    #[test]
    fn two_leaders() {
        let fair = [led(1, 1, 0, 10), led(2, 2, 10, 20)].concat();
        assert_eq!(judged(&fair, &[]), []);
        let both = [led(1, 1, 0, 11), led(2, 2, 10, 20)].concat();
        assert_eq!(judged(&both, &[]), [Promise::OneLeader]);
        // It stood still, and went on for a moment; later than a lease before, that counts no more.
        assert_eq!(judged_with(&both, &[], &[(1, 5, 10)]), []);
        let late = [led(1, 1, 0, 9_000), led(2, 2, 8_999, 9_500)].concat();
        assert_eq!(judged_with(&late, &[], &[(1, 5, 10)]), [Promise::OneLeader]);
        // Another one stood still.
        assert_eq!(judged_with(&both, &[], &[(3, 5, 10)]), [Promise::OneLeader]);
        let falls = [led(1, 2, 0, 10), led(2, 2, 10, 20)].concat();
        assert_eq!(judged(&falls, &[]), [Promise::OneLeader]);
    }

    #[test]
    fn two_leaders_after_the_store_forgot() {
        let both = [led(1, 1, 0, 11), led(2, 2, 10, 20)].concat();
        let forgot = |from, to| Fault {
            kind: "forget-all".into(),
            target: "redis".into(),
            from,
            to,
            excuse: Some(Excuse::LostHistory),
        };
        assert_eq!(judged(&both, &[&forgot(5, 6)]), []);
        assert_eq!(judged(&both, &[&forgot(11, 12)]), [Promise::OneLeader]);
        let none = Fault {
            excuse: None,
            ..forgot(5, 6)
        };
        assert_eq!(judged(&both, &[&none]), [Promise::OneLeader]);
    }

    #[test]
    fn a_job_that_ran_twice() {
        let runs = |asked, at| {
            let (job, run, period_us) = ("job".to_owned(), asked, 100_000);
            let step = RecipeStep::JobRuns {
                job,
                run,
                period_us,
                asked,
                at,
            };
            (1, step)
        };
        assert_eq!(judged(&[runs(0, 10), runs(90_000, 90_100)], &[]), []);
        let twice = [runs(0, 10), runs(80_000, 80_100)];
        assert_eq!(judged(&twice, &[]), [Promise::OncePerPeriod]);
        // Nobody knows when the first one was put on record, but it may have been in time.
        assert_eq!(judged(&[runs(0, 80_000), runs(90_000, 90_100)], &[]), []);
    }

    #[test]
    fn an_effect_that_happened_twice() {
        let made = |value| {
            let (key, asked, at) = ("key".to_owned(), 1, 1);
            let step = RecipeStep::Made {
                key,
                value,
                asked,
                at,
            };
            (1, step)
        };
        let told = |value| {
            let (key, asked, at) = ("key".to_owned(), 2, 2);
            let step = RecipeStep::Told {
                key,
                value,
                asked,
                at,
            };
            (2, step)
        };
        assert_eq!(judged(&[made(1), told(1), told(1)], &[]), []);
        assert_eq!(judged(&[made(1), told(2)], &[]), [Promise::OncePerKey]);
        let twice = judged(&[made(1), told(1), made(2)], &[]);
        assert!(twice.contains(&Promise::OncePerKey));
    }

    #[test]
    fn counts_that_are_lost() {
        let count = |value, asked, at| {
            let step = RecipeStep::Counted {
                conversation: 0,
                in_conversation: value,
                total: value,
                asked,
                at,
            };
            (1, step)
        };
        // Side by side, in either order.
        assert_eq!(judged(&[count(2, 0, 10), count(1, 1, 9)], &[]), []);
        // Between the two the store forgot everything.
        let forgot = Fault {
            kind: "forget-all".into(),
            target: "redis".into(),
            from: 11,
            to: 12,
            excuse: Some(Excuse::LostHistory),
        };
        let anew = [count(2, 0, 10), count(1, 13, 14)];
        assert_eq!(judged(&anew, &[&forgot]), []);
        assert_eq!(judged(&anew, &[]).len(), 2);
        let within = [count(2, 13, 14), count(1, 15, 16)];
        assert_eq!(judged(&within, &[&forgot]).len(), 2);
        for lost in [
            [count(1, 0, 10), count(1, 1, 9)],
            [count(2, 0, 10), count(1, 11, 12)],
        ] {
            assert!(judged(&lost, &[]).contains(&Promise::CountersAddUp));
        }
    }

    #[test]
    fn a_gate_that_lets_an_earlier_one_through() {
        let admitted = |token, asked, at| (1, RecipeStep::Admitted { token, asked, at });
        assert_eq!(judged(&[admitted(2, 0, 10), admitted(1, 5, 9)], &[]), []);
        let late = [admitted(2, 0, 10), admitted(1, 11, 12)];
        assert_eq!(judged(&late, &[]), [Promise::GateHolds]);
    }
}
