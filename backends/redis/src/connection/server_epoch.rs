//! Which history each server is in, as all handles of a store know it together: one that was demoted and promoted again closes
//! no connection, and only who asks it anew learns of it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use distlock_core::Epoch;

use crate::config::Endpoint;

/// Every server that a handle connects to.
#[derive(Debug, Default)]
pub(crate) struct ServerEpochs {
    // Std mutexes: held for a look only.
    servers: Mutex<HashMap<Endpoint, Arc<ServerEpoch>>>,
    /// A cluster's primaries, as the last map of any handle names them.
    primaries: Mutex<Vec<Arc<ServerEpoch>>>,
}

impl ServerEpochs {
    pub(crate) fn of(&self, endpoint: &Endpoint) -> Arc<ServerEpoch> {
        let mut servers = lock(&self.servers);
        Arc::clone(servers.entry(endpoint.clone()).or_default())
    }

    pub(crate) fn set_primaries(&self, endpoints: impl Iterator<Item = Endpoint>) {
        let present: Vec<_> = endpoints.map(|endpoint| self.of(&endpoint)).collect();
        let mut primaries = lock(&self.primaries);
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

    /// What each of the primaries told last, in any order.
    pub(crate) fn of_primaries(&self) -> Vec<Option<Epoch>> {
        let primaries = lock(&self.primaries);
        primaries.iter().map(|primary| primary.epoch()).collect()
    }
}

/// What is known of one server.
#[derive(Debug, Default)]
pub(crate) struct ServerEpoch {
    /// Goes up whenever what the server told before may be true no more. What it told a connection counts for as long as
    /// this is as it was when it was asked.
    generation: AtomicU64,
    // A std mutex: held for a look at a short list only.
    known: Mutex<KnownEpochs>,
}

#[derive(Debug, Default)]
struct KnownEpochs {
    /// Every epoch that was seen, the latest at the end.
    epochs: Vec<Epoch>,
    /// Whether nobody has asked the server since it was doubted.
    invalidated: bool,
    /// Whether nobody has asked it since it left the primaries.
    left: bool,
}

impl ServerEpoch {
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The server showed that it may not be what it told in this generation.
    pub(crate) fn invalidate(&self, asked_generation: u64) {
        let mut known = lock(&self.known);
        // Many hear it at once.
        if asked_generation == self.generation() {
            known.invalidated = true;
            self.raise();
        }
    }

    /// It is no primary any more. Should it come back, it has to say anew what it is, to every handle: one that asked for
    /// nothing meanwhile has a connection from before.
    fn leave(&self) {
        let mut known = lock(&self.known);
        known.invalidated = true;
        known.left = true;
        self.raise();
    }

    /// The server told its epoch to who began to ask in the generation `asked_in`. The generation that this is true of; `None`
    /// when something else was learned meanwhile, and it must be asked again.
    pub(crate) fn record(&self, asked_in: u64, epoch: &Epoch) -> Option<u64> {
        let mut known = lock(&self.known);
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
        // One that was seen before is no news to anybody: where several servers answer in one place, those who are
        // connected to one would otherwise drive out those who are connected to another, for ever.
        if is_new {
            self.raise();
        }
        Some(self.generation())
    }

    /// The last epoch that it told, unless it has left since.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        let known = lock(&self.known);
        known.epochs.last().filter(|_| !known.left).cloned()
    }

    fn raise(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_told_something_older_asks_again() {
        let server_epoch = ServerEpoch::default();
        let [one, two] = ["one", "two"].map(Epoch::new);
        assert_eq!(server_epoch.record(0, &one), Some(1));
        assert_eq!(server_epoch.record(0, &one), Some(1), "the same is no news");
        // Two ask at once, on either side of the change.
        assert_eq!(server_epoch.record(1, &two), Some(2));
        assert_eq!(server_epoch.record(1, &one), None);
        assert_eq!(server_epoch.record(1, &two), Some(2));
        assert_eq!(server_epoch.epoch(), Some(two));
    }

    #[test]
    fn of_the_first_who_ask_none_is_late_with_something_older() {
        let server_epoch = ServerEpoch::default();
        let [one, two] = ["one", "two"].map(Epoch::new);
        assert_eq!(server_epoch.record(0, &two), Some(1));
        assert_eq!(server_epoch.record(0, &one), None);
    }

    #[test]
    fn a_doubt_counts_once_and_ends_with_an_answer() {
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
    fn a_primary_that_comes_back_says_anew_what_it_is_to_everybody() {
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
    fn two_servers_in_one_place_do_not_drive_out_each_other() {
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
