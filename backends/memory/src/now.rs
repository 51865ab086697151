//! The time of one call.

use distlock_core::{Clock, Moment, micros, unix_time};

/// The time of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Leases are counted on this clock.
    pub boot: Moment,
    /// Wall clock, microseconds since 1970: the floor of new tokens, and what people see.
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
