//! The promises that a run checks.

use std::fmt;

/// One promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulationPromise {
    /// No two guards of a lock are valid at one time.
    Exclusion,
    /// No guard believes in its lease for longer than the store keeps it.
    Belief,
    /// Tokens rise in the order of the grants.
    TokensRise,
    /// A loss is told in time, and before the store grants the lock again.
    LossIsTold,
    /// Tasks of a process are served in the order in which they asked.
    QueueOrder,
    /// A caller gets what was granted to it, and nobody else's.
    OwnAnswer,
    /// Nobody waits while the lock is free.
    NobodyForgotten,
    /// A lock that nobody holds or wants any more becomes free soon.
    GivenBack,
    /// While nothing is wrong, no lock that is renewed is lost, and no call fails.
    KeptInPeace,
    /// A call ends within its bound, whatever the store does.
    CallsEnd,
    /// After the last fault, everybody gets every lock.
    Recovery,
    /// In the end there are no waiters, timers and tasks.
    NothingLeft,
    /// An operation in a batch is sent once, alone with its key, and answered.
    Batches,
    /// Nothing panics.
    NoPanic,
}

/// A promise that was broken, and how.
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
