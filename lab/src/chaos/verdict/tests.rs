//! For each promise: a history that breaks it, and a similar history that keeps it.

mod excuses;
mod modes;
mod records;

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::chaos::history::{
    CallKind, Event, Excuse, FencedAnswer, HistoryEntry, HoldEnd, HoldMode, InjectedFault, Micros,
    RecordOperation, RecordStep, WriteOutcome,
};

const LIMITS: Limits = Limits {
    ttl_us: 1_000,
    notice_us: 250,
    failover_us: 0,
    record_failover_us: 0,
};
const NAME: &str = "lock";

fn entry(worker: u32, event: Event) -> HistoryEntry {
    HistoryEntry { worker, event }
}

/// Returns a hold that was valid from `first` to `last` and released then.
fn hold(worker: u32, token: u64, first: Micros, last: Micros) -> Vec<HistoryEntry> {
    let valid = |at| Event::Valid {
        hold: token,
        from: at,
        to: at,
        deadline: last + 100,
    };
    vec![
        entry(worker, granted(token, first, None)),
        entry(worker, valid(first)),
        entry(worker, valid(last)),
        entry(
            worker,
            Event::Ended {
                hold: token,
                at: last,
                deadline: last + 100,
                how: HoldEnd::Released,
            },
        ),
    ]
}

fn granted(token: u64, at: Micros, resumed: Option<u64>) -> Event {
    Event::Granted {
        hold: token,
        name: NAME.into(),
        token,
        asked: at,
        at,
        resumed,
        mode: HoldMode::Alone,
    }
}

fn fault(from: Micros, to: Micros, excuse: Option<Excuse>) -> HistoryEntry {
    let fault = InjectedFault {
        kind: "fault".into(),
        target: "store".into(),
        from,
        to,
        excuse,
    };
    entry(0, Event::Fault(fault))
}

fn removed(name: &str) -> Option<Excuse> {
    Some(Excuse::Removed { name: name.into() })
}

/// The session of a hold of [`NAME`] was ended.
fn ended_session(token: u64) -> Option<Excuse> {
    let name = NAME.into();
    Some(Excuse::EndedSession { name, token })
}

/// Returns the promises that are broken without an excuse.
fn broken(history: &[HistoryEntry]) -> Vec<Promise> {
    judge(history, LIMITS).broken_promises()
}

#[test]
fn consecutive_holds_break_no_promise() {
    let history = [hold(1, 1, 0, 10), hold(2, 2, 11, 20), hold(1, 3, 20, 30)].concat();
    assert_eq!(broken(&history), []);
}

#[test]
fn two_guards_valid_at_one_instant_break_exclusion() {
    let history = [hold(1, 1, 0, 12), hold(2, 2, 11, 20)].concat();
    assert_eq!(broken(&history), [Promise::Exclusion]);
    assert_eq!(judge(&history, LIMITS).longest_overlap_us, 1);
}

#[test]
fn a_long_hold_violates_exclusion_once_per_short_hold() {
    let history = [hold(1, 1, 0, 100), hold(2, 2, 10, 11), hold(3, 3, 50, 51)].concat();
    let verdict = judge(&history, LIMITS);
    assert_eq!(verdict.violations.len(), 2, "{:?}", verdict.violations);
}

#[test]
fn overlapping_holds_of_different_names_break_no_promise() {
    let mut other = hold(2, 2, 5, 20);
    if let Event::Granted { name, .. } = &mut other[0].event {
        *name = "another".into();
    }
    assert_eq!(broken(&[hold(1, 1, 0, 12), other].concat()), []);
}

