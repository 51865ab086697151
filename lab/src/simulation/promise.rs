//! The promises that a simulation checks.
//!
//! The result of one seed.

use std::fmt;

use super::trace::Trace;

/// One promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulationPromise {
    /// No two guards of a lock are valid at one instant.
    Exclusion,
    /// No guard trusts its lease for longer than the store, or a majority of the members, keeps it.
    Belief,
    /// A majority of members that may vote has confirmed the token of a grant to its owner.
    Majority,
    /// No guard of a ring trusts a lease that its process could not ask for by the last view that
    /// it has read.
    FreshView,
    /// Tokens rise in the order of the grants.
    TokensRise,
    /// A loss is reported in time, and before the store grants the lock again.
    LossIsTold,
    /// Tasks of a process are served in the order of their requests.
    QueueOrder,
    /// A caller gets its own grant, and never the grant of another caller.
    OwnAnswer,
    /// No caller waits while the lock is free.
    NobodyForgotten,
    /// A lock without a holder and without a waiter becomes free soon.
    GivenBack,
    /// While no fault is active, no renewed lock is lost and no call fails.
    KeptInPeace,
    /// A call ends within its bound, even if the store does not answer.
    CallsEnd,
    /// After the last fault, every task acquires every lock.
    Recovery,
    /// At the end no waiter, timer or task is left.
    NothingLeft,
    /// An operation of a batch is sent once and answered, and no other batch in flight has its key.
    Batches,
    /// No code panics.
    NoPanic,
}

/// A broken promise, with details.
#[derive(Clone, Debug)]
pub(super) struct Breach {
    pub(super) promise: SimulationPromise,
    pub(super) detail: String,
}

impl fmt::Display for SimulationPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "exclusion",
            Self::Belief => "belief-within-lease",
            Self::Majority => "majority",
            Self::FreshView => "fresh-view",
            Self::TokensRise => "tokens-rise",
            Self::LossIsTold => "loss-is-told",
            Self::QueueOrder => "queue-order",
            Self::OwnAnswer => "own-answer",
            Self::NobodyForgotten => "nobody-forgotten",
            Self::GivenBack => "given-back",
            Self::KeptInPeace => "kept-in-peace",
            Self::CallsEnd => "calls-end",
            Self::Recovery => "recovery",
            Self::NothingLeft => "nothing-left",
            Self::Batches => "batches",
            Self::NoPanic => "no-panic",
        })
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.detail)
    }
}

/// The result of one seed.
#[derive(Debug)]
pub(super) struct SeedResult {
    pub(super) broken: Option<Breach>,
    pub(super) steps: u64,
    /// Two runs have the same hash if the same steps happened.
    pub(super) hash: u64,
    /// How often the members of a ring have changed.
    pub(super) changes: u64,
    /// How often a lock of a ring was granted by another member than before.
    pub(super) moves: u64,
    /// The last lines of the trace, or all lines.
    pub(super) lines: Vec<String>,
}

impl SeedResult {
    /// Combines the broken promise, if there is one, with the steps and lines of the trace.
    pub(super) fn with_trace(broken: Option<Breach>, trace: &Trace) -> Self {
        Self {
            broken,
            steps: trace.steps(),
            hash: trace.hash(),
            changes: 0,
            moves: 0,
            lines: trace.lines(),
        }
    }
}
