//! Histories of records around a loss of data: what a failover may lose, and similar histories that
//! lose more.

use WriteOutcome::{Conflict, Done, Unknown};

use super::*;

/// Clients may use the old primary for 500 after a failover.
const FAILS_OVER: Limits = Limits {
    record_failover_us: 500,
    ..LIMITS
};

fn failover(from: Micros, to: Micros) -> HistoryEntry {
    fault(from, to, Some(Excuse::FailedOver))
}

/// Returns the promises that are broken on a store with failover.
fn broken_with(fault: HistoryEntry, steps: &[HistoryEntry]) -> Vec<Promise> {
    let history = [&[fault], steps].concat();
    judge(&history, FAILS_OVER).broken_promises()
}

/// The old primary of a cluster confirmed a write 15 to 25 ms after the replica took over.
#[test]
fn a_write_that_the_old_primary_confirmed_after_the_failover_may_be_lost() {
    for (confirmed, excused) in [(225, true), (710, true), (711, false)] {
        let steps = [
            step(100, 110, put(None, 1, Done)),
            step(confirmed, confirmed + 10, put(Some(1), 2, Done)),
            step(800, 810, get(Some(1))),
        ];
        let promises = broken_with(failover(200, 210), &steps);
        assert_eq!(promises.is_empty(), excused, "{confirmed}");
        // Without a failover, and with one that ended before the record was used.
        let history = [&steps[..], &[failover(10, 20)]].concat();
        assert_eq!(broken(&history), [Promise::Linearizable]);
    }
}

#[test]
fn a_stale_read_of_the_old_primary_is_excused_for_as_long() {
    for (read, excused) in [(700, true), (720, false)] {
        let steps = [
            step(100, 110, put(None, 1, Done)),
            step(300, 310, put(Some(1), 2, Done)),
            step(400, 410, get(Some(2))),
            step(read, read + 5, get(Some(1))),
            step(800, 810, get(Some(2))),
        ];
        let promises = broken_with(failover(200, 210), &steps);
        assert_eq!(promises.is_empty(), excused, "{read}");
    }
}

#[test]
fn a_failover_leaves_an_older_state_and_a_lost_history_leaves_none() {
    let written = [
        step(100, 110, put(None, 1, Done)),
        step(120, 130, put(Some(1), 2, Done)),
    ];
    let lost = |from, to| fault(from, to, Some(Excuse::LostHistory));
    for (left, after_failover, after_loss) in [
        (None, true, true),
        (Some(1), true, false),
        (Some(3), false, false),
    ] {
        // The last write shows which state was left.
        let left = [
            step(800, 810, get(left)),
            step(820, 830, put(left, 4, Done)),
        ];
        let steps = [&written[..], &left].concat();
        let kept = broken_with(failover(200, 210), &steps).is_empty();
        assert_eq!(kept, after_failover, "{left:?}");
        let kept = broken_with(lost(200, 210), &steps).is_empty();
        assert_eq!(kept, after_loss, "{left:?}");
    }
}

#[test]
fn a_failover_excuses_no_wrong_answer_before_it_or_after_it() {
    let lost = [
        step(100, 110, put(None, 1, Done)),
        step(800, 810, get(None)),
        step(820, 830, put(None, 2, Done)),
    ];
    assert_eq!(broken_with(failover(200, 210), &lost), []);
    let wrong: [&[HistoryEntry]; 5] = [
        // A stale read long after the failover.
        &[step(840, 850, get(None))],
        // The lost value comes back.
        &[step(840, 850, get(Some(1)))],
        // A lost update.
        &[
            step(840, 850, put(Some(2), 3, Done)),
            step(860, 870, put(Some(2), 4, Done)),
        ],
        // A stale read before the failover.
        &[step(150, 160, get(None))],
        // A value that nobody wrote, read during the failover.
        &[step(205, 206, get(Some(9)))],
    ];
    for wrong in wrong {
        let steps = [&lost[..], wrong].concat();
        let promises = broken_with(failover(200, 210), &steps);
        assert_eq!(promises, [Promise::Linearizable], "{wrong:?}");
    }
}

#[test]
fn no_failover_excuses_a_version_that_is_used_twice() {
    let twice = |value| RecordOperation::Get {
        seen: Some((value, 10)),
    };
    let steps = [
        step(100, 110, put(None, 1, Done)),
        step(205, 215, put(None, 2, Unknown)),
        step(800, 810, twice(2)),
    ];
    let promises = broken_with(failover(200, 210), &steps);
    assert_eq!(promises, [Promise::Linearizable]);
}

/// Twenty writes during a failover compete for one state, and three reads follow.
#[test]
fn many_writes_during_a_failover_are_judged() {
    let mut steps = vec![step(100, 110, put(None, 1, Done))];
    for value in 2..22 {
        steps.push(step(205, 230, put(Some(1), value, Unknown)));
        steps.push(step(205, 230, put(Some(1), value + 100, Conflict)));
    }
    steps.push(step(220, 225, put(Some(1), 50, Done)));
    let read = |value| [step(800, 810, get(value)), step(820, 830, get(value))];
    let right = [&steps[..], &read(Some(7))].concat();
    assert_eq!(broken_with(failover(200, 210), &right), []);
    let wrong = [&steps[..], &read(Some(107))].concat();
    assert_eq!(
        broken_with(failover(200, 210), &wrong),
        [Promise::Linearizable]
    );
}