#[test]
fn an_overlap_is_excused_only_by_a_fault_that_can_explain_it() {
    let overlap = [hold(1, 1, 0, 500), hold(2, 2, 300, 600)].concat();
    for (fault, excused) in [
        (fault(200, 210, removed(NAME)), true),
        (fault(200, 210, removed("another")), false),
        (fault(200, 210, Some(Excuse::LostHistory)), true),
        (
            fault(200, 210, Some(Excuse::SteppedClock { by_us: 200 })),
            true,
        ),
        // The step of the clock is shorter than the overlap of the two guards.
        (
            fault(200, 210, Some(Excuse::SteppedClock { by_us: 50 })),
            false,
        ),
        (fault(200, 210, ended_session(1)), true),
        (fault(200, 210, ended_session(2)), false),
        (fault(200, 210, None), false),
        // The fault came after the second grant.
        (fault(400, 410, removed(NAME)), false),
    ] {
        let history = [overlap.clone(), vec![fault.clone()]].concat();
        assert_eq!(broken(&history).is_empty(), excused, "{fault:?}");
    }
    // No fault excuses an overlap longer than a TTL.
    let long = [hold(1, 1, 0, 5_000), hold(2, 2, 300, 5_000)].concat();
    let history = [long, vec![fault(200, 210, removed(NAME))]].concat();
    assert_eq!(broken(&history), [Promise::Exclusion]);
}

/// A ticket passes a lock on. The excuse of an overlap depends on the first request for the lock,
/// and not on the request that resumed it.
#[test]
fn a_resumed_guard_is_excused_as_the_guard_before_it() {
    for (first, excused) in [(100, true), (250, false)] {
        let mut resumed = hold(3, 1, 300, 500);
        resumed[0].event = granted(1, 300, Some(7));
        let history = [
            hold(1, 1, first, first + 10),
            vec![fault(200, 210, Some(Excuse::FailedOver))],
            resumed,
            hold(2, 2, 400, 600),
        ];
        assert_eq!(broken(&history.concat()).is_empty(), excused, "{first}");
    }
}

/// A failover may last longer than a lease. The allowed overlap must not grow with the failover.
#[test]
fn an_overlap_that_outlasts_a_lease_is_not_excused_by_a_long_fault() {
    let failover = fault(200, 5_000, Some(Excuse::FailedOver));
    for (last, excused) in [(1_300, true), (1_301, false)] {
        let overlap = [hold(1, 1, 0, last), hold(2, 2, 300, last + 1)].concat();
        let history = [overlap, vec![failover.clone()]].concat();
        assert_eq!(broken(&history).is_empty(), excused, "{last}");
    }
    // A failover of a cluster may take longer than a lease.
    let overlap = [hold(1, 1, 0, 1_301), hold(2, 2, 300, 1_302)].concat();
    let history = [overlap, vec![failover]].concat();
    let of_a_cluster = Limits {
        failover_us: 500,
        ..LIMITS
    };
    assert!(judge(&history, of_a_cluster).broken_promises().is_empty());
    // The old primary of a cluster may grant a lock shortly after the failover.
    let failover = fault(200, 210, Some(Excuse::FailedOver));
    for (first, excused) in [(710, true), (711, false)] {
        let overlap = [hold(1, 1, first, 800), hold(2, 2, first + 5, 810)].concat();
        let history = [overlap, vec![failover.clone()]].concat();
        assert_eq!(broken(&history), [Promise::Exclusion], "{first}");
        let promises = judge(&history, of_a_cluster).broken_promises();
        assert_eq!(promises.is_empty(), excused, "{first}");
    }
    // Other faults get no extra time.
    let overlap = [hold(1, 1, 0, 1_301), hold(2, 2, 300, 1_302)].concat();
    let forgot = fault(200, 5_000, Some(Excuse::LostHistory));
    let history = [overlap, vec![forgot]].concat();
    let promises = judge(&history, of_a_cluster).broken_promises();
    assert_eq!(promises, [Promise::Exclusion]);
}

