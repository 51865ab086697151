//! For each recipe: histories that break its promise, and similar histories that keep its promise.

use super::*;
use crate::chaos::history::{Excuse, HoldMode, InjectedFault};

const TTL: Micros = 1_000;

fn judged(steps: &[(u32, RecipeStep)], faults: &[&InjectedFault]) -> Vec<Promise> {
    judged_with(steps, faults, &[])
}

fn judged_with(
    steps: &[(u32, RecipeStep)],
    faults: &[&InjectedFault],
    stalled: &[(u32, Micros, Micros)],
) -> Vec<Promise> {
    let recipe = |(worker, step): &(u32, RecipeStep)| HistoryEntry {
        worker: *worker,
        event: Event::Recipe(step.clone()),
    };
    let mut history: Vec<_> = steps.iter().map(recipe).collect();
    for (worker, from, to) in stalled {
        let (worker, from, to) = (*worker, *from, *to);
        let event = Event::Stalled { from, to };
        history.push(HistoryEntry { worker, event });
    }
    let fault = |fault: &&InjectedFault| HistoryEntry {
        worker: 0,
        event: Event::Fault((*fault).clone()),
    };
    history.extend(faults.iter().map(fault));
    // A lock of process 1, to name its session.
    history.push(HistoryEntry {
        worker: 1,
        event: Event::Granted {
            hold: 1,
            name: "lock".into(),
            token: 7,
            asked: 0,
            at: 0,
            resumed: None,
            mode: HoldMode::Alone,
        },
    });
    let stalls = Stalls::of_history(&history);
    let limits = Limits {
        ttl_us: TTL,
        notice_us: 0,
        failover_us: 0,
        record_failover_us: 0,
    };
    let excuses = Excuses::of_history(&history, limits);
    let found = check(&history, &excuses, &stalls, limits);
    let open = found.into_iter().filter(|it| it.excused_by.is_none());
    open.map(|it| it.promise).collect()
}

