//! The promises, and the ways in which they are found broken.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::chaos::history::Micros;

/// A promise that can be broken.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Promise {
    /// Two guards of one name were valid at one instant.
    Exclusion,
    /// A later holder did not have a higher token.
    TokensRise,
    /// A fenced register lost an update that it had confirmed.
    FencedUpdates,
    /// A lost lock was not told, or too late.
    LossIsTold,
    /// After the last fault, somebody did not get in, or a lock was left behind.
    Recovery,
    /// A call took longer than its documented bound.
    CallsEnd,
    /// Reads and writes of a record have no order in which each is right.
    Linearizable,
    /// One ticket was resumed twice.
    TicketsOnce,
    /// Memory or descriptors kept growing.
    FlatResources,
    /// A process ended by itself.
    NoCrash,
    /// A waiter was overtaken by a later one of its process.
    ServedInOrder,
    /// A lock that was to be kept for a minimum time went to somebody else before.
    KeptAtLeast,
    /// The work of two leaders of one election was under way at one instant.
    OneLeader,
    /// A periodic job was started twice in a period.
    OncePerPeriod,
    /// An effect happened twice, or somebody was told another result.
    OncePerKey,
    /// Counts were lost.
    CountersAddUp,
    /// A gate let an earlier holder through after a later one.
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

/// One promise that was broken once.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) at: Micros,
    pub(crate) detail: String,
    /// The fault after which the documentation allows it.
    pub(crate) excused_by: Option<String>,
}

/// The limits that a run is judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest TTL of the run.
    pub(crate) ttl_us: Micros,
    /// How much later than its deadline a loss may be told, in running time.
    pub(crate) notice_us: Micros,
    /// How much longer than a TTL two guards may be valid together after a failover.
    pub(crate) failover_us: Micros,
}
