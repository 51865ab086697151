//! The ways to remove a leader (of Redis: a primary), and the state of a removed leader.

/// A way to remove a leader.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaderRemoval {
    /// An administrator orders the failover, or the leader is killed.
    FailOver,
    /// The leader is killed.
    Kill,
    /// The leader is cut off from the servers that choose a leader, and still answers its clients.
    CutOff,
}

/// A leader that another server has replaced, or is about to replace.
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
    /// An administrator ordered the failover.
    Command,
    Killed,
    CutOff,
}
