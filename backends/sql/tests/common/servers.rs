//! Tests that are the same for every server, through a locker or below it.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use distlock_core::{
    Attempt, Clock, DistLock, ErrorKind, Guard, Locker, LossReason, Moment, Sleep, SystemClock,
    Verdict, margin,
};
use distlock_harness::{Direction, FaultProxy, eventually_async};
use futures_util::future::join_all;
use tokio::task::JoinSet;

use crate::common::{lease, request, take};

/// The limit for steps that do not depend on a lease.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A lease that does not end within any test.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// The lease of the locks beside a locked row.
const TTL: Duration = Duration::from_secs(10);

pub(crate) async fn hold(locker: &Locker, name: &str, ttl: Duration) -> Guard {
    locker.lock(name).ttl(ttl).acquire().await.expect("granted")
}

/// Awaits `future`, and fails with `what` when it takes too long.
pub(crate) async fn within<T>(time: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {time:?}"))
}

/// One row is locked by a transaction that stays open for a minute; a hundred other locks stay
/// held. `lock_rows` begins the transaction, which locks the rows of these names; dropping its
/// result ends the transaction.
pub(crate) async fn a_locked_row_delays_only_itself<O>(
    locker: &Locker,
    lock_rows: impl Fn(&str) -> O,
) {
    const HELD_FOR: Duration = Duration::from_secs(60);
    let mut guards = hold_many(locker, 101, TTL).await;
    let unlucky = vec![guards.remove(50)];
    let operator = lock_rows(&quoted(&unlucky));
    let until = Instant::now() + HELD_FOR;
    assert_lost_as_unreachable(&unlucky).await;
    // Six leases: each lock was renewed a dozen times beside the locked row.
    while Instant::now() < until {
        assert_all_valid(&guards);
        let other = within(SOON, "others are served", hold(locker, "another", TTL)).await;
        assert!(other.release().await.is_clean());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    drop(operator);
    assert_free_again(locker, unlucky).await;
    for guard in guards {
        assert!(guard.release().await.is_clean());
    }
}

/// Requests for the locked rows are not answered. All other locks stay held, however many rows are
/// locked and however short their leases are.
pub(crate) async fn locked_rows_delay_nobody_else<O>(
    locker: &Locker,
    lock_rows: impl Fn(&str) -> O,
) {
    for (held, ttl) in [(10, TTL), (1, Duration::from_secs(3))] {
        let mut guards = hold_many(locker, 100, ttl).await;
        let unlucky: Vec<_> = guards.drain(45..45 + held).collect();
        let operator = lock_rows(&quoted(&unlucky));
        assert_lost_as_unreachable(&unlucky).await;
        tokio::time::sleep(ttl).await;
        assert_all_valid(&guards);
        for guard in guards {
            assert!(guard.release().await.is_clean());
        }
        drop(operator);
        assert_free_again(locker, unlucky).await;
    }
}

/// A caller that waited for a row gets a lease that counts from its request, and the row's lease
/// does not end before. `waits` says whether a statement waits for a row, and `ends` returns the
/// end of the row's lease in microseconds since 1970.
pub(crate) async fn a_wait_for_a_row_is_part_of_the_lease<O>(
    locker: &Locker,
    kept_for: Duration,
    lock_rows: impl Fn(&str) -> O,
    waits: impl Fn() -> bool,
    ends: impl Fn() -> i64,
) {
    assert!(hold(locker, "kept", LONG).await.release().await.is_clean());
    let deadline = Instant::now() + SOON;
    let (guard, waited) = loop {
        assert!(Instant::now() < deadline, "nobody waits for long enough");
        let operator = lock_rows("'kept'");
        let asking = locker.lock("kept").ttl(LONG).wait(Duration::ZERO);
        let asking = tokio::spawn(asking.acquire());
        while !waits() && !asking.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let seen = Instant::now();
        tokio::time::sleep(kept_for).await;
        let waited = seen.elapsed();
        let came_of_it = asking.is_finished();
        drop(operator);
        // On a busy machine the server may have given up, or the request may come too late for the
        // row.
        match within(SOON, "answered", asking).await.unwrap() {
            Ok(guard) if !came_of_it => break (guard, waited),
            Ok(guard) => assert!(guard.release().await.is_clean()),
            Err(_) => {}
        }
    };
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let left = guard.remaining();
    assert!(
        left <= LONG - margin(LONG) - waited,
        "{left:?} after {waited:?}"
    );
    let ends = Duration::from_micros(ends().try_into().unwrap());
    assert!(ends >= wall + left, "{ends:?} is before {:?}", wall + left);
    assert!(guard.release().await.is_clean());
}

async fn hold_many(locker: &Locker, many: u32, ttl: Duration) -> Vec<Guard> {
    let mut guards = Vec::new();
    for number in 0..many {
        guards.push(hold(locker, &format!("lock-{number:03}"), ttl).await);
    }
    guards
}

/// The names as a list of literals.
fn quoted(guards: &[Guard]) -> String {
    let names = guards.iter().map(|it| format!("'{}'", it.name()));
    names.collect::<Vec<_>>().join(", ")
}

async fn assert_lost_as_unreachable(unlucky: &[Guard]) {
    for guard in unlucky {
        let reason = within(SOON, "who waits is told", guard.lost()).await;
        assert_eq!(reason, LossReason::Unreachable);
    }
}

fn assert_all_valid(guards: &[Guard]) {
    for guard in guards {
        assert!(guard.is_valid(), "{:?} was lost", guard.name());
    }
}

async fn assert_free_again(locker: &Locker, unlucky: Vec<Guard>) {
    for guard in unlucky {
        // The last statement of the old holder may still be in flight.
        let again = eventually_async("free again", SOON, || async {
            locker.lock(guard.name().as_str()).acquire().await.ok()
        });
        assert!(again.await.unwrap().release().await.is_clean());
    }
}

/// A freed row keeps its token: later tokens rise from there, even if it is ahead of the clock.
/// `set_token` changes it in all rows.
pub(crate) async fn a_release_keeps_the_token(lock: &dyn DistLock, set_token: impl Fn(u64)) {
    let asked = request("kept", LONG);
    let grant = take(lock, &asked).await;
    lock.release(&lease(&asked, &grant)).await.unwrap();
    let freed = lock.inspect(&asked.name).await.unwrap();
    assert!(freed.held.is_none(), "{freed:?}");
    assert_eq!(freed.last_token, Some(grant.token));
    let ahead = SystemTime::now() + Duration::from_secs(3600);
    let ahead = ahead.duration_since(UNIX_EPOCH).unwrap().as_micros();
    let ahead = u64::try_from(ahead).unwrap();
    set_token(ahead);
    for token in [ahead + 1, ahead + 2] {
        let asked = request("kept", LONG);
        let grant = take(lock, &asked).await;
        assert_eq!(grant.token.get(), token);
        lock.release(&lease(&asked, &grant)).await.unwrap();
    }
}

/// The number of statements that waiters may cost: the same for one waiter and for many.
pub(crate) struct Polls {
    /// How many seconds to count.
    pub(crate) seconds: u32,
    /// The number of statements allowed in each second.
    pub(crate) each: u32,
    /// The number of statements allowed once.
    pub(crate) once: u32,
}

impl Polls {
    /// Each of the waiters waits for another lock.
    pub(crate) async fn suffice(
        &self,
        lock: &dyn DistLock,
        statements: impl Fn() -> u64,
        waiters: u32,
    ) {
        let mut contenders = Vec::new();
        for number in 0..waiters {
            let name = format!("{number} of {waiters}");
            take(lock, &request(&name, LONG)).await;
            let mut contender = lock.contend(&request(&name, LONG)).await.unwrap();
            assert!(contender.attempt().await.unwrap().acquired().is_none());
            contenders.push(contender);
        }
        let (before, started) = (statements(), Instant::now());
        let until = started + Duration::from_secs(self.seconds.into());
        let mut waiting = JoinSet::new();
        for mut contender in contenders {
            waiting.spawn(async move {
                // A waiter may be woken without a reason.
                while let Some(left) = until.checked_duration_since(Instant::now()) {
                    contender.wait(left).await;
                }
                contender.leave().await.unwrap();
            });
        }
        waiting.join_all().await;
        let spent = statements() - before;
        let budget = f64::from(self.each) * started.elapsed().as_secs_f64() + f64::from(self.once);
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let polled = spent as f64;
        assert!(
            polled <= budget,
            "{spent} for {waiters}, {budget} are enough"
        );
        assert!(spent >= 3, "{spent} for {waiters}: nobody polled");
    }
}

/// The doctor counts the rows that nobody has removed yet, and warns when they should have been
/// removed long ago: after twice `reap_after`, which is an hour. `make` creates a row whose lease
/// has been over for so many seconds, if there is none.
pub(crate) async fn stale_rows_are_counted(locker: &Locker, make: impl Fn(&str, u32)) {
    for (name, seconds, verdict, says) in [
        ("recent", 60, Verdict::Pass, " 1 stale (the oldest for 6"),
        ("old", 10800, Verdict::Warn, " 2 stale (the oldest for 108"),
    ] {
        eventually_async(says, SOON, || async {
            make("recent", 60);
            // The row is made again if a reaper has removed it.
            make(name, seconds);
            let findings = locker.health().await.unwrap().findings;
            let rows = findings.into_iter().find(|it| it.check == "rows")?;
            (rows.verdict == verdict && rows.detail.contains(says)).then_some(())
        })
        .await
        .unwrap();
    }
}

/// However many tasks ask at once, the server sees no more than `bare` connections of a handle, and
/// no more than `with_locker` of a locker, which renews with a second handle. `count` asks the
/// server.
pub(crate) async fn few_connections(
    lock: Arc<dyn DistLock>,
    bare: usize,
    with_locker: usize,
    count: impl Fn() -> usize,
) {
    const TASKS: usize = 256;
    let mut asking = JoinSet::new();
    for task in 0..TASKS {
        let lock = Arc::clone(&lock);
        asking.spawn(async move {
            let asked = request(&format!("bare-{task}"), LONG);
            let grant = take(&*lock, &asked).await;
            for _ in 0..8 {
                lock.inspect(&asked.name).await.unwrap();
            }
            lock.release(&lease(&asked, &grant)).await.unwrap();
        });
    }
    let most = most_of(asking, &count).await;
    assert!((1..=bare).contains(&most), "{most}");
    let locker = Locker::new(lock);
    locker.ready().await.unwrap();
    let mut asking = JoinSet::new();
    for task in 0..TASKS {
        let locker = locker.clone();
        asking.spawn(async move {
            let name = format!("shared-{}", task % 64);
            let guard = locker.lock(&*name).ttl(LONG).wait(LONG).acquire().await;
            locker.inspect(&*name).await.unwrap();
            assert!(guard.unwrap().release().await.is_clean());
        });
    }
    let most = most_of(asking, &count).await;
    assert!((1..=with_locker).contains(&most), "{most}");
}

/// The highest count until all tasks have ended.
async fn most_of(mut asking: JoinSet<()>, count: impl Fn() -> usize) -> usize {
    let mut most = 0;
    while !asking.is_empty() {
        most = most.max(count());
        tokio::task::yield_now().await;
        while let Some(ended) = asking.try_join_next() {
            ended.unwrap();
        }
    }
    most.max(count())
}

/// The holder's connection is cut while another process waits over a working one: the holder must
/// know of its loss before the next one is granted the lock. `cut` goes through `proxy`.
pub(crate) async fn a_holder_that_is_cut_off_learns_of_the_loss_first(
    cut: &Locker,
    direct: Locker,
    proxy: &FaultProxy,
) {
    let ttl = Duration::from_secs(3);
    let guard = hold(cut, "a", ttl).await;
    let token = guard.token();
    proxy.stop(Direction::ToServer);
    proxy.stop(Direction::ToClient);
    // Another process waits for the lock over a working connection: the holder must be told first.
    let other = tokio::spawn(async move {
        let guard = direct.lock("a").wait(SOON).acquire().await.unwrap();
        (Instant::now(), guard)
    });
    let reason = within(SOON, "told", guard.lost()).await;
    let told = Instant::now();
    assert_eq!(reason, LossReason::Unreachable);
    let (granted, next) = within(SOON, "taken over", other).await.unwrap();
    assert!(told <= granted, "told {:?} late", told - granted);
    assert!(next.token() > token);
    proxy.pass();
    // Requests that the cut connection held back, and later steps of the old holder, change
    // nothing.
    assert!(!guard.release().await.is_clean());
    next.extend(ttl).await.unwrap();
    assert!(next.release().await.is_clean());
    let again = within(SOON, "the line is mended", cut.lock("a").acquire()).await;
    assert!(again.unwrap().release().await.is_clean());
}

/// A caller that asks all the time while sessions are ended, and checks each failure.
pub(crate) struct SteadyCaller {
    stopped: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

pub(crate) fn steady_caller(locker: &Locker) -> SteadyCaller {
    let stopped = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn({
        let (locker, stopped) = (locker.clone(), Arc::clone(&stopped));
        async move {
            let known = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown);
            let mut number = 0;
            while !stopped.load(Ordering::Relaxed) {
                number += 1;
                let name = format!("asked-{number}");
                match locker.lock(&*name).wait(Duration::ZERO).acquire().await {
                    Ok(guard) => drop(guard.release().await),
                    Err(error) => assert!(known(error.kind()), "{error:?}"),
                }
                if let Err(error) = locker.inspect(&*name).await {
                    // A read may be repeated, so that its outcome is never unknown.
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                }
            }
        }
    });
    SteadyCaller { stopped, task }
}

impl SteadyCaller {
    pub(crate) async fn stop(self) {
        self.stopped.store(true, Ordering::Relaxed);
        within(SOON, "answered", self.task).await.unwrap();
    }
}

/// A host whose wall clock is wrong by so many seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrongClock(i64);

/// One clock ahead, and one behind.
pub(crate) const WRONG_CLOCKS: [WrongClock; 2] = [WrongClock(60), WrongClock(-60)];

impl Clock for WrongClock {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> SystemTime {
        let off = Duration::from_secs(self.0.unsigned_abs());
        if self.0 > 0 {
            SystemClock.wall() + off
        } else {
            SystemClock.wall() - off
        }
    }

    fn sleep(&self, time: Duration) -> Sleep {
        SystemClock.sleep(time)
    }
}

/// The round trips of a granted lock and of a held one, alone and in a batch. The proxy counts
/// packets, since a server counts statements, of which several may travel together. The store has
/// one connection, so that requests that arrive while the first is in flight form a batch.
pub(crate) async fn a_grant_takes_one_round_trip(lock: &dyn DistLock, proxy: &FaultProxy) {
    const MANY: u64 = 40;
    // The reaper sends requests too, now and then.
    const ROUNDS: usize = 5;
    for (set, many, granted, busy) in [("one", 1, 1, 2), ("batch", MANY, 2, 4)] {
        let requests = || {
            let names = (0..many).map(|number| request(&format!("{set}-{number}"), LONG));
            names.collect::<Vec<_>>()
        };
        let (mut took, mut refused) = (u64::MAX, u64::MAX);
        for _ in 0..ROUNDS {
            let (ours, theirs) = (requests(), requests());
            let before = proxy.round_trips();
            let grants = join_all(ours.iter().map(|it| take(lock, it))).await;
            let between = proxy.round_trips();
            for attempt in join_all(theirs.iter().map(|it| lock.try_acquire(it))).await {
                let attempt = attempt.unwrap();
                assert!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
            }
            took = took.min(between - before);
            refused = refused.min(proxy.round_trips() - between);
            for (request, grant) in ours.iter().zip(&grants) {
                lock.release(&lease(request, grant)).await.unwrap();
            }
        }
        // The first request may find the connection in use, and then joins the batch.
        assert!((1..=granted).contains(&took), "{set}: {took}");
        assert!((1..=busy).contains(&refused), "{set}: {refused}");
    }
}
