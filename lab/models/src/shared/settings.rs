//! The settings, each with the rules that it is about.

use super::{
    CLIENTS, Client, Entry, Left, Mode, Phase, Record, Shared, Slot, State, Variant,
    model::{COMPATIBLE, HELD_AFTER_DEATH, NOBODY_BETWEEN, NOT_PASSED},
};
use crate::search::check;

/// Nobody holds, no faults, no time.
fn free(modes: [Mode; CLIENTS]) -> Shared {
    let client = |mode| Client {
        is_alive: true,
        phase: Phase::Idle,
        round: 0,
        mode,
        slot: 0,
        has_slot: false,
        guards: 0,
        pending: None,
        dead: Vec::new(),
        seen: 0,
        has_said: false,
        behind: None,
    };
    Shared {
        variant: Variant::Whole,
        start: State {
            now: 0,
            record: Record::default(),
            before: Record::default(),
            versions: 0,
            waiting: None,
            said: 0,
            line: None,
            slots: [Slot::default(); CLIENTS],
            clients: modes.map(client),
            late: Vec::new(),
            unsaid: Vec::new(),
            left: Left::default(),
            highest: 0,
            highest_write: 0,
            failed: None,
            entered: false,
            fell: false,
            passed: false,
            between: false,
            died: false,
            downgraded: false,
        },
        rounds: [1; CLIENTS],
        modes,
        later: modes[0],
        keeps: false,
        leave: true,
        downgrade: false,
        capacity: 2,
        last_tick: 0,
    }
}

/// Client A holds since 0, on record.
fn held_by_a(shared: &mut Shared) {
    let mode = shared.modes[0];
    shared.rounds[0] = 0;
    let start = &mut shared.start;
    start.slots[0] = Slot {
        counter: 1,
        is_held: true,
    };
    start.clients[0] = Client {
        phase: Phase::Holding,
        slot: 1,
        has_slot: true,
        guards: 1,
        ..start.clients[0].clone()
    };
    start.record = Record {
        version: 1,
        entries: vec![Entry {
            client: 0,
            slot: 1,
            mode,
        }],
    };
    start.before = start.record.clone();
    (start.versions, start.highest) = (1, 1);
    if mode == Mode::Write {
        start.highest_write = 1;
    }
}

/// Holders die or are stopped, callers give up, and writes are late.
#[test]
fn late_writes() {
    let mut shared = free([Mode::Read, Mode::Write, Mode::Write]);
    shared.rounds = [2, 1, 0];
    shared.start.left = Left {
        crashes: 1,
        stops: 1,
        timeouts: 1,
        cancels: 1,
        failovers: 0,
    };
    check(
        &shared,
        &[
            (Variant::RemovedWithoutSlot, COMPATIBLE),
            (Variant::RemovedByName, COMPATIBLE),
            (Variant::OlderVersion, COMPATIBLE),
            (Variant::SlotNotChecked, COMPATIBLE),
        ],
    );
}

/// Readers that come again and again, and a writer that waits for them.
#[test]
fn the_line() {
    let mut shared = free([Mode::Read, Mode::Write, Mode::Write]);
    shared.rounds = [1, 1, 2];
    shared.start.left.crashes = 1;
    check(
        &shared,
        &[
            (Variant::WaitingIgnored, NOT_PASSED),
            (Variant::WaitingOfAnotherTrusted, NOT_PASSED),
        ],
    );
}

/// Client A has one of two permits for good; a client dies with the other.
#[test]
fn permits_of_the_dead() {
    let mut shared = free([Mode::Permits(1); CLIENTS]);
    held_by_a(&mut shared);
    shared.leave = false;
    shared.start.left.crashes = 1;
    shared.start.left.timeouts = 1;
    check(
        &shared,
        &[
            (Variant::OneBlockerWatched, HELD_AFTER_DEATH),
            (Variant::DeadEntriesCounted, HELD_AFTER_DEATH),
        ],
    );
}

/// One client wants both permits, others one.
#[test]
fn several_permits() {
    let mut shared = free([Mode::Permits(2), Mode::Permits(1), Mode::Permits(1)]);
    shared.start.left.stops = 1;
    shared.start.left.timeouts = 1;
    check(
        &shared,
        &[
            (Variant::WaitingIgnored, NOT_PASSED),
            (Variant::RemovedWithoutSlot, COMPATIBLE),
            (Variant::OlderVersion, COMPATIBLE),
        ],
    );
}

/// A store loses the last write that it has answered.
#[test]
fn a_lost_write() {
    let mut shared = free([Mode::Read, Mode::Write, Mode::Read]);
    shared.rounds = [1, 1, 0];
    shared.last_tick = 4;
    shared.start.left.failovers = 1;
    shared.start.left.timeouts = 1;
    check(&shared, &[(Variant::NotLookedForAgain, COMPATIBLE)]);
}

/// A writer becomes a reader while another writer waits.
#[test]
fn a_downgrade() {
    let mut shared = free([Mode::Write, Mode::Write, Mode::Read]);
    shared.rounds = [1, 1, 0];
    shared.downgrade = true;
    shared.start.left = Left {
        crashes: 1,
        stops: 1,
        timeouts: 1,
        cancels: 0,
        failovers: 0,
    };
    check(&shared, &[(Variant::DowngradeInTwoWrites, NOBODY_BETWEEN)]);
}

/// Client A reads, and writes with the same slot. Its readers share an entry.
#[test]
fn slots_that_are_kept() {
    let mut shared = free([Mode::Read, Mode::Write, Mode::Read]);
    shared.rounds = [2, 1, 1];
    shared.later = Mode::Write;
    shared.keeps = true;
    shared.start.left = Left {
        crashes: 0,
        stops: 1,
        timeouts: 1,
        cancels: 0,
        failovers: 0,
    };
    check(
        &shared,
        &[
            (Variant::EarlierModeTrusted, COMPATIBLE),
            (Variant::FirstRemoves, COMPATIBLE),
        ],
    );
}
