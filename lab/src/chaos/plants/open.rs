//! Opens a store with a planted bug.

use std::sync::Arc;

use anyhow::Result;
use distlock::{Clock, Store, SystemClock};

use super::{
    clock::{NoAlarms, SleepsTooLong, StandsStill},
    deposed,
    kinds::Plant,
    lock::PlantedLock,
    records::PlantedRecords,
};

/// Opens a store with this bug.
pub(in crate::chaos) async fn open(bug: Plant, url: &str, worker: u32) -> Result<Store> {
    match bug {
        Plant::DeposedPrimary => deposed::loyal(url).await,
        Plant::DeposedLeader => deposed::trusting(url, worker).await,
        _ => Ok(into_store(bug, &distlock::open(url).await?, worker)),
    }
}

/// An honest store with this bug.
pub(in crate::chaos) fn into_store(bug: Plant, store: &Store, worker: u32) -> Store {
    let clock: Arc<dyn Clock> = match bug {
        Plant::LossIsNotTold => Arc::new(NoAlarms),
        Plant::ClockStandsStill => Arc::new(StandsStill::start()),
        Plant::TimersRunLate => Arc::new(SleepsTooLong),
        _ => Arc::new(SystemClock),
    };
    let lock = Arc::new(PlantedLock::new(store.lock(), bug, worker));
    let records = PlantedRecords::around(store.records(), bug);
    Store::with_clock(lock, records, clock)
}
