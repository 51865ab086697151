//! Clocks with a planted bug.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use distlock::{Clock, Moment, Sleep, SystemClock};

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
