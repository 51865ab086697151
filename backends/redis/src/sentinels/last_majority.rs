//! The primary that a majority of the sentinels named last. All handles of a store share this
//! knowledge.
//!
//! Invariant: a round that began earlier never replaces one that began later.

use distlock_core::{Moment, sync::Mutex};

use crate::{config::Endpoint, connection::ServerEpochs};

/// The result of a round in which a majority named a primary.
#[derive(Clone, Debug)]
pub(crate) struct NamedPrimary {
    pub(crate) primary: Endpoint,
    /// The moment of the round's first question. A later majority for another primary makes this
    /// round invalid, so a lease lasts no longer than its TTL from this moment.
    pub(crate) asked: Moment,
}

/// The last round, of any handle, with a majority for a primary.
#[derive(Debug, Default)]
pub(crate) struct LastMajority(Mutex<MajorityState>);

#[derive(Debug, Default)]
struct MajorityState {
    named: Option<NamedPrimary>,
    sentinels: usize,
}

impl LastMajority {
    pub(super) fn last(&self) -> Option<NamedPrimary> {
        self.0.lock().named.clone()
    }

    /// Returns the last round, if it began at `earliest` or later.
    pub(super) fn since(&self, earliest: Moment) -> Option<NamedPrimary> {
        self.last().filter(|named| named.asked >= earliest)
    }

    /// Returns the number of sentinels in the last round.
    pub(super) fn sentinels(&self) -> usize {
        self.0.lock().sentinels
    }

    /// Records that a majority of this number of sentinels named a primary. The stored round is
    /// kept if it began later, as a round of another handle may have.
    pub(super) fn record(
        &self,
        named: NamedPrimary,
        sentinels: usize,
        server_epochs: &ServerEpochs,
    ) {
        let mut state = self.0.lock();
        if state
            .named
            .as_ref()
            .is_some_and(|last| last.asked > named.asked)
        {
            return;
        }
        let last = state.named.as_ref().map(|last| &last.primary);
        if last != Some(&named.primary) {
            // From now on, every handle's connection to the former primary is outdated.
            server_epochs.set_primaries(std::iter::once(named.primary.clone()));
        }
        *state = MajorityState {
            named: Some(named),
            sentinels,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_round_that_began_earlier_replaces_no_later_one() {
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
