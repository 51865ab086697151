//! A clock with a planted bug.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use distlock::{Clock, Moment, Sleep};

use super::kinds::EngineBug;

/// An honest clock with one bug. `begun` is the time at which the layer was put around the clock.
#[derive(Debug)]
pub(super) struct BuggyClock {
    pub(super) begun: Moment,
    pub(super) inner: Arc<dyn Clock>,
    pub(super) bug: EngineBug,
}

impl Clock for BuggyClock {
    fn now(&self) -> Moment {
        let now = self.inner.now();
        match self.bug {
            EngineBug::ClockRunsSlow => self.begun + now.since(self.begun) * 2 / 3,
            _ => now,
        }
    }

    fn wall(&self) -> SystemTime {
        self.inner.wall()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let times = match self.bug {
            EngineBug::TimersLate => 20,
            _ => 1,
        };
        self.inner.sleep(time.saturating_mul(times))
    }
}
