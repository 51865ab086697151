//! Holders that share a lock, and holders that must not.

use super::*;

/// Returns a hold with this mode, which was valid from `first` to `last`.
fn shared(
    worker: u32,
    token: u64,
    [first, last]: [Micros; 2],
    as_: &HoldMode,
) -> Vec<HistoryEntry> {
    let mut history = hold(worker, token, first, last);
    if let Event::Granted { mode, .. } = &mut history[0].event {
        mode.clone_from(as_);
    }
    history
}

fn permits(indices: &[u32]) -> HoldMode {
    HoldMode::Permits {
        indices: indices.to_vec(),
        of: 3,
    }
}

#[test]
fn only_holders_that_exclude_each_other_break_exclusion() {
    use HoldMode::{Reads, Writes};
    for (one, other, right) in [
        (Reads, Reads, true),
        (Reads, Writes, false),
        (Writes, Reads, false),
        (Writes, Writes, false),
        (permits(&[0]), permits(&[1, 2]), true),
        (permits(&[0, 1]), permits(&[1]), false),
    ] {
        let both = [shared(1, 1, [0, 20], &one), shared(2, 2, [10, 30], &other)];
        assert_eq!(
            broken(&both.concat()).is_empty(),
            right,
            "{one:?} {other:?}"
        );
    }
}

#[test]
fn a_reader_hides_no_writer_behind_it() {
    use HoldMode::{Reads, Writes};
    let history = [
        shared(1, 1, [0, 50], &Reads),
        shared(2, 2, [10, 60], &Reads),
        shared(3, 3, [20, 30], &Writes),
    ];
    assert_eq!(judge(&history.concat(), LIMITS).violations.len(), 2);
}

#[test]
fn permits_that_do_not_exist_break_exclusion() {
    for (indices, right) in [(&[0, 2][..], true), (&[3], false), (&[], false)] {
        let history = shared(1, 1, [0, 10], &permits(indices));
        assert_eq!(broken(&history).is_empty(), right, "{indices:?}");
    }
}

#[test]
fn tokens_of_readers_rise_too() {
    let readers = |second| {
        let one = shared(1, 5, [0, 10], &HoldMode::Reads);
        [one, shared(2, second, [20, 30], &HoldMode::Reads)].concat()
    };
    assert_eq!(broken(&readers(6)), []);
    for second in [4, 5] {
        assert_eq!(broken(&readers(second)), [Promise::TokensRise]);
    }
    // Two readers that entered in one write have one token.
    let together = [
        shared(1, 5, [0, 10], &HoldMode::Reads),
        shared(2, 5, [0, 30], &HoldMode::Reads),
    ];
    assert_eq!(broken(&together.concat()), []);
}

#[test]
fn a_writer_between_a_writer_and_its_reader_is_a_violation() {
    let downgraded = |reader: u64| {
        let mut history = shared(1, 5, [0, 10], &HoldMode::Writes);
        history.extend(shared(1, reader, [30, 40], &HoldMode::Reads));
        history.push(entry(
            1,
            Event::Downgraded {
                from: 5,
                to: reader,
            },
        ));
        history
    };
    let writer = shared(2, 6, [15, 20], &HoldMode::Writes);
    let history = [downgraded(7), writer.clone()].concat();
    assert_eq!(broken(&history), [Promise::NoWriterBetween]);
    let reader = shared(2, 6, [15, 20], &HoldMode::Reads);
    assert_eq!(broken(&[downgraded(7), reader].concat()), []);
    let lost = fault(12, 13, Some(Excuse::LostHistory));
    assert_eq!(broken(&[downgraded(7), writer, vec![lost]].concat()), []);
}

/// A client may read the list of holders from a former primary for some time.
#[test]
fn a_failover_of_records_excuses_holders_of_shared_locks_for_longer() {
    let limits = Limits {
        record_failover_us: 300,
        ..LIMITS
    };
    let failover = fault(200, 210, Some(Excuse::FailedOver));
    for (as_, excused) in [(HoldMode::Writes, true), (HoldMode::Alone, false)] {
        let overlap = [
            shared(1, 1, [0, 1_400], &as_),
            shared(2, 2, [300, 1_401], &as_),
        ];
        let history = [overlap.concat(), vec![failover.clone()]].concat();
        let promises = judge(&history, limits).broken_promises();
        assert_eq!(promises.is_empty(), excused, "{as_:?}");
    }
}
