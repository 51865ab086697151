//! Puts a layer with a bug around the connection and the clock of a process.
//!
//! A clock with a planted bug.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use distlock::{Clock, DistLock, Moment, Sleep};
use distlock_conformance::LockLayer as _;

use super::{connection::BuggyConnection, kinds::EngineBug, ring::BuggyRing};
use crate::simulation::world::World;

/// Wraps the connection of a process in a layer with the bug.
pub(in crate::simulation) fn around_lock(
    bug: EngineBug,
    world: &Arc<World>,
    process: usize,
    inner: Arc<dyn DistLock>,
) -> Arc<dyn DistLock> {
    if bug.is_in_the_quorum() {
        return inner;
    }
    if bug.is_in_the_ring() {
        return BuggyRing {
            bug,
            world: Arc::clone(world),
            process,
            inner,
        }
        .into_lock();
    }
    BuggyConnection::new(inner, bug, world, process).into_lock()
}

/// Wraps the clock of a process in a layer, if the bug is in the clock.
pub(in crate::simulation) fn around_clock(bug: EngineBug, inner: Arc<dyn Clock>) -> Arc<dyn Clock> {
    match bug {
        EngineBug::ClockRunsSlow | EngineBug::TimersLate => Arc::new(BuggyClock {
            begun: inner.now(),
            inner,
            bug,
        }),
        _ => inner,
    }
}

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
