//! The durable ceiling of tokens.
//!
//! A server that has crashed does not know its last tokens. It starts at the ceiling that its state
//! file holds. Invariant: a token is granted only below the durable ceiling.

use std::time::Duration;

use distlock_core::micros;

/// Grants may be in progress together, and each raises the token by one at least. This many fit
/// between a token that was checked and the ceiling.
const TOGETHER: u64 = 1 << 20;

/// The ceiling, and the highest number that is below it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceiling {
    /// How far ahead the ceiling is raised, in microseconds.
    ahead: u64,
    durable: u64,
    /// The highest token that was granted or raised.
    highest: u64,
}

impl Ceiling {
    /// A ceiling that is durable already, for these longest leases.
    pub(super) fn new(durable: u64, max_lease: Duration) -> Self {
        let ahead = (max_lease / 2).clamp(Duration::from_secs(2), Duration::from_secs(60));
        Self {
            ahead: micros(ahead),
            durable,
            highest: 0,
        }
    }

    /// Whether a token may be granted now. `wall` is the clock of tokens, in microseconds.
    pub(super) fn admits(&self, wall: u64) -> bool {
        self.next(wall).saturating_add(TOGETHER) < self.durable
    }

    /// Whether a token that was granted is below the durable ceiling.
    pub(super) const fn covers(&self, token: u64) -> bool {
        token < self.durable
    }

    /// Whether a renewal may raise its token to this floor.
    pub(super) fn admits_floor(&self, floor: u64) -> bool {
        floor.saturating_add(TOGETHER) < self.durable
    }

    /// Whether half of the room is used up.
    pub(super) fn is_due(&self, wall: u64) -> bool {
        self.next(wall).saturating_add(self.ahead / 2) >= self.durable
    }

    /// The number that the ceiling should be raised to; with a floor, high enough for it.
    pub(super) fn wanted(&self, wall: u64, floor: u64) -> u64 {
        let next = self.next(wall).max(floor);
        next.saturating_add(self.ahead).saturating_add(TOGETHER)
    }

    /// Notes that the ceiling is durable at this number.
    pub(super) fn raised(&mut self, durable: u64) {
        self.durable = self.durable.max(durable);
    }

    /// Notes a token that was granted or raised.
    pub(super) fn note(&mut self, token: u64) {
        self.highest = self.highest.max(token);
    }

    /// The lowest number that the next token can have.
    fn next(&self, wall: u64) -> u64 {
        self.highest.saturating_add(1).max(wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_token_is_admitted_only_below_the_durable_ceiling() {
        let mut ceiling = Ceiling::new(0, Duration::from_secs(60));
        let now = 1_000 * SECOND;
        assert!(!ceiling.admits(now) && ceiling.is_due(now));
        let wanted = ceiling.wanted(now, 0);
        assert_eq!(wanted, now + 30 * SECOND + TOGETHER);
        ceiling.raised(wanted);
        assert!(ceiling.admits(now) && !ceiling.is_due(now));
        assert!(
            ceiling.is_due(now + 17 * SECOND),
            "half of the room is used up"
        );
        assert!(ceiling.admits(now + 29 * SECOND));
        assert!(
            !ceiling.admits(now + 31 * SECOND),
            "it was not written in time"
        );
        // A raised token uses the room up as well.
        assert!(!ceiling.admits_floor(wanted));
        assert!(ceiling.covers(wanted - 1) && !ceiling.covers(wanted));
        ceiling.note(wanted - 2);
        assert!(!ceiling.admits(now));
        assert!(ceiling.wanted(now, wanted * 2) > wanted * 2);
    }

    #[test]
    fn the_room_follows_the_longest_lease_within_bounds() {
        for (max_lease, ahead) in [(1, 2), (60, 30), (86_400, 60)] {
            let ceiling = Ceiling::new(0, Duration::from_secs(max_lease));
            assert_eq!(ceiling.wanted(1, 0), 1 + ahead * SECOND + TOGETHER);
        }
    }
}
