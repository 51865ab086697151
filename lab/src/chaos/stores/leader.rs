//! The ways to remove a leader, and the state of a removed one.

/// A way to remove a leader.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaderRemoval {
    /// An administrator orders the failover, or the leader is killed.
    FailOver,
    /// The leader is killed.
    Kill,
    /// The arbitrating servers no longer hear the leader, and the leader still answers its clients.
    CutOff,
}

/// A leader that has lost its place, or is about to lose it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormerLeader {
    /// The index of the former leader.
    pub(super) at: usize,
    /// The index of the next leader, if it is known in advance.
    pub(super) next: usize,
    pub(super) how: RemovedBy,
}

impl FormerLeader {
    /// Tells whether the former leader still serves clients, because it does not know of its
    /// replacement.
    pub(crate) const fn still_answers(self) -> bool {
        matches!(self.how, RemovedBy::CutOff)
    }
}

/// The action that removes the leader.
#[derive(Clone, Copy, Debug)]
pub(super) enum RemovedBy {
    Command,
    Killed,
    CutOff,
}
