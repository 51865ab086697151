//! Histories that a fault excuses, and similar histories that it does not: each excuse is bound to
//! the lock, to the session, and to the time of one lease.

use super::*;

/// A guard is valid until `until`. From 300 on, another process gets and releases its lock every
/// 100, and is valid for 50 each time.
fn beside_short_ones(until: Micros) -> Vec<HistoryEntry> {
    let begins = (300..until).step_by(100);
    let short = begins
        .zip(2..)
        .flat_map(|(at, token)| hold(2, token, at, at + 50));
    hold(1, 1, 0, until).into_iter().chain(short).collect()
}

#[test]
fn a_guard_beside_many_short_ones_is_excused_for_one_lease() {
    for (until, excused) in [(1_250, true), (1_400, false), (5_000, false)] {
        // A fault that lasts longer than all guards.
        let failover = fault(200, 9_000, Some(Excuse::FailedOver));
        let history = [beside_short_ones(until), vec![failover]].concat();
        let verdict = judge(&history, LIMITS);
        assert_eq!(verdict.broken_promises().is_empty(), excused, "{until}");
        // Each overlap lasts 50 at most. The guard was lost from the first of them to the last.
        let last = until.min((until - 1) / 100 * 100 + 50);
        assert_eq!(verdict.longest_overlap_us, last - 300, "{until}");
    }
}

#[test]
fn two_guards_of_one_ticket_are_excused_for_one_lease_together() {
    for (last, excused) in [(1_300, true), (1_301, false)] {
        let mut resumed = hold(3, 1, 700, last);
        resumed[0].event = granted(1, 250, Some(7));
        let history = [
            hold(1, 1, 0, 600),
            resumed,
            vec![fault(200, 9_000, Some(Excuse::FailedOver))],
            hold(2, 2, 300, 2_000),
        ];
        assert_eq!(broken(&history.concat()).is_empty(), excused, "{last}");
    }
}

/// Process 2 asks its guard once. The call begins before the answer.
#[test]
fn a_guard_that_was_asked_once_breaks_exclusion() {
    let mut asked_once = hold(2, 2, 300, 310);
    asked_once.remove(2);
    if let Event::Valid { from, .. } = &mut asked_once[1].event {
        *from = 290;
    }
    let history = [hold(1, 1, 0, 500), asked_once].concat();
    let verdict = judge(&history, LIMITS);
    assert_eq!(verdict.broken_promises(), [Promise::Exclusion]);
    assert_eq!(verdict.longest_overlap_us, 0);
}

/// The winner of one overlap may lose its own lock later.
#[test]
fn an_overlap_after_a_pause_longer_than_a_lease_has_its_own_excuse() {
    let history = |faults: &[HistoryEntry]| {
        [
            hold(1, 1, 0, 400),
            hold(2, 2, 300, 5_400),
            hold(3, 3, 5_300, 6_000),
            faults.to_vec(),
        ]
        .concat()
    };
    let first = fault(200, 210, removed(NAME));
    let second = fault(5_200, 5_210, removed(NAME));
    let both = history(&[first.clone(), second]);
    assert_eq!(broken(&both), []);
    assert_eq!(judge(&both, LIMITS).longest_overlap_us, 100);
    assert_eq!(broken(&history(&[first])), [Promise::Exclusion]);
}

#[test]
fn an_ended_session_excuses_the_locks_of_its_process_alone() {
    // Process 1 holds two locks. The session is named by one of them.
    let of_another = |mut all: Vec<HistoryEntry>| {
        for line in &mut all {
            if let Event::Granted { name, .. } = &mut line.event {
                *name = "another".into();
            }
        }
        all
    };
    let overlap = |older: u32, newer: u32| {
        let guards = [hold(older, 5, 0, 500), hold(newer, 6, 300, 600)].concat();
        [hold(1, 1, 0, 150), of_another(guards)].concat()
    };
    let ended = fault(200, 210, ended_session(1));
    for (older, newer, excused) in [(1, 2, true), (2, 1, false), (2, 3, false)] {
        let history = [overlap(older, newer), vec![ended.clone()]].concat();
        assert_eq!(broken(&history).is_empty(), excused, "{older} {newer}");
    }
}

/// Each step of the clock shortens the lease that the older guard renewed last.
#[test]
fn steps_of_the_clock_since_the_last_renewal_count_together() {
    let overlap = [hold(1, 1, 0, 500), hold(2, 2, 300, 600)].concat();
    let step = |from, by_us| fault(from, from + 1, Some(Excuse::SteppedClock { by_us }));
    for (steps, excused) in [
        ([step(100, 150), step(200, 50)], true),
        ([step(100, 150), step(200, 49)], false),
        // The second step came after the second grant.
        ([step(100, 150), step(400, 50)], false),
    ] {
        let history = [&overlap[..], &steps].concat();
        assert_eq!(broken(&history).is_empty(), excused, "{steps:?}");
    }
    // The first step came before the last renewal.
    let late = [hold(1, 1, 0, 5_500), hold(2, 2, 5_300, 5_600)].concat();
    let history = [late, vec![step(100, 150), step(5_200, 50)]].concat();
    assert_eq!(broken(&history), [Promise::Exclusion]);
}
