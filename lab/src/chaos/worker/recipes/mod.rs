//! The recipes: what people build with a lock. Each has a promise of its own.
//!
//! The guarded cache is left out: it promises how many loads there are in the ordinary case, and no
//! bound under faults.

mod counters;
mod election;
mod fence;
mod once;
mod periodic;

use anyhow::Result;

use super::task::Task;
use crate::chaos::history::{Event, RecipeStep};

impl Task {
    /// Uses one recipe.
    pub(super) async fn use_a_recipe(&mut self) -> Result<()> {
        match self.rng.u32(..12) {
            0..3 => self.stand_for_election().await?,
            3..6 => self.run_a_job().await?,
            6..9 => self.make_an_effect().await?,
            9..11 => self.count().await?,
            _ => self.pass_a_gate().await?,
        }
        self.rest().await;
        Ok(())
    }

    pub(super) fn recipe(&self, step: RecipeStep) {
        self.notes.note(Event::Recipe(step));
    }
}
