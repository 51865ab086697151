//! Opens a store with a planted bug.

use std::sync::Arc;

use anyhow::Result;
use distlock::{Clock, Store, SystemClock};

use super::{
    clock::{NeverEndsSleep, SleepsTooLong, StopsWithProcess},
    deposed,
    kinds::StoreBug,
    lock::BuggyLock,
    records::BuggyRecords,
};

/// Opens a store with this bug.
pub(in crate::chaos) async fn open(bug: StoreBug, url: &str, worker: u32) -> Result<Store> {
    match bug {
        StoreBug::DeposedPrimary => deposed::with_stale_primary(url).await,
        StoreBug::DeposedLeader => deposed::with_trusted_server(url, worker).await,
        _ => Ok(wrap_store(bug, &distlock::open(url).await?, worker)),
    }
}

/// Wraps an honest store in the layers of this bug.
pub(in crate::chaos) fn wrap_store(bug: StoreBug, store: &Store, worker: u32) -> Store {
    let clock: Arc<dyn Clock> = match bug {
        StoreBug::LossIsNotTold => Arc::new(NeverEndsSleep),
        StoreBug::ClockStandsStill => Arc::new(StopsWithProcess::start()),
        StoreBug::TimersRunLate => Arc::new(SleepsTooLong),
        _ => Arc::new(SystemClock),
    };
    let lock = Arc::new(BuggyLock::new(store.backend(), bug, worker));
    let records = BuggyRecords::wrap(store.records(), bug);
    Store::with_clock(lock, records, clock)
}
