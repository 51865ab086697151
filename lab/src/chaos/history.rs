//! The history of a run: the only input of the verdict.
//!
//! All processes of a run are on one machine, so every time in a history comes from one clock: the
//! boot-time clock, in microseconds. The serialized names must not change, because published
//! histories and tools use these names.

use distlock::{Clock as _, Moment, SystemClock};
use serde::{Deserialize, Serialize};

/// Microseconds since boot.
pub(crate) type Micros = u64;

/// Returns the present time, in microseconds since boot.
pub(crate) fn now() -> Micros {
    micros_since_boot(SystemClock.now())
}

/// Converts a moment of the boot-time clock to microseconds.
pub(crate) fn micros_since_boot(moment: Moment) -> Micros {
    u64::try_from(moment.since_boot().as_micros()).unwrap_or(u64::MAX)
}

/// One line of a history.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct HistoryEntry {
    /// The process that recorded the line. A replacement process has its own number.
    pub(crate) worker: u32,
    pub(crate) event: Event,
}

/// Stands for the fencing token of a lock that has none.
pub(crate) const NO_TOKEN: u64 = 0;

/// The number of one hold within its process.
pub(crate) type HoldNumber = u64;

/// One step or observation of a process.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// The process is ready for faults.
    Started { pid: u32 },
    /// A call of the library begins. `bound_us` is its documented bound.
    Called {
        call: u64,
        what: CallKind,
        at: Micros,
        bound_us: u64,
    },
    /// A call has returned, or its future was dropped.
    Answered {
        call: u64,
        at: Micros,
        answer: CallResult,
    },
    /// The caller got a guard. `asked` is the time of the request. `resumed` is the ticket from
    /// which the guard was resumed.
    Granted {
        hold: HoldNumber,
        name: String,
        token: u64,
        asked: Micros,
        at: Micros,
        resumed: Option<u64>,
        mode: HoldMode,
    },
    /// The writer with the hold `from` has become the reader with the hold `to`.
    Downgraded { from: HoldNumber, to: HoldNumber },
    /// A caller that waited in the order of arrival got the lock, or its wait was over and `hold`
    /// is `None`. Somebody who comes later may pass it for `passed_us` from the moment at which it
    /// is the first that waits.
    Waited {
        name: String,
        asked: Micros,
        at: Micros,
        hold: Option<HoldNumber>,
        passed_us: Micros,
    },
    /// `is_valid()` was called after `from`, and returned `true` before `to`.
    Valid {
        hold: HoldNumber,
        from: Micros,
        to: Micros,
        deadline: Micros,
    },
    /// The process gives a hold up, or sees that the hold is no longer valid.
    Ended {
        hold: HoldNumber,
        at: Micros,
        deadline: Micros,
        how: HoldEnd,
    },
    /// The `ended()` future of a guard returned with a loss. The task that awaited `ended()` never
    /// called `is_valid()`.
    LossNotified {
        hold: HoldNumber,
        at: Micros,
        deadline: Micros,
        reason: String,
    },
    /// A write of a record that is about to be sent, or a read or write that has returned. The
    /// write is recorded before it is sent, so a killed process has recorded every write that may
    /// have happened.
    Record(RecordStep),
    /// The store keeps the lock of a hold until `until`, even after an earlier release.
    Keeps { hold: HoldNumber, until: Micros },
    /// A waiter has joined a local queue of its process. A waiter that joins later has a higher
    /// place.
    Queued { queue: u64, place: u32, at: Micros },
    /// A waiter of a local queue was granted the lock.
    Served {
        queue: u64,
        place: u32,
        token: u64,
        at: Micros,
    },
    /// A step of a recipe.
    Recipe(RecipeStep),
    /// A write to the two registers of a name.
    Wrote {
        name: String,
        fenced: FencedAnswer,
        /// Another process had written the unfenced register after this writer read it.
        unfenced_lost: bool,
    },
    /// The process did not run, because it was stopped, blocked on purpose, or not scheduled.
    Stalled { from: Micros, to: Micros },
    /// Memory and file descriptors of the process.
    Usage {
        at: Micros,
        resident_kib: u64,
        descriptors: u64,
    },
    /// Roll call: after the last fault, one task tried to acquire a lock once more.
    RollCall {
        at: Micros,
        task: u32,
        /// `None` means that the task acquired the lock.
        problem: Option<String>,
    },
    /// The process has answered the roll call and closed its store.
    Finished { at: Micros },
    /// The process ended although the nemesis did not kill it, or it continued after a panic.
    Crashed { how: String },
    /// A fault was injected; see [`InjectedFault`].
    Fault(InjectedFault),
    /// The store still shows this lock after all workers have ended.
    Left { name: String, holder: String },
}

