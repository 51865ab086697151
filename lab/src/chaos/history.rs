//! The history of a run: a verdict is made of nothing else.
//!
//! All processes of a run are on one machine, so every time in a history is of one clock: the
//! boot-time clock, in microseconds.

use distlock::{Clock as _, Moment, SystemClock};
use serde::{Deserialize, Serialize};

/// Microseconds since boot.
pub(crate) type Micros = u64;

/// Now.
pub(crate) fn now() -> Micros {
    micros(SystemClock.now())
}

/// A moment of the boot-time clock.
pub(crate) fn micros(moment: Moment) -> Micros {
    u64::try_from(moment.since_boot().as_micros()).unwrap_or(u64::MAX)
}

/// One line of a history.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct HistoryEntry {
    /// The process that it is about. A process that replaces another has a number of its own.
    pub(crate) worker: u32,
    pub(crate) event: Event,
}

/// In the place of a fencing token, of a lock that gives none.
pub(crate) const NO_TOKEN: u64 = 0;

/// One of the holds of a process.
pub(crate) type HoldNumber = u64;

/// One thing that a process did or saw.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// The process is ready to be broken.
    Started { pid: u32 },
    /// A call of the library has begun. `bound_us` is its documented bound.
    Called {
        call: u64,
        what: CallKind,
        at: Micros,
        bound_us: u64,
    },
    /// That call has answered, or its future was dropped.
    Answered {
        call: u64,
        at: Micros,
        answer: CallResult,
    },
    /// A guard was given out that had been asked for at `asked`. `resumed` is the ticket that it
    /// came from.
    Granted {
        hold: HoldNumber,
        name: String,
        token: u64,
        asked: Micros,
        at: Micros,
        resumed: Option<u64>,
    },
    /// `is_valid()` was asked after `from`, and had said yes by `to`.
    Valid {
        hold: HoldNumber,
        from: Micros,
        to: Micros,
        deadline: Micros,
    },
    /// The process let a hold go, or saw that it is not valid any more.
    Ended {
        hold: HoldNumber,
        at: Micros,
        deadline: Micros,
        how: HoldEnd,
    },
    /// `ended()` resolved with a loss. The task that waited for it never asked `is_valid()`.
    #[serde(rename = "told")]
    LossNotified {
        hold: HoldNumber,
        at: Micros,
        deadline: Micros,
        reason: String,
    },
    /// A write of a record that is about to be sent, or a read or write that has answered. A
    /// process that is killed in between has noted its write.
    Record(RecordStep),
    /// The store keeps the lock of a hold until `until`, even if the hold is released earlier.
    Keeps { hold: HoldNumber, until: Micros },
    /// The process's next waiter has joined the line for a lock. Places are given in this order.
    Queued {
        #[serde(rename = "line")]
        queue: u64,
        place: u32,
        at: Micros,
    },
    /// That waiter was granted the lock.
    Served {
        #[serde(rename = "line")]
        queue: u64,
        place: u32,
        token: u64,
        at: Micros,
    },
    /// A step of a recipe.
    Recipe(RecipeStep),
    /// A write to the registers of a name.
    Wrote {
        name: String,
        fenced: FencedAnswer,
        /// The unfenced register had been written since this writer read it.
        unfenced_lost: bool,
    },
    /// The process did not run, or was kept from it on purpose.
    Stalled { from: Micros, to: Micros },
    /// Memory and descriptors of the process.
    Usage {
        at: Micros,
        resident_kib: u64,
        descriptors: u64,
    },
    /// After the last fault, one task tried to take a lock once more.
    RollCall {
        at: Micros,
        task: u32,
        /// `None` = it got in.
        problem: Option<String>,
    },
    /// The process was asked to end and has closed its store.
    Finished { at: Micros },
    /// The process ended although nobody killed it.
    Crashed { how: String },
    /// Something was broken; see [`InjectedFault`].
    Fault(InjectedFault),
    /// After everybody had left, the store still showed this lock.
    Left { name: String, holder: String },
}

