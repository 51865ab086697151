//! How a guarded cache behaves.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result};

/// Longest time that any setting may name.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// What a caller gets who has waited for somebody else's load long enough, or for whom the cache or
/// the lock's store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// An error: of kind [`Timeout`](ErrorKind::Timeout), or what the store says.
    #[default]
    Error,
    /// It loads by itself, and what it gets is not stored.
    Load,
}

/// How a [`CacheGuard`](super::CacheGuard) behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// How long a value is fresh: 1 ms to 366 days, 60 s unless set.
    pub ttl: Duration,
    /// By how much a value's time is varied at random, as a share of it: 0 to 1, a tenth unless
    /// set. Values that were stored together do not end together.
    pub jitter: f64,
    /// How long a value that is not fresh any more is good enough while a new one is loaded; zero
    /// unless set: nobody gets a stale one.
    pub stale: Duration,
    /// How long it is known that there is no value; zero unless set: every caller asks.
    pub negative_ttl: Duration,
    /// How eagerly a fresh value is loaded anew before its end (XFetch): 1 unless set; more is
    /// earlier, 0 is never. The chance grows with the time that a load takes.
    pub beta: f64,
    /// Longest time for a load, after which it is given up: 1 ms to 366 days, 30 s unless set.
    pub max_load: Duration,
    /// Longest wait for a value that somebody else loads, 5 s unless set.
    pub wait: Duration,
    /// What becomes of a caller after that wait.
    pub fallback: Fallback,
    /// Largest value in bytes, 1 MiB unless set. A larger one is given to its caller and not
    /// stored.
    pub max_value: usize,
    /// How long a key is nobody's to load when its loader has died; the store's default unless set.
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
    /// With values that are fresh for so long.
    #[must_use]
    pub fn ttl(ttl: Duration) -> Self {
        Self {
            ttl,
            ..Self::default()
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let millisecond = Duration::from_millis(1);
        for (name, time, least) in [
            ("ttl", self.ttl, millisecond),
            ("max_load", self.max_load, millisecond),
            ("stale", self.stale, Duration::ZERO),
            ("negative_ttl", self.negative_ttl, Duration::ZERO),
            ("wait", self.wait, Duration::ZERO),
        ] {
            if !(least..=LONGEST).contains(&time) {
                return Err(invalid(&format!(
                    "{name} is {time:?}: {least:?} to {LONGEST:?} (366 days) are allowed"
                )));
            }
        }
        for (name, number, most) in [("jitter", self.jitter, 1.0), ("beta", self.beta, 1000.0)] {
            if !(0.0..=most).contains(&number) {
                return Err(invalid(&format!(
                    "{name} is {number}: 0 to {most} are allowed"
                )));
            }
        }
        Ok(())
    }

    /// How long a value that is stored now is fresh.
    pub(super) fn time_of(&self, is_negative: bool) -> Duration {
        let time = if is_negative {
            self.negative_ttl
        } else {
            self.ttl
        };
        let by = (fastrand::f64() * 2.0 - 1.0) * self.jitter;
        time.mul_f64(1.0 + by).max(Duration::from_millis(1))
    }
}

fn invalid(says: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, says)
}