#[test]
fn an_excused_overlap_hides_no_other_overlap() {
    let removed = fault(200, 210, removed(NAME));
    let old = [hold(1, 1, 0, 900), vec![removed]].concat();
    let one_after_the_other = [hold(2, 2, 300, 400), hold(3, 3, 410, 500)].concat();
    assert_eq!(broken(&[old.clone(), one_after_the_other].concat()), []);
    let together = [hold(2, 2, 300, 400), hold(3, 3, 350, 500)].concat();
    assert_eq!(broken(&[old, together].concat()), [Promise::Exclusion]);
}

#[test]
fn no_fault_excuses_a_token_that_falls() {
    let falls = [hold(1, 9, 0, 10), hold(2, 5, 300, 310)].concat();
    for excuse in [removed(NAME), Some(Excuse::LostHistory)] {
        let history = [falls.clone(), vec![fault(200, 210, excuse)]].concat();
        assert_eq!(broken(&history), [Promise::TokensRise]);
    }
}

/// The store granted the lock to hold 5, lost its data, and granted the lock to hold 9. The answer
/// for hold 5 arrives after the answer for hold 9.
#[test]
fn a_fault_after_the_request_excuses_a_late_grant() {
    let mut late = hold(2, 5, 400, 450);
    if let Event::Granted { asked, .. } = &mut late[0].event {
        *asked = 100;
    }
    let both = [hold(1, 9, 350, 420), late].concat();
    let broken_after = |fault| broken(&[both.clone(), vec![fault]].concat());
    let lost = Some(Excuse::LostHistory);
    assert_eq!(broken_after(fault(200, 210, lost.clone())), []);
    // The second hold was requested after the fault.
    assert_eq!(broken_after(fault(50, 60, lost)), [Promise::Exclusion]);
    assert_eq!(broken_after(fault(200, 210, None)), [Promise::Exclusion]);
}

#[test]
fn tokens_that_do_not_rise_are_violations() {
    for second in [3, 5] {
        let mut history = [hold(1, 5, 0, 10), hold(2, 9, 20, 30)].concat();
        if let Event::Granted { token, .. } = &mut history[4].event {
            *token = second;
        }
        assert_eq!(broken(&history), [Promise::TokensRise]);
    }
}

#[test]
fn a_ticket_resumed_twice_is_a_violation() {
    let mut history = [hold(1, 5, 0, 10), hold(2, 6, 20, 30)].concat();
    history[4].event = Event::Granted {
        hold: 6,
        name: NAME.into(),
        token: 5,
        asked: 20,
        at: 20,
        resumed: Some(7),
        mode: HoldMode::Alone,
    };
    assert_eq!(broken(&history), []);
    history.push(entry(3, granted(8, 40, Some(7))));
    assert_eq!(broken(&history), [Promise::TicketsOnce]);
    for (fault, excused) in [
        (fault(30, 35, Some(Excuse::FailedOver)), true),
        (fault(5, 19, Some(Excuse::FailedOver)), false),
        (fault(41, 45, Some(Excuse::LostHistory)), false),
        (fault(30, 35, removed(NAME)), false),
    ] {
        let history = [&history[..], std::slice::from_ref(&fault)].concat();
        assert_eq!(broken(&history).is_empty(), excused, "{fault:?}");
    }
}

#[test]
fn lost_updates_of_a_fenced_register_are_violations() {
    let wrote = |fenced| {
        let wrote = Event::Wrote {
            name: NAME.into(),
            fenced,
            unfenced_lost: true,
        };
        [entry(1, wrote)]
    };
    assert_eq!(
        broken(&wrote(FencedAnswer::AcceptedAndLost)),
        [Promise::FencedUpdates]
    );
    for right in [FencedAnswer::Accepted, FencedAnswer::Refused] {
        let verdict = judge(&wrote(right), LIMITS);
        assert!(verdict.broken_promises().is_empty());
        assert_eq!(verdict.unfenced_lost, 1);
    }
}

