//! Detects spurious pushes, and slows the contender down when many of them come in a row.
//!
//! A server with too many tracked keys sends such pushes at every command. Without a pause, each of
//! them would cause another attempt.

use std::time::Duration;

use distlock_core::{FencingToken, HolderInfo, Moment};

/// The pause between two attempts if no push will come, for example while the lock's slot migrates.
pub(super) const UNTRACKED_POLL: Duration = Duration::from_millis(100);

/// The number of spurious pushes in a row after which a contender asks as rarely as one without
/// tracking.
pub(super) const MAX_SPURIOUS: u32 = 3;

/// The history of one contender's pushes.
#[derive(Debug, Default)]
pub(super) struct SpuriousPushes {
    /// The moment of the last attempt, and the token of the holder that it found.
    pub(super) asked: Option<(Moment, Option<FencingToken>)>,
    /// Whether a push came within [`UNTRACKED_POLL`] after the last attempt.
    pub(super) at_once: bool,
    /// The number of such pushes in a row after which the holder was unchanged.
    pub(super) spurious: u32,
}

impl SpuriousPushes {
    /// Records an attempt that found the lock held.
    pub(super) fn on_busy(&mut self, at: Moment, holder: Option<&HolderInfo>) {
        let token = holder.and_then(|holder| holder.token);
        let same = self.asked.is_some_and(|(_, before)| before == token);
        self.spurious = if same && self.at_once {
            self.spurious + 1
        } else {
            0
        };
        (self.asked, self.at_once) = (Some((at, token)), false);
    }

    /// Records a push. Returns the pause before the next attempt; `None` = no pause. Before the
    /// limit of spurious pushes there is no pause at all, because even the shortest sleep takes at
    /// least a millisecond.
    pub(super) fn on_push(&mut self, now: Moment) -> Option<Duration> {
        let (asked, _) = self.asked?;
        let left = (asked + UNTRACKED_POLL).since(now);
        self.at_once = !left.is_zero();
        (self.spurious >= MAX_SPURIOUS && self.at_once).then_some(left)
    }
}
