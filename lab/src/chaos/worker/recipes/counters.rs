//! The recipe of unread counters.

use anyhow::Result;
use distlock_recipes::unread::{Counter, LockedCounters, OptimisticCounters, UnreadCounters};

use crate::chaos::{
    history::{RecipeStep, now},
    worker::task::WorkerTask,
};

/// The user whose unread messages all tasks count.
const USER: &str = "anna";
/// Number of conversations of that user.
const CONVERSATIONS: u32 = 3;

impl WorkerTask {
    /// Counts one message, with a lock or without one. Both ways may be used at the same time.
    pub(super) async fn count_message(&mut self) -> Result<()> {
        let counters: Box<dyn UnreadCounters> = if self.rng.bool() {
            let ttl = self.settings.longest_ttl();
            Box::new(LockedCounters::new(&self.store).ttl(ttl))
        } else {
            Box::new(OptimisticCounters::new(&self.store))
        };
        let conversation = self.rng.u32(..CONVERSATIONS);
        let counter = Counter::new(USER, conversation.to_string())?;
        let asked = now();
        // The recipe may wait for its lock longer than a run continues after its last fault.
        let mut stop = self.stop.clone();
        let unread = tokio::select! {
            unread = counters.increment(&counter, 1) => unread,
            _ = stop.wait_for(|over| *over) => return Ok(()),
        };
        if let Ok(unread) = unread {
            self.record_recipe_step(RecipeStep::Counted {
                conversation,
                in_conversation: unread.conversation,
                total: unread.total,
                asked,
                at: now(),
            });
        }
        Ok(())
    }
}
