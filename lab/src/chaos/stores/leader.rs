//! How the server that leads others loses its place.

/// The way in which a leader loses its place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaderRemoval {
    /// An administrator asks for it, or it is killed.
    FailOver,
    /// It is killed.
    Kill,
    /// The servers that arbitrate do not hear of it any more, and it still answers its clients.
    CutOff,
}

/// A leader that has lost its place, or is about to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormerLeader {
    /// Its place among the servers.
    pub(super) at: usize,
    /// The place of the server that is to follow it, where that is known before.
    pub(super) next: usize,
    pub(super) how: RemovedBy,
}

impl FormerLeader {
    /// Whether it still serves clients, because it does not know that it was replaced.
    pub(crate) const fn still_answers(self) -> bool {
        matches!(self.how, RemovedBy::CutOff)
    }
}

/// What has been done to it.
#[derive(Clone, Copy, Debug)]
pub(super) enum RemovedBy {
    Asked,
    Killed,
    CutOff,
}
