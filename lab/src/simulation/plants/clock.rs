//! A clock that is wrong.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use distlock::{Clock, Moment, Sleep};

use super::kinds::Plant;

#[derive(Debug)]
pub(super) struct PlantedClock {
    pub(super) begun: Moment,
    pub(super) inner: Arc<dyn Clock>,
    pub(super) plant: Plant,
}

impl Clock for PlantedClock {
    fn now(&self) -> Moment {
        let now = self.inner.now();
        match self.plant {
            Plant::ClockRunsSlow => self.begun + now.since(self.begun) * 2 / 3,
            _ => now,
        }
    }

    fn wall(&self) -> SystemTime {
        self.inner.wall()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let times = match self.plant {
            Plant::TimersLate => 20,
            _ => 1,
        };
        self.inner.sleep(time.saturating_mul(times))
    }
}
