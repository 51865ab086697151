//! What pushes are worth.

use std::time::Duration;

use distlock_core::{FencingToken, HolderInfo, Moment};

/// After this it asks again when nobody will tell, as while the lock's slot is on its way to another server.
pub(super) const UNTOLD: Duration = Duration::from_millis(100);

/// After so many pushes in a row that came at once and meant nothing, it asks as seldom as when nobody will tell.
pub(super) const IN_VAIN: u32 = 3;

/// What the pushes were worth so far.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    /// When the server was asked last, and under which token the lock was held.
    pub(super) asked: Option<(Moment, Option<FencingToken>)>,
    /// Whether a push has come since, sooner than who is untold would have asked.
    pub(super) at_once: bool,
    /// How many of these were in vain, one after the other.
    pub(super) in_vain: u32,
}

impl Pushes {
    /// The server was asked, and somebody holds the lock.
    pub(super) fn busy(&mut self, at: Moment, holder: Option<&HolderInfo>) {
        let token = holder.and_then(|holder| holder.token);
        let same = self.asked.is_some_and(|(_, before)| before == token);
        self.in_vain = if same && self.at_once {
            self.in_vain + 1
        } else {
            0
        };
        (self.asked, self.at_once) = (Some((at, token)), false);
    }

    /// One has come: how long to wait before asking, if at all. A sleep takes a millisecond, however short it is.
    pub(super) fn came(&mut self, now: Moment) -> Option<Duration> {
        let (asked, _) = self.asked?;
        let left = (asked + UNTOLD).since(now);
        self.at_once = !left.is_zero();
        (self.in_vain >= IN_VAIN && self.at_once).then_some(left)
    }
}
