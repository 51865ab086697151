//! The clock of the hosted table: the machine's clock, whose wall time starts at the ceiling after
//! a crash. The table's tokens are not below that wall time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use distlock_core::{Clock, Moment, Sleep};

/// A clock whose wall time is not below a floor.
#[derive(Debug)]
pub(super) struct TokenClock {
    pub(super) clock: Arc<dyn Clock>,
    /// In microseconds since 1970.
    pub(super) floor: u64,
}

impl Clock for TokenClock {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn wall(&self) -> SystemTime {
        let floor = SystemTime::UNIX_EPOCH + Duration::from_micros(self.floor);
        self.clock.wall().max(floor)
    }

    fn sleep(&self, time: Duration) -> Sleep {
        self.clock.sleep(time)
    }
}
