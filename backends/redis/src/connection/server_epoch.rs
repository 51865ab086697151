//! The epoch of each server. All handles of a store share this knowledge.
//!
//! A server that is demoted and promoted again closes no connection. So only a handle that asks
//! this server again learns its new epoch. The generation counter in this module makes all handles
//! ask again.
//!
//! Invariant: an answer of a server counts for the epoch that the server had when it gave the
//! answer, never for an older one.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use distlock_core::{Epoch, sync::Mutex};

use crate::config::Endpoint;

/// All servers that any handle of a store has connected to.
#[derive(Debug, Default)]
pub(crate) struct ServerEpochs {
    // Std mutexes: they are held for map operations only, never across an await.
    servers: Mutex<HashMap<Endpoint, Arc<ServerEpoch>>>,
    /// The primaries named by the last slot map, or by the last majority of the sentinels.
    primaries: Mutex<Vec<Arc<ServerEpoch>>>,
}

impl ServerEpochs {
    pub(crate) fn of(&self, endpoint: &Endpoint) -> Arc<ServerEpoch> {
        let mut servers = self.servers.lock();
        Arc::clone(servers.entry(endpoint.clone()).or_default())
    }

    pub(crate) fn set_primaries(&self, endpoints: impl Iterator<Item = Endpoint>) {
        let present: Vec<_> = endpoints.map(|endpoint| self.of(&endpoint)).collect();
        let mut primaries = self.primaries.lock();
        for former in primaries.iter() {
            if !present
                .iter()
                .any(|server_epoch| Arc::ptr_eq(server_epoch, former))
            {
                former.leave();
            }
        }
        *primaries = present;
    }

    /// Returns the epoch that each primary reported last, in no particular order.
    pub(crate) fn of_primaries(&self) -> Vec<Option<Epoch>> {
        let primaries = self.primaries.lock();
        primaries.iter().map(|primary| primary.epoch()).collect()
    }
}

/// The shared knowledge of one server's epoch.
#[derive(Debug, Default)]
pub(crate) struct ServerEpoch {
    /// Rises whenever the reported epoch may be wrong from then on. An epoch that a connection
    /// learned is valid only while the generation is the one from before the question.
    generation: AtomicU64,
    // A blocking mutex: it is held for operations on a short list only.
    known: Mutex<KnownEpochs>,
}

#[derive(Debug, Default)]
struct KnownEpochs {
    /// All epochs that this server has reported, the latest last.
    epochs: Vec<Epoch>,
    /// Whether the epoch was invalidated, and no answer of the server came since.
    invalidated: bool,
    /// Whether the server is no longer a primary, and no answer of the server came since.
    left: bool,
}

impl ServerEpoch {
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Records that the epoch which the server reported in this generation may have changed.
    pub(crate) fn invalidate(&self, asked_generation: u64) {
        let mut known = self.known.lock();
        // When a server is demoted, many operations fail at once. Only the first of them counts.
        // Otherwise each of them would make all connections outdated again.
        if asked_generation == self.generation() {
            known.invalidated = true;
            self.raise();
        }
    }

    /// Records that the server is no longer a primary. If it becomes a primary again, every handle
    /// must ask it again, because an idle handle still has its old connection.
    fn leave(&self) {
        let mut known = self.known.lock();
        known.invalidated = true;
        known.left = true;
        self.raise();
    }

    /// Returns the name under which this process knows the reported epoch. A server that forgot its
    /// promotion has the same history as before: see [`ServerInfo`].
    ///
    /// [`ServerInfo`]: crate::connection::server_info::ServerInfo
    pub(crate) fn known_name(&self, reported: Epoch) -> Epoch {
        let known = self.known.lock();
        let mut latest = known.epochs.iter().rev();
        let same = latest.find(|known| known.as_str().starts_with(reported.as_str()));
        same.cloned().unwrap_or(reported)
    }

    /// Records the epoch that the server reported. The question was sent in the generation
    /// `asked_in`.
    ///
    /// Returns the generation in which the epoch is valid. Returns `None` when the shared knowledge
    /// changed meanwhile; then the server must be asked again.
    pub(crate) fn record(&self, asked_in: u64, epoch: &Epoch) -> Option<u64> {
        let mut known = self.known.lock();
        let stands = !known.invalidated && known.epochs.last() == Some(epoch);
        if asked_in != self.generation() && !stands {
            return None;
        }
        known.invalidated = false;
        known.left = false;
        let before = known.epochs.len();
        known.epochs.retain(|other| other != epoch);
        let is_new = known.epochs.len() == before;
        known.epochs.push(epoch.clone());
        // An epoch that was reported before does not raise the generation. Several servers may
        // answer at one address (behind a proxy). Otherwise a connection to each of them would make
        // the connections to the others outdated, without end.
        if is_new {
            self.raise();
        }
        Some(self.generation())
    }

