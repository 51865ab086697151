//! The layers with a bug around the connection and the clock of a process.

use std::sync::Arc;

use distlock::{Clock, DistLock};

use super::{clock::PlantedClock, kinds::Plant, lock::PlantedLock};
use crate::simulation::world::World;

pub(in crate::simulation) fn around_lock(
    bug: Plant,
    world: &Arc<World>,
    process: usize,
    inner: Arc<dyn DistLock>,
) -> Arc<dyn DistLock> {
    Arc::new(PlantedLock::new(inner, bug, world, process))
}

pub(in crate::simulation) fn around_clock(bug: Plant, inner: Arc<dyn Clock>) -> Arc<dyn Clock> {
    match bug {
        Plant::ClockRunsSlow | Plant::TimersLate => Arc::new(PlantedClock {
            begun: inner.now(),
            inner,
            plant: bug,
        }),
        _ => inner,
    }
}
