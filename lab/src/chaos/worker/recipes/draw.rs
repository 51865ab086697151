//! Draws one recipe at a time.

use anyhow::Result;

use crate::chaos::{
    history::{Event, RecipeStep},
    worker::task::WorkerTask,
};

impl WorkerTask {
    /// Uses a random recipe.
    pub(in crate::chaos::worker) async fn use_recipe(&mut self) -> Result<()> {
        match self.rng.u32(..12) {
            0..3 => self.campaign().await?,
            3..6 => self.run_periodic_job().await?,
            6..9 => self.run_effect_once().await?,
            9..11 => self.count_message().await?,
            _ => self.show_fence_to_gate().await?,
        }
        self.pause().await;
        Ok(())
    }

    /// Records a step of a recipe.
    pub(super) fn record_recipe_step(&self, step: RecipeStep) {
        self.history.record(Event::Recipe(step));
    }
}