    /// Returns the epoch that the server reported last, unless it has left the primaries since.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        let known = self.known.lock();
        known.epochs.last().filter(|_| !known.left).cloned()
    }

    fn raise(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_from_an_older_generation_is_asked_for_again() {
        let server_epoch = ServerEpoch::default();
        let [one, two] = ["one", "two"].map(Epoch::new);
        assert_eq!(server_epoch.record(0, &one), Some(1));
        assert_eq!(server_epoch.record(0, &one), Some(1), "the same is no news");
        // Two connections ask at the same time, one before and one after the change.
        assert_eq!(server_epoch.record(1, &two), Some(2));
        assert_eq!(server_epoch.record(1, &one), None);
        assert_eq!(server_epoch.record(1, &two), Some(2));
        assert_eq!(server_epoch.epoch(), Some(two));
    }

    #[test]
    fn a_first_answer_from_an_older_generation_is_asked_for_again() {
        let server_epoch = ServerEpoch::default();
        let [one, two] = ["one", "two"].map(Epoch::new);
        assert_eq!(server_epoch.record(0, &two), Some(1));
        assert_eq!(server_epoch.record(0, &one), None);
    }

    #[test]
    fn an_invalidation_counts_once_and_ends_with_an_answer() {
        let server_epoch = ServerEpoch::default();
        let one = Epoch::new("one");
        assert_eq!(server_epoch.record(0, &one), Some(1));
        server_epoch.invalidate(1);
        server_epoch.invalidate(1);
        assert_eq!(server_epoch.generation(), 2);
        assert_eq!(server_epoch.record(1, &one), None, "asked before the doubt");
        assert_eq!(server_epoch.record(2, &one), Some(2));
        assert_eq!(server_epoch.record(1, &one), Some(2), "it stands again");
    }

    #[test]
    fn a_primary_that_comes_back_is_asked_again_by_every_handle() {
        let server_epochs = ServerEpochs::default();
        let [first, second] = ["first", "second"].map(|host| Endpoint::new(host, 1));
        server_epochs.set_primaries([first.clone()].into_iter());
        let known_before = server_epochs.of(&first);
        let asked_generation = known_before.record(0, &Epoch::new("one"));
        server_epochs.set_primaries([second].into_iter());
        server_epochs.set_primaries([first.clone()].into_iter());
        assert_eq!(server_epochs.of_primaries(), [None]);
        assert_ne!(
            Some(known_before.generation()),
            asked_generation,
            "also to who never saw it leave"
        );
        let generation = known_before.generation();
        let again = Epoch::new("two");
        assert!(
            server_epochs
                .of(&first)
                .record(generation, &again)
                .is_some()
        );
        assert_eq!(known_before.epoch(), Some(again));
    }

    #[test]
    fn a_server_that_forgot_its_promotion_keeps_its_epoch() {
        let server_epoch = ServerEpoch::default();
        let [run, promoted, again, other] =
            ["redis-run", "redis-run-one", "redis-run-two", "redis-other"].map(Epoch::new);
        assert_eq!(server_epoch.known_name(run.clone()), run);
        for epoch in [&run, &promoted, &again, &other] {
            server_epoch.record(server_epoch.generation(), epoch);
        }
        assert_eq!(server_epoch.known_name(run), again);
        assert_eq!(server_epoch.known_name(promoted.clone()), promoted);
        assert_eq!(server_epoch.known_name(other.clone()), other);
    }

    #[test]
    fn two_servers_at_one_address_do_not_outdate_each_other() {
        let server_epoch = ServerEpoch::default();
        let [one, two] = ["one", "two"].map(Epoch::new);
        server_epoch.record(0, &one);
        server_epoch.record(1, &two);
        let generation = server_epoch.generation();
        for epoch in [&one, &two, &one] {
            assert_eq!(server_epoch.record(generation, epoch), Some(generation));
        }
    }
}
