//! Callers and processes that stop in the middle of an operation.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use distlock_core::{ErrorKind, Moment, Sleep};

use super::*;

/// A caller that has sent a read and does not poll for the answer does not delay other reads.
#[tokio::test]
async fn a_read_that_is_not_polled_does_not_delay_other_reads() {
    for opened in [false, true] {
        let place = Place::new();
        let store = place.open().await;
        let lock = store.lock();
        let key = distlock_core::RecordKey::new("k").unwrap();
        if opened {
            lock.inspect(&name("a")).await.unwrap();
        }
        let asked = name("a");
        let mut kept = lock.inspect(&asked);
        std::future::poll_fn(|context| {
            let _ = kept.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
        let others = async {
            assert_eq!(lock.inspect(&name("a")).await.unwrap().held, None);
            assert_eq!(store.records().get(&key).await.unwrap(), None);
            lock.health().await.unwrap();
            close(&store).await;
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), others).await;
        ended.expect("they do not wait for it");
        drop(kept);
    }
}

/// A process may be suspended between reading the clock and sending the acquire. If the process is
/// suspended for `reap_after`, other owners may have had the lock with higher tokens, and the
/// reaper may have removed the row.
#[tokio::test]
async fn a_token_from_an_outdated_clock_reading_is_not_granted() {
    let place = Place::new();
    let clock = Stopping::default();
    let lock = place.open_at(Arc::new(clock.clone())).await.lock();
    let other = place.open_at(Arc::new(clock.clone())).await.lock();
    let mine = common::request("a", Duration::from_secs(5 * 3600));
    clock.stops.store(true, Ordering::Relaxed);
    let refused = lock.try_acquire(&mine).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(!clock.stops.load(Ordering::Relaxed));
    assert_eq!(other.inspect(&mine.name).await.unwrap().held, None);
    let token = take(&other, &mine).await.token;
    assert!(token.get() >= micros_of(clock.wall()));
}

fn micros_of(wall: SystemTime) -> u64 {
    let since = wall.duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

/// The clock of a process that is suspended for two hours right after reading the clock.
#[derive(Clone, Debug, Default)]
struct Stopping {
    clock: ManualClock,
    stops: Arc<AtomicBool>,
}

impl Clock for Stopping {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn wall(&self) -> SystemTime {
        let wall = self.clock.wall();
        if self.stops.swap(false, Ordering::Relaxed) {
            self.clock.advance(Duration::from_secs(2 * 3600));
        }
        wall
    }

    fn sleep(&self, time: Duration) -> Sleep {
        self.clock.sleep(time)
    }
}