fn led(worker: u32, term: u64, from: Micros, to: Micros) -> [(u32, RecipeStep); 2] {
    let election = "e".to_owned();
    let leads = RecipeStep::Leads {
        election: election.clone(),
        term,
        asked: from,
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
fn two_leaders_at_once_are_a_violation() {
    let fair = [led(1, 1, 0, 10), led(2, 2, 10, 20)].concat();
    assert_eq!(judged(&fair, &[]), []);
    let both = [led(1, 1, 0, 11), led(2, 2, 10, 20)].concat();
    assert_eq!(judged(&both, &[]), [Promise::OneLeader]);
    // The first leader was stopped during the overlap. An earlier stop does not excuse the overlap.
    assert_eq!(judged_with(&both, &[], &[(1, 5, 11)]), []);
    assert_eq!(judged_with(&both, &[], &[(1, 5, 10)]), [Promise::OneLeader]);
    let late = [led(1, 1, 0, 9_000), led(2, 2, 8_999, 9_500)].concat();
    assert_eq!(judged_with(&late, &[], &[(1, 5, 10)]), [Promise::OneLeader]);
    // Another process was stopped.
    assert_eq!(judged_with(&both, &[], &[(3, 5, 11)]), [Promise::OneLeader]);
    let falls = [led(1, 2, 0, 10), led(2, 2, 10, 20)].concat();
    assert_eq!(judged(&falls, &[]), [Promise::OneLeader]);
}

#[test]
fn two_leaders_are_excused_after_the_store_lost_data() {
    let both = [led(1, 1, 0, 11), led(2, 2, 10, 20)].concat();
    let forgot = |from, to| InjectedFault {
        kind: "forget-all".into(),
        target: "redis".into(),
        from,
        to,
        excuse: Some(Excuse::LostHistory),
    };
    assert_eq!(judged(&both, &[&forgot(5, 6)]), []);
    assert_eq!(judged(&both, &[&forgot(11, 12)]), [Promise::OneLeader]);
    let none = InjectedFault {
        excuse: None,
        ..forgot(5, 6)
    };
    assert_eq!(judged(&both, &[&none]), [Promise::OneLeader]);
    // The older leader works for one lease beside the next, and not for 50.
    for (to, excused) in [(TTL + 6, true), (TTL + 7, false), (50 * TTL, false)] {
        let both = [led(1, 1, 0, to), led(2, 2, 6, 60 * TTL)].concat();
        assert_eq!(judged(&both, &[&forgot(5, 6)]).is_empty(), excused, "{to}");
        // Many short terms beside it, during a long fault.
        let short = (0..).map(|at| (at + 2, 6 + at * 100));
        let short = short.take_while(|(_, from)| *from < to);
        let short = short.flat_map(|(term, from)| led(2, term, from, from + 50));
        let all: Vec<_> = led(1, 1, 0, to).into_iter().chain(short).collect();
        let promises = judged(&all, &[&forgot(5, 90 * TTL)]);
        assert_eq!(promises.is_empty(), excused, "{to}");
    }
    // A leader that began after the loss.
    let anew = [led(1, 1, 10, 20), led(2, 2, 15, 30)].concat();
    assert_eq!(judged(&anew, &[&forgot(5, 6)]), [Promise::OneLeader]);
    let falls = [led(1, 2, 10, 20), led(2, 1, 15, 30)].concat();
    let twice = [Promise::OneLeader, Promise::OneLeader];
    assert_eq!(judged(&falls, &[&forgot(5, 6)]), twice);
}

#[test]
fn an_ended_session_excuses_the_leader_of_its_process_alone() {
    let ended = InjectedFault {
        kind: "expire-session".into(),
        target: "zookeeper".into(),
        from: 5,
        to: 6,
        excuse: Some(Excuse::EndedSession {
            name: "lock".into(),
            token: 7,
        }),
    };
    for (older, newer, excused) in [(1, 2, true), (2, 1, false), (2, 3, false)] {
        let both = [led(older, 1, 0, 11), led(newer, 2, 10, 20)].concat();
        assert_eq!(judged(&both, &[&ended]).is_empty(), excused, "{older}");
    }
}

#[test]
fn a_job_that_runs_twice_in_a_period_is_a_violation() {
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
    // A clock that was put forward between the starts excuses them if it went far enough.
    let stepped = |from, by_us| InjectedFault {
        kind: "step-clock".into(),
        target: "postgres".into(),
        from,
        to: from + 1,
        excuse: Some(Excuse::SteppedClock { by_us }),
    };
    assert_eq!(judged(&twice, &[&stepped(50_000, 20_000)]), []);
    for other in [stepped(50_000, 1_000), stepped(80_200, 20_000)] {
        assert_eq!(judged(&twice, &[&other]), [Promise::OncePerPeriod]);
    }
    // Two steps count together, and a step before the second start excuses no third start.
    let steps = [stepped(30_000, 6_000), stepped(50_000, 6_000)];
    assert_eq!(judged(&twice, &[&steps[0], &steps[1]]), []);
    let thrice = [runs(0, 10), runs(50_000, 50_100), runs(80_000, 80_100)];
    let step = stepped(20_000, 60_000);
    assert_eq!(judged(&thrice, &[&step]), [Promise::OncePerPeriod]);
    // The first start may have been recorded early enough, so this is no violation.
    assert_eq!(judged(&[runs(0, 80_000), runs(90_000, 90_100)], &[]), []);
}

#[test]
fn an_effect_that_happens_twice_is_a_violation() {
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
fn lost_counts_are_violations() {
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
    // Concurrent counts may be answered in either order.
    assert_eq!(judged(&[count(2, 0, 10), count(1, 1, 9)], &[]), []);
    // The store lost its data between the two counts.
    let forgot = InjectedFault {
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
fn a_gate_that_admits_an_earlier_holder_is_a_violation() {
    let admitted = |token, asked, at| (1, RecipeStep::Admitted { token, asked, at });
    assert_eq!(judged(&[admitted(2, 0, 10), admitted(1, 5, 9)], &[]), []);
    let late = [admitted(2, 0, 10), admitted(1, 11, 12)];
    assert_eq!(judged(&late, &[]), [Promise::GateHolds]);
}
