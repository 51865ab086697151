//! Readers, writers and permits: one record lists the holders, and each has a slot of its own.
//!
//! What is exact: which write the record's store executes, in which order; a write can be late by
//! any time, or lost. What is simplified:
//!
//! - A process is a client. Its readers may share an entry, at most two of them.
//! - A write is answered in the moment in which it is executed. A lost answer is a client that no
//!   longer waits for it, and reads the record again.
//! - A slot and the line are exclusive locks, which are known to work: a step takes one, and its
//!   guard is invalid from the moment in which its lease ends at the store.
//! - A step reads the record and sends the write that follows from it. A client that acts late is
//!   the same as a write that is late.
//! - Time passes only where a lost write is part of the setting.

mod model;
mod settings;
mod steps;

/// The number of clients. Each has one slot, which it uses again in each round.
const CLIENTS: usize = 3;

/// How long a guard is valid after the last read that showed its entry.
const LEASE: u8 = 2;

/// The one rule that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// The protocol as it is written.
    Whole,
    /// An entry counts as dead although nobody got its slot.
    RemovedWithoutSlot,
    /// An entry is removed by its name, whatever its token.
    RemovedByName,
    /// After a conflict only the version is read again, and the entries are not compared.
    OlderVersion,
    /// A write that was answered counts although the slot was lost meanwhile.
    SlotNotChecked,
    /// Newcomers do not ask whether somebody waits.
    WaitingIgnored,
    /// The head of the line does not say that it waits where its predecessor's word still stands.
    WaitingOfAnotherTrusted,
    /// The head contends for the slot of the oldest blocker only.
    OneBlockerWatched,
    /// Whoever waits counts entries, and contends for no slot.
    DeadEntriesCounted,
    /// A guard does not look for its entry again.
    NotLookedForAgain,
    /// A downgrade removes the writer's entry, and then adds the reader's.
    DowngradeInTwoWrites,
    /// An entry of an earlier use of a slot that was kept counts, whatever its mode.
    EarlierModeTrusted,
    /// The first of two readers that share an entry removes it.
    FirstRemoves,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Mode {
    Read,
    Write,
    Permits(u8),
}

/// A holder in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Entry {
    client: u8,
    /// The token with which the client has its slot.
    slot: u8,
    mode: Mode,
}

/// The record. Without entries there is no record, and its version is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Record {
    version: u8,
    /// The oldest first.
    entries: Vec<Entry>,
}

/// A conditional write of the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Put {
    expect: u8,
    entries: Vec<Entry>,
    sent: u8,
}

/// An exclusive lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    counter: u8,
    is_held: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    /// Takes its slot, and reads the record.
    Entering,
    /// In the line.
    Waiting,
    /// Its entry is under way.
    Writing,
    Holding,
    Downgrading,
    /// Removes its entry. Its slot is free.
    Leaving,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    is_alive: bool,
    phase: Phase,
    round: u8,
    mode: Mode,
    /// The token with which it took its slot last.
    slot: u8,
    /// Whether the guard of the slot is valid.
    has_slot: bool,
    /// The callers that hold with its entry.
    guards: u8,
    /// The write whose answer it waits for.
    pending: Option<Put>,
    /// The entries that it knows to be dead, by client and token.
    dead: Vec<(u8, u8)>,
    /// When it sent the last request that showed its entry.
    seen: u8,
    /// As head of the line, it has said that it waits.
    has_said: bool,
    /// The head that had said so when this round began, as long as it is the head.
    behind: Option<u8>,
}

/// The faults that may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    crashes: u8,
    /// A live client is stopped for longer than a lease.
    stops: u8,
    /// A client no longer waits for an answer.
    timeouts: u8,
    /// A caller drops its acquire.
    cancels: u8,
    /// The record's last write is lost.
    failovers: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    record: Record,
    /// The record before its last write, in settings with lost writes.
    before: Record,
    /// The last version that was given.
    versions: u8,
    /// The version of the record that says that somebody waits.
    waiting: Option<u8>,
    /// The last version of that record.
    said: u8,
    line: Option<u8>,
    slots: [Slot; CLIENTS],
    clients: [Client; CLIENTS],
    /// Writes whose senders no longer wait for the answer. In order, each at most once.
    late: Vec<Put>,
    /// Removals of `waiting` that are under way, by version.
    unsaid: Vec<u8>,
    left: Left,
    /// The highest token of all holds, and of those of writers.
    highest: u8,
    highest_write: u8,
    /// When the record's last write was lost.
    failed: Option<u8>,
    /// A client has entered.
    entered: bool,
    /// A hold had a token that was not above those that it must be above.
    fell: bool,
    /// A client that began after the head had said that it waits entered before it.
    passed: bool,
    /// A writer entered during the downgrade of another.
    between: bool,
    /// A client died while it held.
    died: bool,
    /// A writer became a reader.
    downgraded: bool,
}

/// One setting of the model.
#[derive(Clone, Debug)]
struct Shared {
    variant: Variant,
    start: State,
    /// How many rounds each client may begin, and in which mode.
    rounds: [u8; CLIENTS],
    modes: [Mode; CLIENTS],
    /// The mode of client A from its second round on.
    later: Mode,
    /// Whether a slot may be kept for the next round, and readers may share an entry.
    keeps: bool,
    /// Whether holders leave.
    leave: bool,
    /// Whether writers become readers.
    downgrade: bool,
    capacity: u8,
    last_tick: u8,
}
