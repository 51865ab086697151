//! The time source of leases.
//!
//! This module owns the trait [`Clock`], the machine's clock, a manual clock for tests, and the
//! sleeps of both. Invariant: the clock that decides about leases never goes back, and counts the
//! time in suspend. Other modules must not read the operating system's clocks or call tokio's
//! timers; clippy's `disallowed_methods` refuses such calls. So a test controls all time by
//! injecting a clock.

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    fmt,
    future::Future,
    ops::{Add, Sub},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use crate::sync::Mutex;
use pin_project_lite::pin_project;
use tokio::runtime::{self, Handle};

/// A point on the boot-time clock of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The moment at this time since boot.
    #[must_use]
    pub const fn from_boot(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// The time since boot.
    #[must_use]
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }
}

/// A sleep that a [`Clock`] started.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The time source of a [`Locker`](crate::Locker).
///
/// Inject a [`ManualClock`] to test your own handling of expiry.
pub trait Clock: Any + fmt::Debug + Send + Sync {
    /// The present moment, on a clock that also counts while the machine is suspended.
    fn now(&self) -> Moment;

    /// The wall clock, for display and for the tokens of embedded stores. No decision about a lease
    /// may use the wall clock, because an operator or NTP may step it.
    fn wall(&self) -> SystemTime;

    /// Sleeps for about `time`. Callers check [`Clock::now`] afterwards, since a sleep may end late
    /// after a suspend.
    fn sleep(&self, time: Duration) -> Sleep;
}

/// The machine's own clock: `CLOCK_BOOTTIME` on Linux. Unlike [`std::time::Instant`], this clock
/// counts the time in suspend.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::cast_sign_loss, reason = "time since boot is never negative")]
    fn now(&self) -> Moment {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(CLOCK);
        Moment(Duration::new(
            now.tv_sec as u64,
            u32::try_from(now.tv_nsec).unwrap_or(0),
        ))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads it"
    )]
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        Box::pin(SystemSleep::start(time))
    }
}

pin_project! {
    /// A sleep that allocates nothing if the clock is [`SystemClock`]. Each operation that is not
    /// answered at once starts such a sleep, so a box would cost an allocation for each operation.
    #[project = TimerProjection]
    pub(crate) enum Timer {
        System { #[pin] sleep: SystemSleep },
        Other { sleep: Sleep },
    }
}

impl Timer {
    pub(crate) fn start(clock: &dyn Clock, time: Duration) -> Self {
        if clock.type_id() == TypeId::of::<SystemClock>() {
            let sleep = SystemSleep::start(time);
            Self::System { sleep }
        } else {
            let sleep = clock.sleep(time);
            Self::Other { sleep }
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.project() {
            TimerProjection::System { sleep } => sleep.poll(context),
            TimerProjection::Other { sleep } => sleep.as_mut().poll(context),
        }
    }
}

pin_project! {
    /// A sleep that registers with the runtime that polls it.
    ///
    /// An operation that its caller abandons continues on the keeper thread. The caller's runtime
    /// may be gone by then, and a timer of that runtime would never fire.
    pub(crate) struct SystemSleep {
        #[pin]
        sleep: tokio::time::Sleep,
        runtime_id: Option<runtime::Id>,
    }
}

impl SystemSleep {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that sleeps"
    )]
    fn start(time: Duration) -> Self {
        Self {
            sleep: tokio::time::sleep(time),
            runtime_id: runtime_id(),
        }
    }
}

fn runtime_id() -> Option<runtime::Id> {
    Handle::try_current().ok().map(|handle| handle.id())
}

impl Future for SystemSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let here = runtime_id();
        if here != *this.runtime_id && here.is_some() {
            let end = this.sleep.deadline();
            this.sleep.set(tokio::time::sleep_until(end));
            *this.runtime_id = here;
        }
        this.sleep.poll(context)
    }
}

/// The wall clock of `clock` as the time since 1970; zero for a time before 1970.
#[must_use]
pub fn unix_time(clock: &dyn Clock) -> Duration {
    clock
        .wall()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
}

/// A clock that only [`ManualClock::advance`] moves. A sleep ends when the clock reaches the end of
/// that sleep.
///
/// ```
/// use std::{sync::Arc, time::Duration};
///
/// use distlock::{ManualClock, Renew, Target};
///
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// let clock = ManualClock::new();
/// let target = Target::new("memory:?private=true").clock(Arc::new(clock.clone()));
/// let locker = distlock::connect(target).await?;
/// let lock = locker.lock("order:7").ttl(Duration::from_secs(10)).renew(Renew::Manual);
/// let guard = lock.acquire().await?;
/// clock.advance(Duration::from_secs(11)); // nobody waits for it
/// assert!(!guard.is_valid());
/// println!("the code under test hears: {}", guard.lost().await);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct ManualClock(Arc<Mutex<Manual>>);

