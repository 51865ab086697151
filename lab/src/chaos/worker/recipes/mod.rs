//! The recipes: uses that people build with a lock, each with a promise of its own.
//!
//! The guarded cache is left out. It promises a number of loads for the ordinary case, and no bound
//! under faults.

mod counters;
mod election;
mod fence;
mod once;
mod periodic;

use anyhow::Result;

use super::task::WorkerTask;
use crate::chaos::history::{Event, RecipeStep};

impl WorkerTask {
    /// Uses a random recipe.
    pub(super) async fn use_recipe(&mut self) -> Result<()> {
        match self.rng.u32(..12) {
            0..3 => self.campaign().await?,
            3..6 => self.run_periodic_job().await?,
            6..9 => self.run_effect_once().await?,
            9..11 => self.count().await?,
            _ => self.show_fence_at_gate().await?,
        }
        self.pause().await;
        Ok(())
    }

    pub(super) fn recipe(&self, step: RecipeStep) {
        self.history.note(Event::Recipe(step));
    }
}
