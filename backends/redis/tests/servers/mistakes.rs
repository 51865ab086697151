//! Five common mistakes in locks on Redis. Each wrong design fails under a schedule that this
//! library passes.
//!
//! The tests send the commands of the wrong designs one by one, because each design fails between
//! two commands.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::common::{SOON, pause, redis, request, take, within};
use distlock_core::{
    AcquireRequest, Attempt, Clock, DistLock, Grant, Lease, Locker, Moment, ReleaseOutcome, Sleep,
    SystemClock,
};
use distlock_harness::{Direction, FaultProxy, eventually_async, servers::redis::RedisServer};
use distlock_redis::{Redis, RedisConfig};

/// The TTL of a lease that expires within the test.
const SHORT: Duration = Duration::from_millis(600);
/// The TTL of a lease that outlives the test.
const LONG: Duration = Duration::from_secs(60);

/// A client of a wrong lock. The test sends the commands of its design.
struct WrongLock<'a>(&'a RedisServer);

impl WrongLock<'_> {
    fn ask(&self, command: &[&str]) -> String {
        self.0.command(command).unwrap()
    }

    /// Acquires the lock in the usual way, which is correct. The designs differ only in the
    /// release.
    fn take(&self, owner: &str, ttl: Duration) -> bool {
        let ttl = ttl.as_millis().to_string();
        self.ask(&["SET", "lock", owner, "NX", "PX", &ttl]) == "OK"
    }

    fn holder(&self) -> String {
        self.ask(&["GET", "lock"])
    }
}

fn lease(request: &AcquireRequest, grant: &Grant) -> Lease {
    Lease::new(request.name.clone(), request.owner, Some(grant.token))
}

async fn is_busy(lock: &dyn DistLock, request: &AcquireRequest) -> bool {
    matches!(lock.try_acquire(request).await.unwrap(), Attempt::Busy(_))
}

/// Schedule: the client dies as soon as the server has run its first command.
#[tokio::test(flavor = "multi_thread")]
async fn expire_after_set_leaves_a_lock_without_expiry() {
    let server = RedisServer::start().unwrap();
    let wrong = WrongLock(&server);
    assert_eq!(wrong.ask(&["SETNX", "lock", "a"]), "1");
    // The client dies here, before it sends `EXPIRE`.
    pause(SHORT * 2).await;
    assert_eq!(wrong.ask(&["PTTL", "lock"]), "-1", "held for ever");
    assert_eq!(wrong.ask(&["SETNX", "lock", "b"]), "0");

    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let dying = redis(&server.url_at(proxy.address())).await.unwrap();
    // The script is loaded first, so that the acquire is the client's first command.
    let lock = dying.lock();
    let warm = request("warm", LONG);
    let grant = take(&*lock, &warm).await;
    lock.release(&lease(&warm, &grant)).await.unwrap();
    // The client gets no more replies, and sends nothing more after the server has run the first
    // command.
    proxy.stop(Direction::ToClient);
    let attempt = tokio::spawn(async move { lock.try_acquire(&request("a", SHORT)).await });
    eventually_async("the server has done it", SOON, || async {
        (!server.command(&["KEYS", "*:lock:a"]).unwrap().is_empty()).then_some(())
    })
    .await
    .unwrap();
    proxy.black_hole();
    let next = redis(&server.url()).await.unwrap();
    let locker = Locker::new(next.lock());
    let guard = within(SOON, "it ended by itself", locker.lock("a").acquire()).await;
    assert!(guard.unwrap().release().await.is_clean());
    attempt.abort();
}

