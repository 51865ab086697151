//! Puts a layer with a bug around the connection and the clock of a process.

use std::sync::Arc;

use distlock::{Clock, DistLock};

use super::{clock::BuggyClock, connection::BuggyConnection, kinds::EngineBug};
use crate::simulation::world::World;

/// Wraps the connection of a process in a layer with the bug.
pub(in crate::simulation) fn around_lock(
    bug: EngineBug,
    world: &Arc<World>,
    process: usize,
    inner: Arc<dyn DistLock>,
) -> Arc<dyn DistLock> {
    Arc::new(BuggyConnection::new(inner, bug, world, process))
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