/// Returns a hold with its deadline at 110, in a process that lives until 2,000.
fn lost(told: Option<Micros>) -> Vec<HistoryEntry> {
    let mut history = hold(1, 1, 0, 10);
    history.pop();
    history.push(entry(
        1,
        Event::Ended {
            hold: 1,
            at: 150,
            deadline: 110,
            how: HoldEnd::NotValid,
        },
    ));
    history.extend(told.map(|at| {
        entry(
            1,
            Event::LossNotified {
                hold: 1,
                at,
                deadline: 110,
                reason: "expired".into(),
            },
        )
    }));
    history.push(entry(1, Event::Finished { at: 2_000 }));
    history
}

#[test]
fn late_and_missing_notices_of_a_loss_are_violations() {
    for (told, right) in [
        (Some(100), true),
        (Some(360), true),
        (Some(361), false),
        (None, false),
    ] {
        assert_eq!(broken(&lost(told)).is_empty(), right, "{told:?}");
    }
}

#[test]
fn a_guard_without_a_recorded_end_needs_no_notice() {
    let mut history = lost(None);
    history.retain(|line| !matches!(line.event, Event::Ended { .. }));
    assert_eq!(broken(&history), []);
}

#[test]
fn a_stall_extends_the_time_for_a_notice() {
    let mut history = lost(Some(900));
    history.push(entry(1, Event::Stalled { from: 0, to: 500 }));
    assert_ne!(broken(&history), []);
    // Overlapping stalls must not count twice.
    history.push(entry(1, Event::Stalled { from: 400, to: 649 }));
    assert_ne!(broken(&history), []);
    history.push(entry(1, Event::Stalled { from: 600, to: 650 }));
    assert_eq!(broken(&history), []);
    // Stalls of another process must not count at all.
    for line in &mut history {
        if matches!(line.event, Event::Stalled { .. }) {
            line.worker = 2;
        }
    }
    assert_ne!(broken(&history), []);
}

#[test]
fn times_of_recovery_and_of_notices_are_measured() {
    let mut history = [hold(1, 1, 0, 10), hold(2, 2, 300, 310)].concat();
    history.extend([fault(50, 100, None), fault(200, 290, None)]);
    let recovery = judge(&history, LIMITS).recovery;
    assert_eq!((recovery.count, recovery.longest_us), (2, 200));
    let notice = judge(&lost(Some(150)), LIMITS).notice;
    assert_eq!((notice.count, notice.median_us), (1, 40));
}

#[test]
fn calls_beyond_their_bound_are_violations() {
    let called = Event::Called {
        call: 1,
        what: CallKind::Acquire,
        at: 0,
        bound_us: 5_000_000,
    };
    let answered = |at| Event::Answered {
        call: 1,
        at,
        answer: crate::chaos::history::CallResult::Failed,
    };
    let after = |event| [entry(1, called.clone()), entry(1, event)];
    assert_eq!(broken(&after(answered(6_000_000))), []);
    assert_eq!(broken(&after(answered(6_000_001))), [Promise::CallsEnd]);
    let alive = |at| Event::Usage {
        at,
        resident_kib: 1,
        descriptors: 1,
    };
    assert_eq!(broken(&after(alive(6_000_000))), []);
    assert_eq!(broken(&after(alive(6_000_001))), [Promise::CallsEnd]);
}

#[test]
fn growth_of_memory_or_of_descriptors_is_a_violation() {
    let run = |kib: u64, descriptors: u64| {
        let look = |at: u64| Event::Usage {
            at,
            resident_kib: 1_000 + at * kib,
            descriptors: 10 + at * descriptors,
        };
        (0..30).map(|at| entry(1, look(at))).collect::<Vec<_>>()
    };
    assert_eq!(broken(&run(100, 1)), []);
    assert_eq!(broken(&run(10_000, 0)), [Promise::FlatResources]);
    assert_eq!(broken(&run(0, 10)), [Promise::FlatResources]);
}

