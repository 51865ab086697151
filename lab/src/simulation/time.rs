//! Simulated time: one timeline for all processes, and a clock for each process. Each clock has its
//! own start and its own error. Time moves only when the run moves it.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use distlock::{Clock, Moment, Sleep};
use distlock_core::sync::Mutex;

/// The true time, and all sleeping tasks.
#[derive(Clone, Default)]
pub(super) struct Timeline(Arc<Mutex<TimelineState>>);

/// The present time, and the sleeping tasks by the end of their sleep.
#[derive(Default)]
struct TimelineState {
    now: Duration,
    next: u64,
    sleepers: BTreeMap<(Duration, u64), Option<Waker>>,
}

impl Timeline {
    /// Returns the true time since the begin of the run.
    pub(super) fn now(&self) -> Duration {
        self.0.lock().now
    }

    /// Returns the end of the first sleep.
    pub(super) fn next_wake_up(&self) -> Option<Duration> {
        self.0.lock().sleepers.keys().next().map(|(end, _)| *end)
    }

    /// Returns the number of timers that have not fired.
    pub(super) fn sleeper_count(&self) -> usize {
        self.0.lock().sleepers.len()
    }

    /// Moves time forward, and wakes the tasks whose sleep has ended.
    pub(super) fn advance_to(&self, now: Duration) {
        let woken: Vec<_> = {
            let state = &mut *self.0.lock();
            state.now = state.now.max(now);
            let later = state.sleepers.split_off(&(state.now, u64::MAX));
            let over = std::mem::replace(&mut state.sleepers, later);
            over.into_values().flatten().collect()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Sleeps for this true time.
    pub(super) fn sleep(&self, time: Duration) -> Sleep {
        let mut state = self.0.lock();
        state.next += 1;
        let key = (state.now.saturating_add(time), state.next);
        state.sleepers.insert(key, None);
        drop(state);
        Box::pin(SimulatedSleep {
            time: self.clone(),
            key,
        })
    }
}

/// A sleep. Dropping the value cancels its timer.
struct SimulatedSleep {
    time: Timeline,
    key: (Duration, u64),
}

impl Future for SimulatedSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.time.0.lock().sleepers.get_mut(&self.key) {
            Some(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for SimulatedSleep {
    fn drop(&mut self) {
        self.time.0.lock().sleepers.remove(&self.key);
    }
}

/// The clock of one machine. Each clock has its own start, and runs a little too fast or too slow.
#[derive(Clone)]
pub(super) struct MachineClock {
    time: Timeline,
    /// The time that the clock shows at the beginning.
    start: Duration,
    /// The error of the clock in millionths; a negative value means that the clock is slow.
    error_ppm: i32,
}

const MILLION: u128 = 1_000_000;

impl MachineClock {
    pub(super) const fn new(time: Timeline, start: Duration, error_ppm: i32) -> Self {
        Self {
            time,
            start,
            error_ppm,
        }
    }

    /// Returns the true time at which the clock shows `moment`.
    pub(super) fn true_time(&self, moment: Moment) -> Duration {
        self.true_span(moment.since_boot().saturating_sub(self.start))
    }

    /// Returns the true time that passes while the clock advances by `time`.
    pub(super) fn true_span(&self, time: Duration) -> Duration {
        scale(time, MILLION, self.rate())
    }

    /// Returns how far the clock advances in a million units of true time.
    fn rate(&self) -> u128 {
        MILLION.saturating_add_signed(i128::from(self.error_ppm))
    }
}

/// Returns `time` times `by`, divided by `of`.
fn scale(time: Duration, by: u128, of: u128) -> Duration {
    let nanos = time.as_nanos().saturating_mul(by) / of;
    u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
}

impl Clock for MachineClock {
    fn now(&self) -> Moment {
        Moment::from_boot(self.start + scale(self.time.now(), self.rate(), MILLION))
    }

    fn wall(&self) -> SystemTime {
        // The date does not matter; this is 2020-01-01.
        let date = Duration::from_secs(1_577_836_800);
        SystemTime::UNIX_EPOCH + date + self.now().since_boot()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        // The extra nanoseconds balance the rounding: otherwise a sleep could end before the clock
        // shows its end.
        let nanos = Duration::from_nanos(2);
        self.time.sleep(self.true_span(time).saturating_add(nanos))
    }
}

impl fmt::Debug for MachineClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MachineClock({:?})", self.now())
    }
}
