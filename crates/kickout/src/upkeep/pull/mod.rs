//! The pull path: a node compares its sessions with the directory, so that a kick that never
//! reached it heals by itself.

mod compare;
mod owed;
#[cfg(test)]
mod tests;

use std::{mem, sync::Arc};

use distlock_core::{Error, Result};

use crate::{
    flow::Inner,
    model::ident::{SessionId, Uid},
    node::lease::Incarnation,
};

use owed::Owed;

/// What the rounds remember.
#[derive(Debug, Default)]
struct Memory {
    /// Where the comparison goes on.
    cursor: Option<SessionId>,
    /// What this round found to write, and what those before could not.
    owed: Vec<Owed>,
    /// The last round failed, or the store has forgotten something: all sessions are compared.
    store_was_away: bool,
}

impl Inner {
    /// Rounds at the pace of lease renewals.
    pub(crate) async fn pull(self: Arc<Self>) {
        let mut memory = Memory::default();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.history.has_forgotten() => {}
                () = self.clock.sleep(self.timers.tick()) => {}
            }
            let Some(own) = self.own.now() else {
                continue;
            };
            metrics::gauge!("distlock_lease_remaining_seconds")
                .set(own.lease.remaining().as_secs_f64());
            let round = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                round = self.round(&own, &mut memory) => round,
            };
            if let Err(error) = &round {
                tracing::warn!(node = %self.node, %error, "a look at the directory failed");
            }
            memory.store_was_away = round.is_err();
        }
    }

    /// Whatever fails for one account is tried again in a later round and keeps no other account from its turn in this one. A
    /// write that fails is no failure of the round, because somebody may keep its row locked; a read that fails is the store's.
    async fn round(&self, own: &Incarnation, memory: &mut Memory) -> Result<()> {
        // A failover may be over before any request has failed.
        if let Some(epoch) = own.lease.epoch() {
            self.history.met(&epoch);
        }
        memory.store_was_away |= self.history.silent_for().is_some();
        let compared = self.compare_sessions(memory).await;
        let written;
        (memory.owed, written) = self.write_owed(mem::take(&mut memory.owed)).await;
        compared.and(written)
    }
}

/// What the store could not do now for one account is tried again, and the others have their turn all the same. Answers the
/// error unless it is the account's own.
fn later(uid: &Uid, error: Error) -> Result<()> {
    tracing::warn!(?uid, %error, "an account's sessions are looked after later");
    if error.is_retryable() {
        Err(error)
    } else {
        Ok(())
    }
}
