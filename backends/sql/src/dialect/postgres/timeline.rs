//! The history of a database cluster: its identifier, and the timeline that each promotion raises.
//!
//! Invariant: once a connection of a store with several servers has found a promoted server, no
//! connection with an older timeline of that cluster is lent, whether it is new or open already. A
//! former primary takes writes until somebody stops it, and would grant locks that are held at the
//! new primary.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A state of a cluster's history. The number of the timeline has a fixed length, so that a later
/// one is the greater text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timeline {
    pub(super) system: String,
    pub(super) number: String,
}

/// The latest timeline that a connection has found. With one server, that of the last connection.
#[derive(Debug, Default)]
pub(super) struct Timelines(Mutex<Option<Timeline>>);

impl Timelines {
    /// Whether a connection has found a later timeline of the same cluster.
    pub(super) fn has_later_than(&self, timeline: &Timeline) -> bool {
        is_later(self.lock().as_ref(), timeline)
    }

    /// Notes the timeline of a connection that is used, unless a later one is known. Returns
    /// whether none is.
    pub(super) fn note(&self, timeline: &Timeline) -> bool {
        // One lock for both steps: between two, another connection could note a later timeline.
        let mut latest = self.lock();
        let newest = !is_later(latest.as_ref(), timeline);
        if newest {
            *latest = Some(timeline.clone());
        }
        newest
    }

    /// Notes the timeline of the only server, even if a later one is known: the server may have
    /// been restored from an older copy.
    pub(super) fn restart_at(&self, timeline: &Timeline) {
        *self.lock() = Some(timeline.clone());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Timeline>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the latest timeline is of the same cluster and later than this one.
fn is_later(latest: Option<&Timeline>, timeline: &Timeline) -> bool {
    latest.is_some_and(|it| it.system == timeline.system && it.number > timeline.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_older_timeline_of_the_same_cluster_is_refused() {
        let timeline = |system: &str, number: &str| Timeline {
            system: system.into(),
            number: number.into(),
        };
        let timelines = Timelines::default();
        let (old, new) = (timeline("7", "0000000F"), timeline("7", "00000010"));
        assert!(!timelines.has_later_than(&old));
        assert!(timelines.note(&new));
        assert!(!timelines.note(&old));
        assert!(timelines.has_later_than(&old));
        assert!(!timelines.has_later_than(&new));
        // For example the database was restored on another server.
        let other = timeline("8", "00000001");
        assert!(!timelines.has_later_than(&other));
        timelines.restart_at(&old);
        assert!(!timelines.has_later_than(&old));
    }
}