#[test]
fn leftovers_and_crashes_are_violations() {
    let problem = |problem| Event::RollCall {
        at: 0,
        task: 1,
        problem,
    };
    assert_eq!(broken(&[entry(1, problem(None))]), []);
    let late = problem(Some("timed out".into()));
    assert_eq!(broken(&[entry(1, late)]), [Promise::Recovery]);
    let left = Event::Left {
        name: NAME.into(),
        holder: "a".into(),
    };
    assert_eq!(broken(&[entry(0, left)]), [Promise::Recovery]);
    let crashed = Event::Crashed { how: "1".into() };
    assert_eq!(broken(&[entry(1, crashed)]), [Promise::NoCrash]);
}

/// Returns an operation on the one record.
fn step(from: Micros, to: Micros, step: RecordOperation) -> HistoryEntry {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let step = RecordStep {
        number: NUMBERS.fetch_add(1, Ordering::Relaxed),
        key: "key".into(),
        from,
        to: Some(to),
        step,
    };
    entry(1, Event::Record(step))
}

/// Returns a read; a version is ten times the value.
fn get(value: Option<u64>) -> RecordOperation {
    RecordOperation::Get {
        seen: value.map(|value| (value, value * 10)),
    }
}

fn put(expected: Option<u64>, value: u64, outcome: WriteOutcome) -> RecordOperation {
    RecordOperation::Put {
        expected,
        value,
        outcome,
        version: (outcome == WriteOutcome::Done).then_some(value * 10),
    }
}

const fn delete(expected: u64, outcome: WriteOutcome) -> RecordOperation {
    RecordOperation::Delete { expected, outcome }
}

#[test]
fn records_with_an_order_are_linearizable() {
    use WriteOutcome::{Conflict, Done, Unknown};
    let right: [&[HistoryEntry]; 7] = [
        &[step(0, 1, put(None, 1, Done)), step(2, 3, get(Some(1)))],
        // The read and the write were concurrent, so either may be first.
        &[step(0, 5, put(None, 1, Done)), step(1, 2, get(None))],
        &[step(0, 5, put(None, 1, Done)), step(1, 2, get(Some(1)))],
        // One of two writes succeeded.
        &[
            step(0, 5, put(None, 1, Done)),
            step(0, 5, put(None, 2, Conflict)),
        ],
        // A write without an answer may have happened, late, or never.
        &[
            step(0, 1, put(None, 1, Unknown)),
            step(2, 3, get(None)),
            step(4, 5, get(Some(1))),
        ],
        &[step(0, 1, put(None, 1, Unknown)), step(2, 3, get(None))],
        &[
            step(0, 1, put(None, 1, Done)),
            step(2, 3, delete(1, Done)),
            step(4, 5, put(None, 2, Done)),
        ],
    ];
    for history in right {
        assert_eq!(broken(history), [], "{history:?}");
    }
}

/// A killed process has sent more requests than it got answers.
#[test]
fn a_write_without_an_answer_may_have_happened() {
    let asked = |number| {
        let step = RecordStep {
            number,
            key: "key".into(),
            from: 0,
            to: None,
            step: put(None, 1, WriteOutcome::Unknown),
        };
        entry(7, Event::Record(step))
    };
    assert_eq!(broken(&[asked(1), step(2, 3, get(Some(1)))]), []);
    assert_eq!(broken(&[asked(1), step(2, 3, get(None))]), []);
    let refused = RecordStep {
        number: 1,
        key: "key".into(),
        from: 0,
        to: Some(1),
        step: put(None, 1, WriteOutcome::Conflict),
    };
    let answered = entry(7, Event::Record(refused));
    let history = [asked(1), answered, step(2, 3, get(Some(1)))];
    assert_eq!(broken(&history), [Promise::Linearizable]);
}