/// Schedule: a client whose clock is a minute ahead asks for a held lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_in_the_value_lets_a_fast_clock_take_the_lock() {
    #[derive(Debug)]
    struct Ahead;

    impl Clock for Ahead {
        fn now(&self) -> Moment {
            SystemClock.now() + LONG
        }

        fn wall(&self) -> SystemTime {
            SystemClock.wall() + LONG
        }

        fn sleep(&self, time: Duration) -> Sleep {
            SystemClock.sleep(time)
        }
    }

    let server = RedisServer::start().unwrap();
    let wrong = WrongLock(&server);
    let lease_of = Duration::from_secs(20);
    let millis = |clock: &dyn Clock| {
        let now = clock.wall().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap().as_millis()
    };
    let end = |clock: &dyn Clock| (millis(clock) + lease_of.as_millis()).to_string();
    let first = end(&SystemClock);
    assert_eq!(wrong.ask(&["SETNX", "lock", &first]), "1");
    // By the clock of the second client the lease has ended. So this client writes its own value,
    // gets the expected old value, and believes that it has the lock.
    let seen = wrong.ask(&["GET", "lock"]);
    assert!(seen.parse::<u128>().unwrap() < millis(&Ahead));
    let second = end(&Ahead);
    assert_eq!(wrong.ask(&["GETSET", "lock", &second]), seen, "two holders");
    // The loser of the race has written too. A third client extends the lease of the second client,
    // which no longer finds its own value.
    assert_eq!(wrong.ask(&["GETSET", "lock", "3"]), second);
    assert_ne!(wrong.holder(), second);

    let config = || RedisConfig::from_url(&server.url()).unwrap();
    let on_time = redis(&server.url()).await.unwrap();
    let ahead = Redis::open(config(), Arc::new(Ahead)).await.unwrap();
    let held = request("a", lease_of);
    let grant = take(&*on_time.lock(), &held).await;
    let other = request("a", lease_of);
    assert!(is_busy(&*ahead.lock(), &other).await);
    let released = on_time.lock().release(&lease(&held, &grant)).await;
    assert!(matches!(released.unwrap(), ReleaseOutcome::Released { .. }));
}

/// Schedule: the first lease expires, the second client gets the lock, the first client releases
/// it, and the third client tries to acquire.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_delete_frees_the_lock_of_another_client() {
    let server = RedisServer::start().unwrap();
    let wrong = WrongLock(&server);
    assert!(wrong.take("a", SHORT));
    pause(SHORT * 2).await;
    assert!(wrong.take("b", LONG));
    assert_eq!(wrong.ask(&["DEL", "lock"]), "1");
    assert!(wrong.take("c", LONG), "while b holds it");

    let store = redis(&server.url()).await.unwrap();
    let lock = store.lock();
    let (first, second, third) = (request("a", SHORT), request("a", LONG), request("a", LONG));
    let granted = take(&*lock, &first).await;
    pause(SHORT * 2).await;
    let second_grant = take(&*lock, &second).await;
    let released = lock.release(&lease(&first, &granted)).await.unwrap();
    assert_eq!(released, ReleaseOutcome::NotHeld);
    assert!(is_busy(&*lock, &third).await);
    let released = lock.release(&lease(&second, &second_grant)).await.unwrap();
    assert!(matches!(released, ReleaseOutcome::Released { .. }));
}

