//! What pushes are worth.

use std::time::Duration;

use distlock_core::{FencingToken, HolderInfo, Moment};

/// After this it asks again when nobody will tell, as while the lock's slot is on its way to another server.
pub(super) const UNTRACKED_POLL: Duration = Duration::from_millis(100);

/// After so many pushes in a row that came at once and meant nothing, it asks as seldom as when nobody will tell.
pub(super) const MAX_SPURIOUS: u32 = 3;

/// What the pushes were worth so far.
#[derive(Debug, Default)]
pub(super) struct SpuriousPushes {
    /// When the server was asked last, and under which token the lock was held.
    pub(super) asked: Option<(Moment, Option<FencingToken>)>,
    /// Whether a push has come since, sooner than who is untold would have asked.
    pub(super) at_once: bool,
    /// How many of these were in vain, one after the other.
    pub(super) spurious: u32,
}

impl SpuriousPushes {
    /// The server was asked, and somebody holds the lock.
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

    /// One has come: how long to wait before asking, if at all. A sleep takes a millisecond, however short it is.
    pub(super) fn on_push(&mut self, now: Moment) -> Option<Duration> {
        let (asked, _) = self.asked?;
        let left = (asked + UNTRACKED_POLL).since(now);
        self.at_once = !left.is_zero();
        (self.spurious >= MAX_SPURIOUS && self.at_once).then_some(left)
    }
}