#[derive(Default)]
struct Manual {
    now: Duration,
    next: u64,
    sleepers: BTreeMap<(Duration, u64), Option<Waker>>,
}

impl ManualClock {
    /// A clock that starts at one hour after boot.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Manual {
            now: Duration::from_secs(3600),
            ..Manual::default()
        })))
    }

    /// Moves the clock forward and wakes the sleeps that have ended.
    pub fn advance(&self, by: Duration) {
        let woken: Vec<_> = {
            let locked = &mut *self.0.lock();
            locked.now = locked.now.saturating_add(by);
            let end = (locked.now, u64::MAX);
            let later = locked.sleepers.split_off(&end);
            std::mem::replace(&mut locked.sleepers, later)
                .into_values()
                .flatten()
                .collect()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// The number of sleeps that have not ended. A test uses this number to wait until the code
    /// under test sleeps.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.0.lock().sleepers.len()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({:?})", self.0.lock().now)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment(self.0.lock().now)
    }

    fn wall(&self) -> SystemTime {
        // The wall clock starts at 2020-01-01. Any fixed date would do.
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800) + self.0.lock().now
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let key = {
            let mut locked = self.0.lock();
            locked.next += 1;
            let key = (locked.now.saturating_add(time), locked.next);
            locked.sleepers.insert(key, None);
            key
        };
        Box::pin(ManualSleep {
            clock: self.clone(),
            key,
        })
    }
}

struct ManualSleep {
    clock: ManualClock,
    key: (Duration, u64),
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.clock.0.lock().sleepers.get_mut(&self.key) {
            Some(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        self.clock.0.lock().sleepers.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn the_system_clock_never_goes_back() {
        let first = SystemClock.now();
        assert!(SystemClock.now() >= first);
    }

    #[test]
    fn the_wall_clock_is_told_as_the_time_since_1970() {
        let in_2020 = Duration::from_secs(50 * 365 * 24 * 3600);
        assert!(unix_time(&SystemClock) > in_2020);
    }

    #[tokio::test]
    async fn only_a_sleep_of_the_system_clock_needs_no_box() {
        let timer = |clock: &dyn Clock| Timer::start(clock, Duration::ZERO);
        assert!(matches!(timer(&SystemClock), Timer::System { .. }));
        assert!(matches!(timer(&ManualClock::new()), Timer::Other { .. }));
    }

    #[test]
    fn a_sleep_may_be_polled_outside_of_any_runtime() {
        let runtime = runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let mut sleep = {
            let _entered = runtime.enter();
            SystemClock.sleep(Duration::from_secs(60))
        };
        let mut context = Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(&mut context).is_pending());
    }

    #[test]
    fn a_sleep_ends_on_another_runtime_after_its_own_was_dropped() {
        let runtime = || {
            let mut builder = runtime::Builder::new_current_thread();
            builder.enable_time().build().unwrap()
        };
        let first = runtime();
        let mut sleep = {
            let _entered = first.enter();
            SystemClock.sleep(Duration::from_millis(20))
        };
        let look = poll_fn(|context| Poll::Ready(sleep.as_mut().poll(context)));
        assert!(first.block_on(look).is_pending());
        drop(first);
        let start = SystemClock.now();
        runtime().block_on(sleep.as_mut());
        assert!(SystemClock.now() >= start);
    }

    #[tokio::test]
    async fn a_manual_sleep_ends_when_the_clock_reaches_its_end() {
        let clock = ManualClock::new();
        let sleep = clock.sleep(Duration::from_secs(5));
        let task = tokio::spawn(sleep);
        clock.advance(Duration::from_secs(4));
        assert_eq!(clock.sleepers(), 1);
        clock.advance(Duration::from_secs(1));
        task.await.unwrap();
        assert_eq!(clock.sleepers(), 0);
        drop(clock.sleep(Duration::from_secs(1)));
        assert_eq!(clock.sleepers(), 0);
    }

    #[tokio::test]
    async fn a_manual_sleep_of_the_longest_duration_does_not_overflow() {
        let clock = ManualClock::new();
        let sleep = clock.sleep(Duration::MAX);
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.sleepers(), 1);
        clock.advance(Duration::MAX);
        sleep.await;
        assert_eq!(clock.sleepers(), 0);
    }
}
