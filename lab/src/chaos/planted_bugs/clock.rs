//! Clocks with a planted bug.
//!
//! Opens a store with a planted bug.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use anyhow::Result;
use distlock::{Clock, Moment, Sleep, Store, SystemClock};
use distlock_conformance::LockLayer as _;

use super::{
    agent, deposed, forged, kinds::StoreBug, lock::BuggyLock, records::BuggyRecords, ring,
};
use crate::chaos::worker_settings::WorkerSettings;

/// Shows the right time, but never ends a sleep.
#[derive(Debug)]
pub(super) struct NeverEndsSleep;

impl Clock for NeverEndsSleep {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> SystemTime {
        SystemClock.wall()
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
}

/// Shows the right time, but sleeps too long.
#[derive(Debug)]
pub(super) struct SleepsTooLong;

impl Clock for SleepsTooLong {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> SystemTime {
        SystemClock.wall()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        SystemClock.sleep(time * 20)
    }
}

/// Advances only while its process runs, like a clock of processor time.
#[derive(Debug)]
pub(super) struct StopsWithProcess {
    started: Moment,
    ran_us: Arc<AtomicU64>,
}

/// Pause between two readings of the system clock.
const TICK: Duration = Duration::from_millis(2);
/// Longest time that one reading adds. A longer gap means that the process was stopped.
const LONGEST_STEP: Duration = Duration::from_millis(20);

impl StopsWithProcess {
    /// Starts a thread that counts the running time of this process.
    pub(super) fn start() -> Self {
        let ran_us = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&ran_us);
        thread::spawn(move || {
            let mut before = SystemClock.now();
            loop {
                thread::park_timeout(TICK);
                let now = SystemClock.now();
                let ran = now.since(before).min(LONGEST_STEP);
                before = now;
                let ran = u64::try_from(ran.as_micros()).unwrap_or_default();
                counted.fetch_add(ran, Ordering::SeqCst);
            }
        });
        Self {
            started: SystemClock.now(),
            ran_us,
        }
    }
}

impl Clock for StopsWithProcess {
    fn now(&self) -> Moment {
        self.started + Duration::from_micros(self.ran_us.load(Ordering::SeqCst))
    }

    fn wall(&self) -> SystemTime {
        SystemClock.wall()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        SystemClock.sleep(time)
    }
}

/// Opens a store with this bug.
pub(in crate::chaos) async fn open(bug: StoreBug, settings: &WorkerSettings) -> Result<Store> {
    let (url, worker) = (settings.url.as_str(), settings.worker);
    match bug {
        StoreBug::DeposedPrimary => deposed::with_stale_primary(url).await,
        StoreBug::DeposedLeader => deposed::with_trusted_server(url, worker).await,
        StoreBug::ProofsAreNotChecked | StoreBug::ProofsAreForged => {
            forged::open(bug, settings).await
        }
        StoreBug::CountsFromIsDropped | StoreBug::LeaseFromJoining | StoreBug::AgentIsHonest => {
            agent::open(bug, url).await
        }
        StoreBug::MovedAtOnce | StoreBug::ViewUsedTooLong => ring::with_wrong_view(bug, url).await,
        StoreBug::MovedGuardsStay => ring::with_stubborn_guards(url).await,
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
    let lock = BuggyLock::new(store.backend(), bug, worker).into_lock();
    let records = BuggyRecords::wrap(store.records(), bug);
    Store::with_clock(lock, records, clock)
}