#[test]
fn records_without_an_order_are_violations() {
    use WriteOutcome::{Conflict, Done, Unknown};
    let wrong: [&[HistoryEntry]; 9] = [
        // A stale read.
        &[step(0, 1, put(None, 1, Done)), step(2, 3, get(None))],
        // A lost update.
        &[
            step(0, 1, put(None, 1, Done)),
            step(2, 9, put(Some(1), 2, Done)),
            step(2, 9, put(Some(1), 3, Done)),
        ],
        // Both writes succeeded.
        &[
            step(0, 5, put(None, 1, Done)),
            step(0, 5, put(None, 2, Done)),
        ],
        // No write succeeded.
        &[step(0, 5, put(None, 1, Conflict))],
        // A value that nobody wrote.
        &[step(0, 1, get(Some(1)))],
        // A value that was read and then vanished without a delete.
        &[
            step(0, 1, put(None, 1, Unknown)),
            step(2, 3, get(Some(1))),
            step(4, 5, get(None)),
        ],
        // A delete that did nothing.
        &[
            step(0, 1, put(None, 1, Done)),
            step(2, 3, delete(1, Done)),
            step(4, 5, get(Some(1))),
        ],
        // Versions that fall.
        &[
            step(0, 1, put(None, 2, Done)),
            step(2, 3, put(Some(2), 1, Done)),
        ],
        // Two reads that see the two writes in different orders.
        &[
            step(0, 1, put(None, 1, Done)),
            step(2, 9, put(Some(1), 2, Done)),
            step(3, 4, get(Some(2))),
            step(5, 6, get(Some(1))),
        ],
    ];
    for history in wrong {
        assert_eq!(broken(history), [Promise::Linearizable], "{history:?}");
    }
}

#[test]
fn a_record_that_the_store_forgot_is_excused() {
    let stale = [
        step(100, 110, put(None, 1, WriteOutcome::Done)),
        step(200, 210, get(None)),
    ];
    for (fault, excused) in [
        (fault(150, 160, Some(Excuse::LostHistory)), true),
        (fault(150, 160, removed("key")), false),
        (
            fault(150, 160, Some(Excuse::SteppedClock { by_us: 500 })),
            false,
        ),
        (fault(150, 160, ended_session(1)), false),
        (fault(50, 60, Some(Excuse::LostHistory)), false),
        (fault(220, 230, Some(Excuse::LostHistory)), false),
    ] {
        let history = [&stale[..], std::slice::from_ref(&fault)].concat();
        assert_eq!(broken(&history).is_empty(), excused, "{fault:?}");
    }
}

/// Random histories of an honest record, each also with one answer changed.
#[test]
fn one_wrong_answer_in_a_random_history_is_found() {
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut found = 0;
    for _ in 0..300 {
        let mut history = Vec::new();
        let (mut value, mut at) = (None, 0);
        for number in 1..30 {
            at += 10;
            // Each operation takes effect at `at`, and was in flight for some time around it.
            let (from, to) = (at - rng.u64(..10), at + rng.u64(..25));
            let done = match rng.u32(..3) {
                0 => get(value),
                1 => {
                    let right = rng.bool();
                    let expected = if right { value } else { Some(1_000) };
                    let outcome = if right {
                        WriteOutcome::Done
                    } else {
                        WriteOutcome::Conflict
                    };
                    let done = put(expected, number, outcome);
                    if right {
                        value = Some(number);
                    }
                    done
                }
                _ => match value.take() {
                    Some(old) => delete(old, WriteOutcome::Done),
                    None => get(None),
                },
            };
            history.push(step(from, to, done));
        }
        assert_eq!(broken(&history), [], "seed {seed}: {history:?}");
        // This read returns a value that nobody wrote.
        let at = rng.usize(..history.len());
        if let Event::Record(RecordStep { step, .. }) = &mut history[at].event {
            *step = get(Some(5_000));
        }
        found += usize::from(broken(&history) == [Promise::Linearizable]);
    }
    assert_eq!(found, 300, "seed {seed}");
}
