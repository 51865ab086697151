//! Tests that are the same for every server, with a `Locker` or without one.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use distlock_core::{
    Attempt, Clock, DistLock, ErrorKind, Guard, Locker, LossReason, Moment, ReleaseOutcome, Sleep,
    SystemClock, Verdict, margin,
};
use distlock_harness::{Direction, FaultProxy, eventually_async};
use futures_util::future::join_all;
use tokio::task::JoinSet;

use crate::common::{lease, request, take};

/// The limit for steps that do not depend on a lease.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A lease that does not end within any test.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// The TTL of the locks whose rows nobody else locks.
const TTL: Duration = Duration::from_secs(10);

pub(crate) async fn hold(locker: &Locker, name: &str, ttl: Duration) -> Guard {
    locker.lock(name).ttl(ttl).acquire().await.expect("granted")
}

/// Awaits `future`, and fails with the message `what` after `time`.
pub(crate) async fn within<T>(time: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {time:?}"))
}

/// A transaction locks one row for a minute. A hundred other locks stay held. `lock_rows` begins
/// the transaction and locks the rows of the given names; dropping its result ends the transaction.
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
    // A minute is six leases: each of the other locks is renewed about a dozen times.
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

/// Requests for locked rows fail. All other locks stay held, with several locked rows and with
/// short leases too.
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

/// The lease of a caller that waited for a locked row counts from the caller's request. The lease
/// in the row does not end before the caller's lease. `waits` says whether a statement waits for a
/// row, and `ends` returns the end of the row's lease in microseconds since 1970.
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
        // On a busy machine, the server may have stopped the wait, or the request may arrive after
        // the row was unlocked. Then the round does not count.
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

/// The user of `poor` may not change the table of the store queue, and the user of `owner` may. The
/// lockers use separately opened stores.
pub(crate) async fn each_release_wakes_without_a_queue(owner: &Locker, poor: &Locker) {
    a_release_wakes_the_waiter(owner, poor, "a").await;
    a_release_wakes_the_waiter(poor, owner, "a").await;
    assert_eq!(verdict_on_queue(poor).await, Verdict::Warn);
    assert_eq!(verdict_on_queue(owner).await, Verdict::Pass);
}

async fn a_release_wakes_the_waiter(holder: &Locker, waiter: &Locker, name: &str) {
    let held = holder.lock(name).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock(name).wait(SOON).acquire());
    eventually_async("it waits", SOON, || async {
        let attempt = waiter.lock(name).try_acquire().await.unwrap();
        attempt.acquired().is_none().then_some(())
    })
    .await
    .unwrap();
    assert!(held.release().await.is_clean());
    let next = waiting.await.unwrap().unwrap();
    assert!(next.release().await.is_clean());
}

/// The doctor's verdict on the store queue.
async fn verdict_on_queue(locker: &Locker) -> Verdict {
    let health = locker.health().await.unwrap();
    let queue = health.findings.iter().find(|it| it.check == "store queue");
    queue.unwrap_or_else(|| panic!("{health:?}")).verdict
}

async fn hold_many(locker: &Locker, many: u32, ttl: Duration) -> Vec<Guard> {
    let mut guards = Vec::new();
    for number in 0..many {
        guards.push(hold(locker, &format!("lock-{number:03}"), ttl).await);
    }
    guards
}

/// The names of the locks as a list of SQL literals.
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

/// A freed row keeps its token. Later tokens are higher, even if the row's token is ahead of the
/// clock. `set_token` changes the token in all rows.
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

/// The allowed number of statements of waiters: the same for one waiter and for many waiters.
pub(crate) struct Polls {
    /// The length of the test in seconds.
    pub(crate) seconds: u32,
    /// The number of statements allowed in each second.
    pub(crate) each: u32,
    /// The number of further statements allowed in the whole test.
    pub(crate) once: u32,
}

