//! The primary that a majority of the sentinels named last, as all handles of a store know it
//! together.
//!
//! Invariant: a round that began earlier never replaces one that began later.

use std::sync::{Mutex, MutexGuard, PoisonError};

use distlock_core::Moment;

use crate::{config::Endpoint, connection::ServerEpochs};

/// The result of a round.
#[derive(Clone, Debug)]
pub(crate) struct NamedPrimary {
    pub(crate) primary: Endpoint,
    /// The moment of the round's first question. A later vote for another primary ends everything
    /// that rests on this round, so a lease lasts no longer than its TTL from here.
    pub(crate) asked: Moment,
}

/// The last round, of any handle, in which a majority named a primary.
#[derive(Debug, Default)]
pub(crate) struct LastMajority(Mutex<MajorityState>);

#[derive(Debug, Default)]
struct MajorityState {
    named: Option<NamedPrimary>,
    sentinels: usize,
}

impl LastMajority {
    pub(super) fn last(&self) -> Option<NamedPrimary> {
        self.state().named.clone()
    }

    /// The last round, if it began at `earliest` or later.
    pub(super) fn since(&self, earliest: Moment) -> Option<NamedPrimary> {
        self.last().filter(|named| named.asked >= earliest)
    }

    /// The number of sentinels in the last round.
    pub(super) fn sentinels(&self) -> usize {
        self.state().sentinels
    }

    /// Records that a majority of this number of sentinels named a primary. A round that began
    /// later, of another handle, is kept instead.
    pub(super) fn record(
        &self,
        named: NamedPrimary,
        sentinels: usize,
        server_epochs: &ServerEpochs,
    ) {
        let mut state = self.state();
        if state
            .named
            .as_ref()
            .is_some_and(|last| last.asked > named.asked)
        {
            return;
        }
        let last = state.named.as_ref().map(|last| &last.primary);
        if last != Some(&named.primary) {
            // From now on, no handle's connection to the former primary counts.
            server_epochs.set_primaries(std::iter::once(named.primary.clone()));
        }
        *state = MajorityState {
            named: Some(named),
            sentinels,
        };
    }

    // A std mutex: it is held to read and to write only.
    fn state(&self) -> MutexGuard<'_, MajorityState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_round_that_began_last_counts() {
        let (last_majority, server_epochs) = (LastMajority::default(), ServerEpochs::default());
        let at = |seconds| Moment::from_boot(Duration::from_secs(seconds));
        for (host, asked, expected) in [("old", 2, "old"), ("new", 5, "new"), ("old", 4, "new")] {
            let named = NamedPrimary {
                primary: Endpoint::new(host, 1),
                asked: at(asked),
            };
            last_majority.record(named, 3, &server_epochs);
            assert_eq!(last_majority.last().unwrap().primary.host, expected);
        }
        assert!(last_majority.since(at(5)).is_some() && last_majority.since(at(6)).is_none());
    }

    #[test]
    fn connections_to_a_former_primary_become_outdated() {
        let (last_majority, server_epochs) = (LastMajority::default(), ServerEpochs::default());
        let old = server_epochs.of(&Endpoint::new("old", 1));
        let asked_generation = old.record(0, &distlock_core::Epoch::new("one"));
        for (asked, host, stands) in [(1, "old", true), (2, "new", false), (3, "old", false)] {
            let named = NamedPrimary {
                primary: Endpoint::new(host, 1),
                asked: Moment::from_boot(Duration::from_secs(asked)),
            };
            last_majority.record(named, 3, &server_epochs);
            assert_eq!(Some(old.generation()) == asked_generation, stands, "{host}");
        }
    }
}
