//! The two clocks that one call to the table needs, read together.

use distlock_core::{Clock, Moment, micros, unix_time};

/// The time at which a call to the table happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The boot-time clock, on which leases are counted.
    pub boot: Moment,
    /// The wall clock in microseconds since 1970. New tokens are not below this number, and people
    /// see this time.
    pub wall_micros: u64,
}

impl Now {
    /// Reads both clocks.
    pub fn of(clock: &dyn Clock) -> Self {
        Self {
            boot: clock.now(),
            wall_micros: micros(unix_time(clock)),
        }
    }
}
