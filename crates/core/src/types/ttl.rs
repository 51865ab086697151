//! TTLs, checked once, and the margin of a lease.
//!
//! Invariant: a TTL is a whole number of milliseconds from 1 ms to 24 h. A lease must never be
//! longer than the caller requested, so a fraction of a millisecond is cut off.

use std::{fmt, time::Duration};

use crate::types::{
    duration::format_duration,
    error::{Error, ErrorKind, Result},
};

/// The duration of a lease: a whole number of milliseconds, 1 ms to 24 h.
///
/// A store requires more than 1 ms: `memory:` 10 ms, the other stores of this project 100 ms
/// ([`Capabilities::min_ttl`](crate::Capabilities::min_ttl)). The [`Locker`](crate::Locker) checks
/// the store's minimum before any I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u64);

impl Ttl {
    /// The longest lease: 24 hours.
    pub const MAX: Self = Self(24 * 60 * 60 * 1000);

    /// Checks a duration. A fraction of a millisecond is cut off, so that a lease is never longer
    /// than the caller requested.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the duration is under 1 ms or over 24 h.
    pub fn new(ttl: Duration) -> Result<Self> {
        match u64::try_from(ttl.as_millis()) {
            Ok(ms @ 1..) if ms < Self::MAX.0 || ttl == Self::MAX.duration() => Ok(Self(ms)),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("ttl of {} is outside 1 ms to 24 h", format_duration(ttl)),
            )),
        }
    }

    /// A TTL of a whole number of milliseconds.
    ///
    /// # Errors
    /// As [`Ttl::new`].
    pub fn from_millis(ms: u64) -> Result<Self> {
        Self::new(Duration::from_millis(ms))
    }

    /// The TTL as a [`Duration`].
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// The TTL in milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

/// The margin of a lease: 10 % of its duration, at least 50 ms, and never more than half of its
/// duration. The local deadline is earlier than the end of the store's lease by this margin.
///
/// The margin covers clocks that run at slightly different rates, and the time between a check and
/// the action that the check allows.
#[must_use]
pub fn margin(valid_for: Duration) -> Duration {
    (valid_for / 10)
        .max(Duration::from_millis(50))
        .min(valid_for / 2)
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.duration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_outside_1_ms_to_24_h_are_refused() {
        for bad in [
            Duration::ZERO,
            Duration::from_micros(999),
            Ttl::MAX.duration() + Duration::from_nanos(1),
            Duration::MAX,
        ] {
            assert_eq!(
                Ttl::new(bad).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{bad:?}"
            );
        }
        assert_eq!(
            Ttl::new(Duration::from_micros(1999)).unwrap().as_millis(),
            1
        );
        assert_eq!(Ttl::new(Ttl::MAX.duration()).unwrap(), Ttl::MAX);
    }

    #[test]
    fn margin_is_a_tenth_at_least_50_ms_at_most_half() {
        let ms = Duration::from_millis;
        assert_eq!(margin(ms(10_000)), ms(1_000));
        assert_eq!(margin(ms(300)), ms(50));
        assert_eq!(margin(ms(80)), ms(40));
        assert_eq!(margin(Duration::ZERO), Duration::ZERO);
    }
}