/// A call with a documented bound.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallKind {
    Acquire,
    AcquireAll,
    TryAcquire,
    Downgrade,
    Extend,
    Release,
    IntoTicket,
    Resume,
    Inspect,
    List,
    Close,
}

/// The end of a call.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallResult {
    Done,
    /// A control did not grant the lock in time.
    Refused,
    Failed,
    /// The caller dropped the future.
    Dropped,
}

/// What a holder may do, and with whom it shares its lock.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HoldMode {
    /// It has an exclusive lock.
    #[default]
    Alone,
    /// It has a shared lock alone.
    Writes,
    /// It shares the lock with other readers.
    Reads,
    /// It has these permits of a semaphore with `of` permits.
    Permits { indices: Vec<u32>, of: u32 },
}

impl HoldMode {
    /// Tells whether two holders of one lock exclude each other.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reads, Self::Reads) => false,
            (
                Self::Permits { indices, .. },
                Self::Permits {
                    indices: others, ..
                },
            ) => indices.iter().any(|it| others.contains(it)),
            _ => true,
        }
    }

    /// Tells whether a record lists the holder.
    pub(crate) const fn is_shared(&self) -> bool {
        !matches!(self, Self::Alone)
    }
}

/// The end of a hold, as its process sees it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HoldEnd {
    /// The process is about to call `release`.
    Released,
    /// The process is about to drop the guard.
    Dropped,
    /// The process is about to turn the guard into a ticket.
    Ticket,
    /// The process is about to turn a writer into a reader.
    Downgraded,
    /// `is_valid()` returned `false`.
    NotValid,
}

/// The answer of the fenced register to a write.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FencedAnswer {
    Accepted,
    /// The register accepted the write, although another process had written after this writer's
    /// read.
    AcceptedAndLost,
    /// The register had seen a later token.
    Refused,
}

/// One operation on a record. Values are unique, so a value identifies the write that made it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RecordStep {
    /// The number within one process. The answer has the number of its request.
    pub(crate) number: u64,
    pub(crate) key: String,
    pub(crate) from: Micros,
    /// `None` means that the operation has not returned.
    pub(crate) to: Option<Micros>,
    pub(crate) step: RecordOperation,
}

/// The operation and its answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordOperation {
    /// A read; `seen` is the value and the version.
    Get { seen: Option<(u64, u64)> },
    /// A write; `version` is `None` unless the write was confirmed.
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

/// One step of a task that uses a recipe: an action of the task, or an answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecipeStep {
    /// The work of a leader has begun.
    Leads {
        election: String,
        term: u64,
        /// The candidate campaigned since then.
        asked: Micros,
        at: Micros,
    },
    /// The work of a leader has ended.
    LedUntil {
        election: String,
        term: u64,
        at: Micros,
    },
    /// A periodic job runs. The task requested the job at `asked`, and the store recorded the start
    /// after that time.
    JobRuns {
        job: String,
        run: u64,
        period_us: u64,
        asked: Micros,
        at: Micros,
    },
    /// An effect has happened that may happen once per key.
    Made {
        key: String,
        value: u64,
        asked: Micros,
        at: Micros,
    },
    /// A caller received this result of an effect.
    Told {
        key: String,
        value: u64,
        asked: Micros,
        at: Micros,
    },
    /// One message was counted; the fields give the unread messages after that.
    Counted {
        conversation: u32,
        in_conversation: u64,
        total: u64,
        asked: Micros,
        at: Micros,
    },
    /// A gate accepted the fencing token of a holder.
    Admitted {
        token: u64,
        asked: Micros,
        at: Micros,
    },
}

/// An injected fault, with its begin and end.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct InjectedFault {
    pub(crate) kind: String,
    /// The store, worker or lock that the fault affects.
    pub(crate) target: String,
    pub(crate) from: Micros,
    pub(crate) to: Micros,
    /// The exception that the documentation allows after the fault.
    pub(crate) excuse: Option<Excuse>,
}

/// A documented exception: the violations that a fault may cause.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Excuse {
    /// An administrator removed the lock. Its guard may be valid beside the next guard until its
    /// next renewal or its deadline.
    Removed { name: String },
    /// An administrator ended the session that held this lock with this token, and with it all
    /// locks of that client.
    EndedSession { name: String, token: u64 },
    /// The store lost its data. Old guards may be valid beside new ones for one TTL.
    LostHistory,
    /// Another server has taken over without some acknowledged writes. Old guards may be valid
    /// beside new ones for one TTL and, in a cluster, for some more time.
    FailedOver,
    /// The store's clock jumped forward, so leases ended at the store before their guards.
    SteppedClock { by_us: Micros },
}

impl Excuse {
    /// Tells whether the store may lack data that it had acknowledged.
    pub(crate) const fn may_lack_data(&self) -> bool {
        matches!(self, Self::LostHistory | Self::FailedOver)
    }
}