/// A call whose bound is documented.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallKind {
    Acquire,
    AcquireAll,
    TryAcquire,
    Extend,
    Release,
    IntoTicket,
    Resume,
    Inspect,
    List,
    Close,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallResult {
    Done,
    Refused,
    Failed,
    /// The caller dropped its future.
    Dropped,
}

/// How a hold ended at its process.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HoldEnd {
    /// `release` is about to be called.
    Released,
    /// The guard is about to be dropped.
    Dropped,
    /// The guard is about to become this ticket.
    Ticket,
    /// `is_valid()` said no.
    NotValid,
}

/// The answer of the fenced register to a write.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FencedAnswer {
    Accepted,
    /// Accepted, although the register had been written since this writer read it.
    AcceptedAndLost,
    /// A later token was seen before.
    Refused,
}

/// One operation on a record. Values are unique, so a value says which write it is from.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RecordStep {
    /// Of one process; the answer has the number of its question.
    pub(crate) number: u64,
    pub(crate) key: String,
    pub(crate) from: Micros,
    /// `None` = it has not answered.
    pub(crate) to: Option<Micros>,
    pub(crate) step: RecordOperation,
}

/// The operation and its answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordOperation {
    /// The value that was read, and its version.
    Get { seen: Option<(u64, u64)> },
    /// `version` is `None` unless the write was confirmed.
    Put {
        expected: Option<u64>,
        value: u64,
        outcome: WriteOutcome,
        version: Option<u64>,
    },
    Delete {
        expected: u64,
        outcome: WriteOutcome,
    },
}

/// The three answers of a conditional write.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WriteOutcome {
    Done,
    Conflict,
    Unknown,
}

/// One step of a task that uses a recipe: something it did, or an answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecipeStep {
    /// Work that only a leader does has begun.
    Leads {
        election: String,
        term: u64,
        at: Micros,
    },
    /// It is over.
    LedUntil {
        election: String,
        term: u64,
        at: Micros,
    },
    /// A periodic job runs. It was asked for at `asked`, and put on record after that.
    JobRuns {
        job: String,
        run: u64,
        period_us: u64,
        asked: Micros,
        at: Micros,
    },
    /// An effect that happens once per key has happened.
    Made {
        key: String,
        value: u64,
        asked: Micros,
        at: Micros,
    },
    /// The result of that effect, as one of those who asked for it was told.
    Told {
        key: String,
        value: u64,
        asked: Micros,
        at: Micros,
    },
    /// One message was counted, and this is what was unread then.
    Counted {
        conversation: u32,
        in_conversation: u64,
        total: u64,
        asked: Micros,
        at: Micros,
    },
    /// A gate let a holder through.
    Admitted {
        token: u64,
        asked: Micros,
        at: Micros,
    },
}

/// Something that was broken, and from when to when.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct InjectedFault {
    pub(crate) kind: String,
    /// The store, worker or lock that was broken.
    pub(crate) target: String,
    pub(crate) from: Micros,
    pub(crate) to: Micros,
    /// The exception that the documentation allows after it.
    pub(crate) excuse: Option<Excuse>,
}

/// A documented exception: what a fault may lead to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Excuse {
    /// The lock was taken away by hand: its guard may be valid until its next renewal or its
    /// deadline, beside the next one.
    Removed { name: String },
    /// A client's session was ended by hand, and all locks that it held were taken away with it,
    /// whichever they were.
    EndedSession,
    /// The store lost what it knew: guards may be valid beside new ones for one TTL.
    LostHistory,
    /// The same, because another server has taken over that lacked what was acknowledged.
    FailedOver,
    /// The store's clock jumped ahead: leases ended there earlier than their guards.
    SteppedClock { by_us: Micros },
}

impl Excuse {
    /// Whether the store may lack what it had acknowledged before.
    pub(crate) const fn forgets(&self) -> bool {
        matches!(self, Self::LostHistory | Self::FailedOver)
    }

    /// Whether it may lead to a violation that is about this lock.
    pub(crate) fn is_about(&self, lock: &str) -> bool {
        match self {
            Self::Removed { name } => name == lock,
            _ => true,
        }
    }
}
