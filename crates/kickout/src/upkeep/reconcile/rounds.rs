//! The rounds of the reconciliation.
//!
//! A failure for one account never prevents the comparison of another account.

use std::{mem, sync::Arc};

use distlock_core::Result;

use crate::{
    node::{Node, lease::Incarnation},
    upkeep::reconcile::compare::RoundState,
};

impl Node {
    /// Runs the rounds until the flow stops.
    pub(crate) async fn run_reconciliation(self: Arc<Self>) {
        let mut state = RoundState::default();
        loop {
            tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => return,
                () = self.reconcile_requested() => {}
                () = self.clock.sleep(self.settings.timers.reconcile_period()) => {}
            }
            let Some(own) = self.this.current_incarnation() else {
                continue;
            };
            metrics::gauge!("distlock_lease_remaining_seconds")
                .set(own.lease.remaining().as_secs_f64());
            let round = tokio::select! {
                biased;
                () = self.tasks.stop.cancelled() => return,
                round = self.round_and_probe(&own, &mut state) => round,
            };
            if let Err(error) = &round {
                tracing::warn!(node = %self.this.id, %error, "a look at the directory failed");
            }
            state.store_was_away = round.is_err();
        }
    }

    /// Runs one round. If the store refused the last change, a write of no effect follows: without
    /// it, a node without logins would not notice that the store takes changes again.
    async fn round_and_probe(&self, own: &Incarnation, state: &mut RoundState) -> Result<()> {
        let round = self.reconcile(own, state).await;
        self.probe_if_refused(&round).await;
        round
    }

    /// Runs one round: compares sessions, then makes the writes. A failed account is tried again in
    /// a later round. A failed read fails the round. A failed write of one account does not fail
    /// the round, because another client of the database may have locked the row.
    pub(super) async fn reconcile(&self, own: &Incarnation, state: &mut RoundState) -> Result<()> {
        // A failover may happen without any failed request. Only a new epoch shows such a failover.
        if let Some(epoch) = own.lease.epoch() {
            self.observe_epoch(&epoch);
        }
        state.store_was_away |= self.grants_suspended_for().is_some();
        let compared = self.compare_sessions(state).await;
        let written;
        (state.writes, written) = self.write_all(mem::take(&mut state.writes)).await;
        compared.and(written)
    }
}
