//! The recipe of effects that several callers ask for, and that happen once.

use anyhow::Result;
use distlock::{Clock as _, Error, ErrorKind, SystemClock};
use distlock_recipes::idempotent::Idempotent;

use crate::chaos::{
    history::{Micros, RecipeStep, now},
    worker::{settings::EXTRA_WAIT, task::WorkerTask},
};

/// Time for which all tasks ask for the same key.
const KEY_TIME: Micros = 400_000;

impl WorkerTask {
    /// Asks for an effect that other tasks ask for as well.
    pub(super) async fn run_effect_once(&mut self) -> Result<()> {
        let key = format!("payment-{}", now() / KEY_TIME);
        let (ttl, wait) = (self.draw_ttl(), self.draw_wait());
        let (value, fails) = (self.rng.u64(..), self.rng.u32(..6) == 0);
        let lock = self.locker.lock(format!("once {key}")).ttl(ttl).wait(wait);
        let call = self
            .history
            .begin_call(crate::chaos::history::CallKind::Acquire, wait + EXTRA_WAIT);
        let guard = lock.acquire().await;
        call.finish_with(&guard);
        let Ok(guard) = guard else { return Ok(()) };
        let (task, asked) = (&*self, now());
        let effect = async || {
            SystemClock.sleep(std::time::Duration::from_millis(1)).await;
            if fails {
                return Err(Error::new(ErrorKind::Unavailable, "nothing was paid"));
            }
            let key = key.clone();
            task.record_recipe_step(RecipeStep::Made {
                key,
                value,
                asked,
                at: now(),
            });
            Ok(value)
        };
        let once = Idempotent::new(&self.store);
        if let Ok(once) = once.once(&key, guard.token(), effect).await {
            let received = once.into_inner();
            self.record_recipe_step(RecipeStep::Told {
                key,
                value: received,
                asked,
                at: now(),
            });
        }
        let _ = guard.release().await;
        Ok(())
    }
}