impl Polls {
    /// Checks the number of statements of `waiters` waiters. Each waiter waits for another lock.
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

/// The doctor counts the rows of expired leases. The doctor warns if such a row is older than twice
/// `reap_after`, which is an hour. `make` creates a row whose lease ended the given number of
/// seconds ago, if the row does not exist.
pub(crate) async fn stale_rows_are_counted(locker: &Locker, make: impl Fn(&str, u32)) {
    for (name, seconds, verdict, says) in [
        ("recent", 60, Verdict::Pass, " 1 stale (the oldest for 6"),
        ("old", 10800, Verdict::Warn, " 2 stale (the oldest for 108"),
    ] {
        eventually_async(says, SOON, || async {
            make("recent", 60);
            // If a reaper has removed the row, the row is created again.
            make(name, seconds);
            let findings = locker.health().await.unwrap().findings;
            let rows = findings.into_iter().find(|it| it.check == "rows")?;
            (rows.verdict == verdict && rows.detail.contains(says)).then_some(())
        })
        .await
        .unwrap();
    }
}

/// With any number of tasks, a handle opens at most `bare` connections. A locker opens at most
/// `with_locker` connections, because a locker renews with a second handle. `count` returns the
/// number of connections that the server has.
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

/// The highest number that `count` returns until all tasks have ended.
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

/// The holder's connection is cut while another process waits on a working connection. The holder
/// must learn of the loss before the lock is granted to the other process. `cut` connects through
/// `proxy`.
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
    // Another process waits for the lock on a working connection.
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
    // Requests that arrive late over the cut connection, and later operations of the old holder,
    // change nothing.
    assert!(!guard.release().await.is_clean());
    next.extend(ttl).await.unwrap();
    assert!(next.release().await.is_clean());
    let again = within(SOON, "the line is mended", cut.lock("a").acquire()).await;
    assert!(again.unwrap().release().await.is_clean());
}

/// A caller that sends requests all the time while sessions are ended, and checks the kind of each
/// failure.
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
                    // A read changes nothing, so that its outcome is never reported as unknown.
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

/// The system's clock, moved forward by a number of seconds: connections then seem to have been
/// idle for a long time.
#[derive(Debug, Default)]
pub(crate) struct Idle(AtomicU64);

impl Idle {
    pub(crate) fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for Idle {
    fn now(&self) -> Moment {
        SystemClock.now() + Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn wall(&self) -> SystemTime {
        SystemClock.wall()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        SystemClock.sleep(time)
    }
}

/// A NAT forgets all idle connections, again and again. Each request after that costs at most half
/// a second more, and never has an unknown outcome. `lock` connects through `proxy`.
pub(crate) async fn forgotten_connections_cost_half_a_second(
    lock: &dyn DistLock,
    proxy: &FaultProxy,
    idle: &Idle,
) {
    let asked = |round: u32| request(&format!("nat-{round}"), LONG);
    // Several connections are open, and all of them are forgotten.
    let first: Vec<_> = (0..4).map(|number| asked(100 + number)).collect();
    join_all(first.iter().map(|asked| take(lock, asked))).await;
    let started = Instant::now();
    take(lock, &asked(200)).await;
    let most = started.elapsed() + Duration::from_millis(500);
    for round in 0..3 {
        idle.pass(60);
        proxy.forget();
        let (asked, started) = (asked(round), Instant::now());
        let grant = take(lock, &asked).await;
        let took = started.elapsed();
        assert!(took <= most, "round {round}: {took:?}");
        idle.pass(60);
        proxy.forget();
        let started = Instant::now();
        let released = lock.release(&lease(&asked, &grant)).await.unwrap();
        let took = started.elapsed();
        assert!(
            matches!(released, ReleaseOutcome::Released { .. }),
            "{released:?}"
        );
        assert!(took <= most, "round {round}: {took:?}");
    }
}

/// A server that accepts connections and never answers. It keeps them open until it is dropped.
pub(crate) struct Silent(std::net::TcpListener);

impl Silent {
    pub(crate) fn listen() -> Self {
        Self(std::net::TcpListener::bind("127.0.0.2:0").unwrap())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }
}

/// The clock of a host whose wall clock is wrong by this number of seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrongClock(i64);

/// A wall clock that is ahead, and a wall clock that is behind.
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

/// Counts the round trips of a grant and of a refusal, alone and in a batch. The proxy counts the
/// round trips, because the server counts statements, and one round trip can carry several
/// statements. The store has one connection, so that requests that arrive while the first request
/// is in flight form a batch.
pub(crate) async fn a_grant_takes_one_round_trip(lock: &dyn DistLock, proxy: &FaultProxy) {
    const MANY: u64 = 40;
    // The reaper sometimes sends requests too, so that the lowest count of several rounds is used.
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
        // A request that finds the connection in use joins the next batch.
        assert!((1..=granted).contains(&took), "{set}: {took}");
        assert!((1..=busy).contains(&refused), "{set}: {refused}");
    }
}
