//! The rounds of the reconciliation.

use std::{mem, sync::Arc};

use distlock_core::{Clock, Result};

use crate::{
    model::settings::Settings,
    node::{history::History, lease::Incarnation, this_node::ThisNode},
    tasks::Tasks,
    upkeep::reconcile::{
        compare::{Comparer, RoundState},
        writes::Writer,
    },
};

/// Compares the sessions of this node with the directory, at the pace of lease renewals.
#[derive(Debug)]
pub(crate) struct Reconciler {
    pub(crate) this: Arc<ThisNode>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) history: Arc<History>,
    pub(crate) comparer: Comparer,
    pub(crate) writer: Writer,
    pub(crate) tasks: Arc<Tasks>,
}

impl Reconciler {
    /// Rounds at the pace of lease renewals.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut state = RoundState::default();
        loop {
            tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => return,
                () = self.history.store_has_forgotten() => {}
                () = self.clock.sleep(self.settings.timers.tick()) => {}
            }
            let Some(own) = self.this.now() else {
                continue;
            };
            metrics::gauge!("distlock_lease_remaining_seconds")
                .set(own.lease.remaining().as_secs_f64());
            let round = tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => return,
                round = self.round(&own, &mut state) => round,
            };
            if let Err(error) = &round {
                tracing::warn!(node = %self.this.id, %error, "a look at the directory failed");
            }
            state.store_was_away = round.is_err();
        }
    }

    /// Whatever fails for one account is tried again in a later round and keeps no other account from its turn in this one. A
    /// write that fails is no failure of the round, because somebody may keep its row locked; a read that fails is the store's.
    pub(super) async fn round(&self, own: &Incarnation, state: &mut RoundState) -> Result<()> {
        // A failover may be over before any request has failed.
        if let Some(epoch) = own.lease.epoch() {
            self.history.observe_epoch(&epoch);
        }
        state.store_was_away |= self.history.grants_suspended_for().is_some();
        let compared = self.comparer.compare_sessions(state).await;
        let written;
        (state.writes, written) = self.writer.write_all(mem::take(&mut state.writes)).await;
        compared.and(written)
    }
}
