//! The unary calls that take locks: at most one at a time for each owner.
//!
//! A client whose answer was lost should ask again with a new owner, and some ask with the same.
//! Invariant: before the newer call asks the store, the older one has ended, and has released what
//! it was granted for nobody. If it released later, it would release what the newer call was
//! granted.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use distlock_core::{LockName, OwnerId, sync::Mutex};
use tokio_util::sync::CancellationToken;

type Key = (LockName, OwnerId);

/// The calls of all owners.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<HashMap<Key, Signs>>);

/// What the calls of one owner tell each other.
#[derive(Clone, Debug, Default)]
struct Signs {
    /// A newer call has come.
    superseded: CancellationToken,
    /// The call has ended.
    ended: CancellationToken,
}

/// The newest call of an owner, until its drop.
#[derive(Debug)]
pub(crate) struct CallTurn {
    calls: Arc<Calls>,
    key: Key,
    signs: Signs,
    older: Option<Signs>,
}

impl Calls {
    /// The turn of a call that has arrived, and which supersedes the older ones of its owner.
    pub(crate) fn enter(self: &Arc<Self>, name: &LockName, owner: OwnerId) -> CallTurn {
        let (key, signs) = ((name.clone(), owner), Signs::default());
        let mut calls = self.0.lock();
        let older = calls.insert(key.clone(), signs.clone());
        // With the mutex: the drop of the older call must not take this one for its own.
        if let Some(older) = &older {
            older.superseded.cancel();
        }
        drop(calls);
        CallTurn {
            calls: Arc::clone(self),
            key,
            signs,
            older,
        }
    }
}

impl CallTurn {
    /// Waits until the older call of this owner has ended.
    pub(crate) async fn wait(&mut self) {
        if let Some(older) = self.older.take() {
            older.ended.cancelled().await;
        }
    }

    /// A newer call of this owner waits for the end of this one.
    pub(crate) const fn superseded(&self) -> &CancellationToken {
        &self.signs.superseded
    }
}

impl Drop for CallTurn {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock();
        if let Entry::Occupied(newest) = calls.entry(self.key.clone())
            && !self.signs.superseded.is_cancelled()
        {
            newest.remove();
        }
        drop(calls);
        self.signs.ended.cancel();
    }
}
