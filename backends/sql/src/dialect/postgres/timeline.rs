//! The history of a database cluster: its identifier, and the timeline that each promotion raises.
//!
//! Invariant: once a connection of a store with several servers has found a promoted server, no
//! later connection uses an older timeline of that cluster. A former primary that comes back takes
//! writes until somebody stops it, and would grant locks that are held at the new primary.

use std::sync::{Mutex, PoisonError};

/// A state of a cluster's history. The number of the timeline has a fixed length, so that a later
/// one is the greater text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timeline {
    pub(super) system: String,
    pub(super) number: String,
}

/// The latest timeline that a connection has found.
#[derive(Debug, Default)]
pub(super) struct Timelines(Mutex<Option<Timeline>>);

impl Timelines {
    /// Whether a connection has found a later timeline of the same cluster.
    pub(super) fn has_later_than(&self, timeline: &Timeline) -> bool {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest
            .as_ref()
            .is_some_and(|it| it.system == timeline.system && it.number > timeline.number)
    }

    /// Notes the timeline of a connection that is used.
    pub(super) fn note(&self, timeline: &Timeline) {
        if !self.has_later_than(timeline) {
            let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *latest = Some(timeline.clone());
        }
    }
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
        timelines.note(&new);
        timelines.note(&old);
        assert!(timelines.has_later_than(&old));
        assert!(!timelines.has_later_than(&new));
        // For example the database was restored on another server.
        let other = timeline("8", "00000001");
        assert!(!timelines.has_later_than(&other));
    }
}
