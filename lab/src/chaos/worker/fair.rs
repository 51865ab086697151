//! Callers that wait for one lock in the order of arrival, over all processes.

use std::time::Duration;

use anyhow::Result;
use distlock::{Clock as _, ErrorKind, Fairness, SystemClock};

use super::{hold::HeldGuard as _, task::WorkerTask};
use crate::chaos::{
    history::{CallKind, now},
    planted_bugs::StoreBug,
    worker_settings::{EXTRA_WAIT, FAIR_LOCK},
};

impl WorkerTask {
    /// Waits for the fair lock, and holds it for a moment.
    pub(super) async fn wait_in_order(&mut self) -> Result<()> {
        if self.locker.capabilities().fairness == Fairness::None {
            return self.use_one_lock().await;
        }
        let (ttl, wait) = (self.draw_ttl(), self.settings.longest_ttl() * 8);
        let mut lock = self.locker.lock(FAIR_LOCK).ttl(ttl).wait(wait);
        if self.settings.bug != Some(StoreBug::OrderIsForgotten) {
            lock = lock.fair();
        }
        let asked = now();
        let call = self
            .history
            .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
        let mut stop = self.stop.clone();
        let guard = tokio::select! {
            guard = lock.acquire() => guard,
            _ = stop.wait_for(|over| *over) => {
                drop(call);
                return Ok(());
            }
        };
        call.finish_with(&guard);
        let guard = match guard {
            Ok(guard) => guard,
            Err(error) => {
                if error.kind() == ErrorKind::Timeout {
                    self.record_wait(FAIR_LOCK, asked, None, Duration::ZERO);
                }
                self.pause().await;
                return Ok(());
            }
        };
        let hold = self.record_grant(&guard, asked, None);
        self.record_wait(FAIR_LOCK, asked, Some(hold), Duration::ZERO);
        // The holds are long, so that waits are longer than a caller needs to join the queue.
        let hold_time = self.settings.longest_ttl().mul_f32(self.rng.f32() / 2.0);
        let until = SystemClock.now() + hold_time;
        let mut valid = true;
        while valid && SystemClock.now() < until && !self.is_stopped() {
            valid = guard.use_once(hold, self).await?;
            self.pause().await;
        }
        if valid && self.check_validity(hold, &guard.watch()) {
            self.record_end_and_release(hold, guard).await;
        } else {
            let loss_watch = self.spawn_loss_watch(hold, guard.watch());
            self.record_loss(hold, &guard, loss_watch).await;
        }
        Ok(())
    }
}
