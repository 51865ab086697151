//! A locker's clock and the jitter of its pauses.
//!
//! This module owns the random numbers of one locker. A seed makes them repeatable. The caller
//! chooses each pause, and this module varies that pause.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::engine::clock::{Clock, Moment};

/// A clock and a generator of random numbers.
pub(crate) struct Timing {
    clock: Arc<dyn Clock>,
    random: Mutex<fastrand::Rng>,
}

impl Timing {
    /// Without a `seed`, the random numbers differ in each locker.
    pub(crate) fn new(clock: Arc<dyn Clock>, seed: Option<u64>) -> Self {
        let random = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self {
            clock,
            random: Mutex::new(random),
        }
    }

    pub(crate) const fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A random time between half of `pause` and all of it, so that callers that failed at the same
    /// moment do not ask again at the same moment.
    pub(crate) fn jitter(&self, pause: Duration) -> Duration {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        pause.mul_f64(0.5 + random.f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::clock::SystemClock;

    #[test]
    fn jitter_leaves_at_least_half_of_a_pause_and_never_makes_it_longer() {
        let timing = Timing::new(Arc::new(SystemClock), Some(7));
        let pause = Duration::from_secs(1);
        let times: Vec<_> = (0..1000).map(|_| timing.jitter(pause)).collect();
        assert!(times.iter().all(|time| (pause / 2..=pause).contains(time)));
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(*most - *least > pause / 4, "{least:?} to {most:?}");
    }
}
