//! The recipe of fences: a gate accepts no earlier holder after a later one.

use anyhow::Result;
use distlock::{Clock as _, SystemClock};
use distlock_recipes::RecordsFence;

use crate::chaos::{
    history::{CallKind, RecipeStep, now},
    worker::{settings::EXTRA_WAIT, task::WorkerTask},
};

/// The lock, and the resource behind the gate.
const RESOURCE: &str = "gate";

impl WorkerTask {
    /// Takes a lock, and shows its fence at the gate, in some cases long after the lock is lost.
    pub(super) async fn show_fence_to_gate(&mut self) -> Result<()> {
        let (ttl, wait) = (self.draw_ttl(), self.draw_wait());
        let lock = self.locker.lock(RESOURCE).ttl(ttl).wait(wait);
        let call = self
            .history
            .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
        let guard = lock.acquire().await;
        call.finish_with(&guard);
        let Ok(guard) = guard else { return Ok(()) };
        let (gate, fence) = (RecordsFence::new(&self.store), guard.fence());
        let late = self.rng.u32(..3) == 0;
        if late {
            let _ = guard.release().await;
            SystemClock.sleep(self.draw_wait() / 4).await;
        } else {
            // The guard is released when it is dropped, after the gate has answered.
            let _behind = guard;
            self.show_fence(&gate, &fence).await;
            return Ok(());
        }
        self.show_fence(&gate, &fence).await;
        Ok(())
    }

    /// Shows a fence to the gate, and records that the gate accepted it.
    async fn show_fence(&self, gate: &RecordsFence, fence: &distlock::Fence) {
        let asked = now();
        if gate.admit(RESOURCE, fence).await.is_ok() {
            self.record_recipe_step(RecipeStep::Admitted {
                token: fence.token.get(),
                asked,
                at: now(),
            });
        }
    }
}