/// Schedule: the first client releases its lock in time, but the request is delayed until the
/// second client has the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_delete_after_a_comparison_frees_the_lock_of_another_client() {
    let server = RedisServer::start().unwrap();
    let wrong = WrongLock(&server);
    assert!(wrong.take("a", SHORT));
    assert_eq!(wrong.holder(), "a", "it is mine, so it may be deleted");
    pause(SHORT * 2).await;
    assert!(wrong.take("b", LONG));
    assert_eq!(wrong.ask(&["DEL", "lock"]), "1");
    assert!(wrong.take("c", LONG), "while b holds it");

    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let slow = redis(&server.url_at(proxy.address())).await.unwrap();
    let store = redis(&server.url()).await.unwrap();
    let lock = store.lock();
    let (first, second, third) = (request("a", SHORT), request("a", LONG), request("a", LONG));
    let granted = take(&*slow.lock(), &first).await;
    proxy.stop(Direction::ToServer);
    let releasing = tokio::spawn({
        let (lock, lease) = (slow.lock(), lease(&first, &granted));
        async move { lock.release(&lease).await }
    });
    pause(SHORT * 2).await;
    let second_grant = take(&*lock, &second).await;
    proxy.pass();
    let released = within(SOON, "the server answers", releasing).await.unwrap();
    assert_eq!(released.unwrap(), ReleaseOutcome::NotHeld);
    assert!(is_busy(&*lock, &third).await);
    let released = lock.release(&lease(&second, &second_grant)).await.unwrap();
    assert!(matches!(released, ReleaseOutcome::Released { .. }));

    // This is the schedule of the failure above. The first reply is late, so any further step of
    // the release would be late too.
    let first = request("a", SHORT);
    let granted = take(&*slow.lock(), &first).await;
    proxy.stop(Direction::ToClient);
    let releasing = tokio::spawn({
        let (lock, lease) = (slow.lock(), lease(&first, &granted));
        async move { lock.release(&lease).await }
    });
    pause(SHORT * 2).await;
    let second = request("a", LONG);
    let second_grant = take(&*lock, &second).await;
    proxy.pass();
    let released = within(SOON, "the server answers", releasing).await.unwrap();
    assert!(matches!(released.unwrap(), ReleaseOutcome::Released { .. }));
    assert!(is_busy(&*lock, &third).await);
    let released = lock.release(&lease(&second, &second_grant)).await.unwrap();
    assert!(matches!(released, ReleaseOutcome::Released { .. }));
}

/// Schedule: the holder releases its lock in time, and the next client tries to acquire.
///
/// The wrong release tries to acquire the lock once more. This release deletes the lock only if
/// that attempt fails and the lease in the value has ended. So the holder never frees its own lock.
/// Any other client frees a lock whose lease has ended by its own clock, even if the holder is
/// still working.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_by_set_if_absent_never_frees_its_own_lock() {
    let server = RedisServer::start().unwrap();
    let wrong = WrongLock(&server);
    let millis = || {
        let now = SystemClock.wall().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap().as_millis()
    };
    let unlock = || {
        if wrong.ask(&["SETNX", "lock", &millis().to_string()]) == "0"
            && wrong.holder().parse::<u128>().unwrap() < millis()
        {
            wrong.ask(&["DEL", "lock"]);
        }
    };
    let end = (millis() + LONG.as_millis()).to_string();
    assert_eq!(wrong.ask(&["SETNX", "lock", &end]), "1");
    unlock();
    assert_eq!(wrong.holder(), end, "it is still held");
    // Releasing a free lock acquires it.
    wrong.ask(&["DEL", "lock"]);
    unlock();
    assert_ne!(wrong.holder(), "");
    // Another client's release frees a lock whose lease has ended by that client's clock.
    wrong.ask(&["SET", "lock", &(millis() - 1).to_string()]);
    unlock();
    assert_eq!(wrong.holder(), "");

    let store = redis(&server.url()).await.unwrap();
    let lock = store.lock();
    let (first, stranger, next) = (request("a", LONG), request("a", LONG), request("a", LONG));
    let grant = take(&*lock, &first).await;
    let strangers = Lease::new(stranger.name.clone(), stranger.owner, Some(grant.token));
    let released = lock.release(&strangers).await.unwrap();
    assert_eq!(released, ReleaseOutcome::NotHeld);
    assert!(is_busy(&*lock, &next).await);
    let released = lock.release(&lease(&first, &grant)).await.unwrap();
    assert!(matches!(released, ReleaseOutcome::Released { .. }));
    // Releasing a free lock does not acquire it.
    let released = lock.release(&lease(&first, &grant)).await.unwrap();
    assert_eq!(released, ReleaseOutcome::NotHeld);
    take(&*lock, &next).await;
}
