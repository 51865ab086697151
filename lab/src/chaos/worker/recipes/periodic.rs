//! The recipe of jobs that many hosts start, and that run on one of them once per period.

use std::time::Duration;

use anyhow::Result;
use distlock::{Clock as _, Error, ErrorKind, SystemClock};
use distlock_recipes::Periodic;

use crate::chaos::{
    history::{RecipeStep, now},
    worker::task::WorkerTask,
};

/// Period of each job, much longer than the start of a job takes.
const PERIOD: Duration = Duration::from_millis(800);
/// A killed host keeps the lock of its job for ten seconds, so a run needs many jobs.
const JOBS: u32 = 8;

impl WorkerTask {
    /// Starts a job, if it is due.
    pub(super) async fn run_periodic_job(&mut self) -> Result<()> {
        // Some stores record no age of a record, and the recipe needs that age.
        let Ok(periodic) = Periodic::new(&self.store) else {
            return Ok(());
        };
        let job = format!("job {}", self.rng.u32(..JOBS));
        let fails = self.rng.u32(..6) == 0;
        let time = PERIOD.mul_f32(self.rng.f32() / 8.0);
        let (run, asked) = (self.history.next_number(), now());
        let task = &*self;
        let work = async |_| {
            task.record_recipe_step(RecipeStep::JobRuns {
                job: job.clone(),
                run,
                period_us: u64::try_from(PERIOD.as_micros()).unwrap_or_default(),
                asked,
                at: now(),
            });
            SystemClock.sleep(time).await;
            if fails {
                // A failed job does not run again in the same period.
                return Err(Error::new(ErrorKind::Unavailable, "the job failed"));
            }
            Ok(())
        };
        drop(periodic.at_most_once(&job, PERIOD, work).await);
        Ok(())
    }
}
