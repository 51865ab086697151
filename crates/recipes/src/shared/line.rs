//! The word of the head of the line that somebody waits.
//!
//! Invariant: only the head writes it, so it never loses against the writes of busy holders. A word
//! that its head could not take back stands until the next head, and sends newcomers to the line.

use std::sync::Arc;

use distlock_core::{Deleted, Error, Expect, Result, Version, Written};
use tokio::runtime::Handle;

use super::hub::Hub;

/// The word that somebody waits. When it is dropped, it is taken back in the background.
pub(super) struct Said {
    hub: Arc<Hub>,
    version: Version,
}

impl Said {
    /// Says that somebody waits.
    pub(super) async fn say(hub: &Arc<Hub>) -> Result<Self> {
        let version = hub.say_waiting().await?;
        let hub = Arc::clone(hub);
        Ok(Self { hub, version })
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        let (hub, version) = (Arc::clone(&self.hub), self.version);
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(async move { hub.take_back_word(version).await }));
        }
    }
}

impl Hub {
    /// The head writes it also where the word of its predecessor still stands: the removal of that
    /// one may be under way.
    async fn say_waiting(self: &Arc<Self>) -> Result<Version> {
        let key = &self.keys.waiting;
        let mut expect = Expect::Absent;
        loop {
            let put = self.records.put(key, br#"{"v":1}"#, expect);
            if let Written::Stored(version) = self.bounded(put).await? {
                self.note_waiting(true);
                return Ok(version);
            }
            let read = self.bounded(self.records.get(key)).await;
            let read = read.map_err(Error::of_read)?;
            expect = read.map_or(Expect::Absent, |stored| Expect::Version(stored.version));
        }
    }

    /// Takes back the word that somebody waits, unless another head has said it since.
    async fn take_back_word(self: &Arc<Self>, version: Version) {
        let deleted = self.bounded(self.records.delete(&self.keys.waiting, version));
        match deleted.await {
            Ok(Deleted::Done) => self.note_waiting(false),
            Ok(Deleted::Conflict) => {}
            // Newcomers then go through the line, and the next head takes it back.
            Err(error) => {
                tracing::debug!(%error, name = ?self.name, "a word that somebody waits stays");
            }
        }
    }

    /// The newcomers of this process need not ask.
    fn note_waiting(self: &Arc<Self>, is_waited_for: bool) {
        let mut state = self.state.lock();
        if let Some(known) = &mut state.known {
            known.is_waited_for = is_waited_for;
        }
        if !is_waited_for {
            // An empty list that was kept for whoever waited may be deleted now.
            self.poke(state);
        }
    }
}
