//! The settings of a guarded cache.
//!
//! Invariant: [`Settings::check`] refuses a value out of range before the guard is made.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result};

/// The longest time that a setting may have.
const LONGEST_TIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// The fallback of a caller that has waited long enough for another load, or that cannot reach the
/// cache or the lock's store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// The caller gets an error: [`Timeout`](ErrorKind::Timeout) after the wait, or the error of
    /// the cache or of the lock's store.
    #[default]
    Error,
    /// The caller loads by itself, and its value is not stored.
    Load,
}

/// The settings of a [`CacheGuard`](super::CacheGuard).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// The longest time for which a value is fresh: 1 ms to 366 days, 60 s by default.
    pub ttl: Duration,
    /// The share of that time by which it is shortened at most, at random: 0 to 1, a tenth by
    /// default. So values that were stored together do not expire together.
    pub jitter: f64,
    /// The time for which an expired value is still served while a new value is loaded; zero by
    /// default: no caller gets a stale value.
    pub stale: Duration,
    /// The time for which the cache remembers that there is no value; zero by default: every caller
    /// runs its loader.
    pub negative_ttl: Duration,
    /// The factor of early loads (XFetch): 1 by default. With a higher factor, values are loaded
    /// earlier before they expire. With 0, no value is loaded early. The chance also grows with the
    /// time that a load takes.
    pub beta: f64,
    /// The longest time of a load, after which it is given up: 1 ms to 366 days, 30 s by default.
    pub max_load: Duration,
    /// The longest wait for a value that another caller loads, 5 s by default.
    pub wait: Duration,
    /// The fallback of a caller after that wait.
    pub fallback: Fallback,
    /// The largest value in bytes, 1 MiB by default. A larger value is returned to its caller and
    /// not stored.
    pub max_value: usize,
    /// The TTL of the lock under which a value is loaded. When a loader dies, its key stays locked
    /// until the lease ends. `None`, the default, means the store's default TTL.
    pub lock_ttl: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(60),
            jitter: 0.1,
            stale: Duration::ZERO,
            negative_ttl: Duration::ZERO,
            beta: 1.0,
            max_load: Duration::from_secs(30),
            wait: Duration::from_secs(5),
            fallback: Fallback::Error,
            max_value: 1 << 20,
            lock_ttl: None,
        }
    }
}

impl Settings {
    /// Settings with values that are fresh for this long.
    #[must_use]
    pub fn ttl(ttl: Duration) -> Self {
        Self {
            ttl,
            ..Self::default()
        }
    }

    /// Refuses a setting that is out of range.
    pub(super) fn check(&self) -> Result<()> {
        let millisecond = Duration::from_millis(1);
        for (name, time, least) in [
            ("ttl", self.ttl, millisecond),
            ("max_load", self.max_load, millisecond),
            ("stale", self.stale, Duration::ZERO),
            ("negative_ttl", self.negative_ttl, Duration::ZERO),
            ("wait", self.wait, Duration::ZERO),
        ] {
            if !(least..=LONGEST_TIME).contains(&time) {
                return Err(invalid_setting_error(&format!(
                    "{name} is {time:?}: {least:?} to {LONGEST_TIME:?} (366 days) are allowed"
                )));
            }
        }
        for (name, number, most) in [("jitter", self.jitter, 1.0), ("beta", self.beta, 1000.0)] {
            if !(0.0..=most).contains(&number) {
                return Err(invalid_setting_error(&format!(
                    "{name} is {number}: 0 to {most} are allowed"
                )));
            }
        }
        Ok(())
    }

    /// The time for which a value that is stored now is fresh. The random variation only shortens
    /// the time, because the caller relies on the longest age of a value.
    pub(super) fn fresh_time(&self, is_negative: bool) -> Duration {
        let time = if is_negative {
            self.negative_ttl
        } else {
            self.ttl
        };
        let shortened = time.mul_f64(1.0 - fastrand::f64() * self.jitter);
        shortened.max(Duration::from_millis(1))
    }
}

fn invalid_setting_error(says: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, says)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_variation_never_makes_a_value_last_longer() {
        let mut settings = Settings::ttl(Duration::from_secs(100));
        settings.negative_ttl = Duration::from_secs(10);
        for (is_negative, longest) in [(false, 100), (true, 10)] {
            let longest = Duration::from_secs(longest);
            let times: Vec<_> = (0..1000)
                .map(|_| settings.fresh_time(is_negative))
                .collect();
            let beyond = times.iter().filter(|time| **time > longest).count();
            assert_eq!(beyond, 0, "of 1000 values that outlive their time");
            assert!(times.iter().all(|time| *time >= longest.mul_f64(0.9)));
            assert!(times.iter().any(|time| *time < longest.mul_f64(0.95)));
        }
    }
}
