//! The promises, and a violation of one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::chaos::history::Micros;

/// A promise. The documentation of each variant describes its violation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    /// Two guards of one name were valid at one instant.
    Exclusion,
    /// A later holder did not have a higher token.
    TokensRise,
    /// A fenced register lost an update that it had confirmed.
    FencedUpdates,
    /// The holder of a lost lock got no notice, or a late one.
    LossIsTold,
    /// After the last fault, a task did not acquire a lock, or a lock was left in the store.
    Recovery,
    /// A call took longer than its documented bound.
    CallsEnd,
    /// Reads and writes of a record have no order in which each answer is right.
    Linearizable,
    /// One ticket was resumed twice.
    TicketsOnce,
    /// Memory or descriptors kept growing.
    FlatResources,
    /// A process ended although nobody killed it.
    NoCrash,
    /// A later waiter of the same process was served first.
    ServedInOrder,
    /// Somebody else got a lock before its minimum hold time was over.
    KeptAtLeast,
    /// The work of two leaders of one election ran at one instant.
    OneLeader,
    /// A periodic job was started twice in a period.
    OncePerPeriod,
    /// An effect happened twice, or a caller received a different result.
    OncePerKey,
    /// A counter lost counts.
    CountersAddUp,
    /// A gate accepted an earlier holder after a later one.
    GateHolds,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "exclusion",
            Self::TokensRise => "tokens rise",
            Self::FencedUpdates => "no lost update on a fenced register",
            Self::LossIsTold => "a loss is told in time",
            Self::Recovery => "everybody gets in again",
            Self::CallsEnd => "calls end within their bound",
            Self::Linearizable => "records are linearizable",
            Self::TicketsOnce => "a ticket is good once",
            Self::FlatResources => "memory and descriptors are flat",
            Self::NoCrash => "no process crashes",
            Self::ServedInOrder => "waiters of a process are served in order",
            Self::KeptAtLeast => "a lock is kept for its minimum time",
            Self::OneLeader => "one leader at a time",
            Self::OncePerPeriod => "a job starts once per period",
            Self::OncePerKey => "an effect happens once per key",
            Self::CountersAddUp => "counters add up",
            Self::GateHolds => "a gate lets no earlier holder through",
        })
    }
}

/// One violation of a promise.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) at: Micros,
    pub(crate) detail: String,
    /// The fault after which the documentation allows the violation.
    pub(crate) excused_by: Option<String>,
}

/// The limits of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest TTL of the run.
    pub(crate) ttl_us: Micros,
    /// Longest allowed time from a deadline to the notice of its loss, in running time.
    pub(crate) notice_us: Micros,
    /// Time after a failover in which the old primary may still grant locks. By this time, two
    /// guards may be valid together for longer than a TTL.
    pub(crate) failover_us: Micros,
    /// Time after a failover in which a client may still use the old primary for records.
    pub(crate) record_failover_us: Micros,
}
