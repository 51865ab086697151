//! The store's history, as this node knows it. A store that restarts empty, or fails over to a
//! replica that lagged behind, has forgotten sessions that are alive. Until every node has noticed
//! it and has written its sessions again, nobody is let in on the word of such a directory.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Epoch, Moment};

use crate::flow::Inner;

#[derive(Debug, Default)]
pub(crate) struct History(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    epoch: Option<Epoch>,
    /// Until when nothing is granted.
    silent: Option<Moment>,
}

impl History {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The node's lease says this of the store's history. Answers whether it is another one than
    /// before.
    pub(crate) fn met(&self, epoch: Epoch) -> bool {
        let mut state = self.history.state();
        let other = state.epoch.as_ref() != Some(&epoch);
        let first = state.epoch.replace(epoch).is_none();
        drop(state);
        if other && !first {
            self.forgotten("the store's history is another one");
        }
        other
    }

    /// The store may have forgotten sessions. Within a node lease every node has met it, and has
    /// written its sessions again, or has ended them.
    pub(crate) fn forgotten(&self, why: &'static str) {
        let until = self.clock.now() + self.timers.node_lease;
        self.history.state().silent = Some(until);
        let no_logins_for = self.timers.node_lease;
        tracing::warn!(node = %self.node, ?no_logins_for, "{why}: sessions may be missing from the directory");
    }

    /// For how long nothing may be granted.
    pub(crate) fn silent_for(&self) -> Option<Duration> {
        let until = self.history.state().silent?;
        let left = until.since(self.clock.now());
        (!left.is_zero()).then_some(left)
    }
}
