//! A wait ends at once when the lock is free.
#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use crate::common::{SOON, locker, pause, redis, request, take, within};
use distlock_conformance::{
    Workers,
    worker::{ReleaseReport, Worker},
};
use distlock_core::{Attempt, Clock, ErrorKind, Lease, Locker, Moment, Sleep, SystemClock};
use distlock_harness::{
    FaultProxy, Signal, distlock_binary, eventually_async, servers::redis::RedisServer,
};
use distlock_redis::{Redis, RedisConfig};
use tokio::task::JoinSet;

const NAME: &str = "waited-for";

#[tokio::test(flavor = "multi_thread")]
async fn a_release_a_deletion_and_a_flush_wake_a_waiter_long_before_the_lease_ends() {
    let server = RedisServer::start().unwrap();
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let name = distlock_core::LockName::new(NAME).unwrap();
    for way in ["release", "delete", "flush"] {
        let guard = holder
            .lock(NAME)
            .ttl(Duration::from_secs(600))
            .acquire()
            .await
            .unwrap();
        let token = guard.token();
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move { waiter.lock(NAME).wait(SOON).acquire().await }
        });
        // The server tracks one key for the waiter.
        eventually_async("the server tracks the key", SOON, || async {
            (server.info("tracking_total_keys").unwrap() == "1").then_some(())
        })
        .await
        .unwrap();
        let start = Instant::now();
        match way {
            "release" => assert!(guard.release().await.is_clean()),
            "delete" => {
                let keys = server.command(&["KEYS", "*:lock:*"]).unwrap();
                assert_eq!(server.command(&["DEL", &keys]).unwrap(), "1");
            }
            _ => assert_eq!(server.command(&["FLUSHALL"]).unwrap(), "OK"),
        }
        let taken = within(SOON, way, waiting).await.unwrap().unwrap();
        assert!(taken.token() > token, "{way}");
        assert!(start.elapsed() < Duration::from_secs(5), "{way}");
        assert_eq!(
            waiter.inspect(&name).await.unwrap().last_token,
            Some(taken.token())
        );
        assert!(taken.release().await.is_clean());
    }
}

/// The system's clock. This clock counts the short sleeps that callers request.
#[derive(Clone, Debug, Default)]
struct Naps(Arc<AtomicU32>);

impl Clock for Naps {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> SystemTime {
        SystemClock.wall()
    }

    fn sleep(&self, time: Duration) -> Sleep {
        let is_short = time < Duration::from_millis(50);
        self.0.fetch_add(u32::from(is_short), Ordering::Relaxed);
        SystemClock.sleep(time)
    }
}

/// Even the shortest sleep of a timer is longer than many round trips to the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_causes_an_attempt_without_a_pause() {
    let server = RedisServer::start().unwrap();
    let holder = locker(&server.url()).await;
    let naps = Naps::default();
    let config = RedisConfig::from_url(&server.url()).unwrap();
    let store = Redis::open(config, Arc::new(naps.clone())).await.unwrap();
    let guard = holder.lock(NAME).ttl(SOON * 20).acquire().await.unwrap();
    let asked = request(NAME, SOON);
    let mut contender = store.lock().contend(&asked).await.unwrap();
    let busy = contender.attempt().await.unwrap();
    assert!(matches!(busy, Attempt::Busy(Some(_))), "{busy:?}");
    assert!(guard.release().await.is_clean());
    within(SOON, "the waiter wakes up", contender.wait(SOON * 2)).await;
    let granted = contender.attempt().await.unwrap();
    assert!(matches!(granted, Attempt::Acquired(_)), "{granted:?}");
    assert_eq!(naps.0.load(Ordering::Relaxed), 0);
}

/// A server with many expiring keys pushes an expiry late, so the waiter's own timer must end the
/// wait.
#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_ends_a_wait_on_a_server_full_of_expiring_keys() {
    let server = RedisServer::with(&["appendonly no", "hz 1"]).unwrap();
    let fill = "for i = 1, 20000 do redis.call('SET', 'filler:' .. ARGV[1] .. ':' .. i, '', 'PX', \
                3600000) end return 'full'";
    // The keys are created in pieces, because one command for all would take too long on a slow
    // machine.
    for piece in 0..10 {
        let filled = server.command(&["EVAL", fill, "0", &piece.to_string()]);
        assert_eq!(filled.unwrap(), "full");
    }
    let store = redis(&server.url()).await.unwrap();
    let ttl = Duration::from_millis(1500);
    // The lock is granted, but nobody renews or releases it.
    take(&*store.lock(), &request(NAME, ttl)).await;
    let granted = Instant::now();
    let waiter = locker(&server.url()).await;
    let guard = waiter.lock(NAME).wait(SOON).acquire().await.unwrap();
    let waited = granted.elapsed();
    // A push would come many seconds later than this limit.
    assert!(waited < ttl + Duration::from_secs(3), "{waited:?}");
    assert!(guard.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_survives_the_loss_of_its_connection() {
    let server = RedisServer::start().unwrap();
    let waiter = locker(&server.url()).await;
    a_wait_survives(&server, &waiter, async || {
        // Tracking ends with the connection, and no other client tracks the key.
        server
            .command(&["CLIENT", "KILL", "TYPE", "normal"])
            .unwrap();
        wait_until_tracked(&server).await;
    })
    .await;
}

/// A connection on which a request timed out is replaced. The tracking of that connection ends
/// without a message.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_survives_an_abandoned_connection() {
    let server = RedisServer::start().unwrap();
    let waiter = locker(&format!("{}?request_timeout=1s", server.url())).await;
    a_wait_survives(&server, &waiter, async || {
        server.signal(Signal::STOP).unwrap();
        let other = || waiter.lock("other").wait(Duration::ZERO).acquire();
        assert!(other().await.is_err(), "the server stands still");
        server.signal(Signal::CONT).unwrap();
        let guard = eventually_async("another connection is made", SOON, || async {
            other().await.ok()
        })
        .await
        .unwrap();
        assert!(guard.release().await.is_clean());
    })
    .await;
}

/// The connection runs on another runtime than the waiter. The connection ends with that runtime,
/// without a message.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_survives_the_end_of_its_connections_runtime() {
    let server = RedisServer::start().unwrap();
    let other = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let url = server.url();
    let waiter = other.spawn(async move { locker(&url).await });
    let waiter = waiter.await.unwrap();
    a_wait_survives(&server, &waiter, async || {
        other.shutdown_background();
        wait_until_tracked(&server).await;
    })
    .await;
}

/// The same case with a blocked runtime: the connection is not broken, but no push arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_survives_a_frozen_runtime_of_its_connection() {
    let server = RedisServer::start().unwrap();
    let (give, given) = tokio::sync::oneshot::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (stands, standing) = tokio::sync::oneshot::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let url = server.url();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            give.send(locker(&url).await).unwrap();
            stopped.await
        })?;
        // From here on nothing drives the runtime.
        stands.send(()).unwrap();
        let _ = ended.recv();
        Ok::<_, tokio::sync::oneshot::error::RecvError>(())
    });
    let waiter = given.await.unwrap();
    let holder = redis(&server.url()).await.unwrap();
    let first = request(NAME, Duration::from_secs(600));
    let grant = take(&*holder.lock(), &first).await;
    let waiting = tokio::spawn(waiter.lock(NAME).wait(SOON * 3).acquire());
    wait_until_tracked(&server).await;
    stop.send(()).unwrap();
    standing.await.unwrap();
    let lease = Lease::new(first.name.clone(), first.owner, Some(grant.token));
    holder.lock().release(&lease).await.unwrap();
    let guard = within(SOON, "the waiter asked again", waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(guard.release().await.is_clean());
    drop(end);
    other.join().unwrap().unwrap();
}

/// A client waits while `happens` runs on its connection. The release must wake the client long
/// before the lease ends, and before the client would ask without a push.
async fn a_wait_survives(server: &RedisServer, waiter: &Locker, happens: impl AsyncFnOnce()) {
    let holder = redis(&server.url()).await.unwrap();
    let first = request(NAME, Duration::from_secs(600));
    let grant = take(&*holder.lock(), &first).await;
    let waiting = tokio::spawn(waiter.lock(NAME).wait(SOON * 3).acquire());
    wait_until_tracked(server).await;
    happens().await;
    let lease = Lease::new(first.name.clone(), first.owner, Some(grant.token));
    eventually_async("the lock is released", SOON, || async {
        holder.lock().release(&lease).await.ok()
    })
    .await
    .unwrap();
    let guard = within(SOON / 4, "the waiter wakes up", waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(guard.release().await.is_clean());
}

async fn wait_until_tracked(server: &RedisServer) {
    eventually_async("the server tracks the key", SOON, || async {
        (server.info("tracking_total_keys").unwrap() == "1").then_some(())
    })
    .await
    .unwrap();
}

/// Many waiters start together. The first of them switches tracking on for the connection.
#[tokio::test(flavor = "multi_thread")]
async fn many_first_waiters_start_tracking_together() {
    let server = RedisServer::start().unwrap();
    for _ in 0..100 {
        let lock = redis(&server.url()).await.unwrap().lock();
        let mut tasks = JoinSet::new();
        for task in 0..16 {
            let (lock, wanted) = (Arc::clone(&lock), request(&format!("n{task}"), SOON));
            tasks.spawn(async move {
                let mut contender = lock.contend(&wanted).await?;
                contender.attempt().await
            });
        }
        while let Some(asked) = tasks.join_next().await {
            assert!(matches!(asked.unwrap().unwrap(), Attempt::Acquired(_)));
        }
        assert_eq!(server.command(&["FLUSHALL"]).unwrap(), "OK");
    }
}

/// While another client's script runs, the server refuses all commands, including tracking.
/// Tracking must be switched on again after the script.
#[tokio::test(flavor = "multi_thread")]
async fn tracking_starts_again_after_a_busy_server() {
    let server = RedisServer::with(&["lua-time-limit 50"]).unwrap();
    let (holder, waiting) = (
        redis(&server.url()).await.unwrap().lock(),
        redis(&server.url()).await.unwrap().lock(),
    );
    let first = request(NAME, Duration::from_secs(600));
    let grant = take(&*holder, &first).await;
    let next = request(NAME, Duration::from_secs(600));
    let (busy, refused) = std::thread::scope(|scope| {
        scope.spawn(|| server.command(&["EVAL", "while true do end", "0"]));
        let tried = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let busy = eventually_async("the server is busy", SOON, || async {
                    let ping = server.command(&["PING"]);
                    format!("{ping:?}").contains("BUSY").then_some(())
                });
                let busy = busy.await;
                let mut contender = waiting.contend(&next).await.unwrap();
                (busy, contender.attempt().await)
            })
        });
        // This comes before any assertion. If an assertion failed first, the script would never
        // end.
        server.command(&["SCRIPT", "KILL"]).unwrap();
        tried
    });
    busy.unwrap();
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let mut contender = waiting.contend(&next).await.unwrap();
    let busy = contender.attempt().await.unwrap();
    assert!(matches!(busy, Attempt::Busy(Some(_))), "{busy:?}");
    let lease = Lease::new(first.name.clone(), first.owner, Some(grant.token));
    holder.release(&lease).await.unwrap();
    within(
        SOON,
        "the waiter wakes up",
        contender.wait(Duration::from_secs(300)),
    )
    .await;
    let granted = contender.attempt().await.unwrap();
    assert!(matches!(granted, Attempt::Acquired(_)), "{granted:?}");
}

/// The server grants the lock and refuses the tracking read. The answer must not say that nothing
/// happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_without_tracking_is_not_reported_as_refused() {
    let server = RedisServer::start().unwrap();
    let user = "ACL SETUSER poor on >canary ~* &* +@all";
    server
        .command(&user.split(' ').collect::<Vec<_>>())
        .unwrap();
    let url = format!("redis://poor:canary@{}", server.address());
    let lock = redis(&url).await.unwrap().lock();
    let wanted = request(NAME, Duration::from_secs(600));
    let mut contender = lock.contend(&wanted).await.unwrap();
    server
        .command(&["ACL", "SETUSER", "poor", "-exists"])
        .unwrap();
    let refused = contender.attempt().await.unwrap_err();
    assert!(!refused.did_not_happen(), "{refused:?}");
    assert!(!server.command(&["KEYS", "*:lock:*"]).unwrap().is_empty());
    server
        .command(&["ACL", "SETUSER", "poor", "+exists"])
        .unwrap();
    let granted = contender.attempt().await.unwrap();
    assert!(matches!(granted, Attempt::Acquired(_)), "{granted:?}");
}

/// Four processes acquire one lock again and again. The lock passes from one process to another,
/// and each process gets it.
#[tokio::test(flavor = "multi_thread")]
async fn four_processes_share_a_lock() {
    const TURNS: usize = 25;
    let server = RedisServer::start().unwrap();
    let program = distlock_binary().unwrap();
    let workers = Workers::new(program, ["conformance-worker"], server.url());
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(Worker::start(&workers).await.unwrap());
    }
    let mut tasks = JoinSet::new();
    for mut worker in all {
        tasks.spawn(async move {
            let (ttl, wait) = (Duration::from_secs(60), Duration::from_secs(50));
            let mut holds = Vec::new();
            for _ in 0..TURNS {
                let got = worker.acquire(NAME, ttl, wait).await.unwrap();
                let releasing = SystemClock.now().since_boot();
                let released = worker.release().await.unwrap();
                assert_eq!(released, ReleaseReport::Clean);
                holds.push((got.granted, releasing, got.token));
            }
            (holds, worker)
        });
    }
    // All processes live until the last one is done. A process that is killed may leave its entry
    // in the store queue. The entry then blocks the queue for up to four seconds.
    let mut workers = Vec::new();
    let mut holds = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let (of_one, worker) = done.unwrap();
        holds.extend(of_one);
        workers.push(worker);
    }
    assert_eq!(holds.len(), 4 * TURNS);
    holds.sort_unstable();
    for pair in holds.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two at once: {pair:?}");
        assert!(pair[0].2 < pair[1].2, "tokens rise: {pair:?}");
        // A push woke the next holder. A poll alone would come only every ten seconds.
        let gap = pair[1].0.saturating_sub(pair[0].1);
        assert!(gap < Duration::from_secs(5), "{gap:?} after {pair:?}");
    }
}

/// A server with a full tracking table removes keys and sends a push for each of them. Waiters must
/// not ask at every such push, and must still notice a release soon.
#[tokio::test(flavor = "multi_thread")]
async fn spurious_pushes_do_not_saturate_the_server() {
    const NAMES: u32 = 50;
    let server = RedisServer::with(&["appendonly no", "tracking-table-max-keys 5"]).unwrap();
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let names: Vec<_> = (0..NAMES).map(|n| format!("{NAME}-{n}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        let ttl = Duration::from_secs(600);
        guards.push(holder.lock(name).ttl(ttl).acquire().await.unwrap());
    }
    let start = Instant::now();
    let mut waiting = JoinSet::new();
    for name in &names {
        waiting.spawn(waiter.lock(name).wait(SOON * 2).acquire());
    }
    // Each attempt that finds a lock held runs `PTTL`.
    let questions = || server.calls("pttl").unwrap();
    eventually_async("all have asked many times", SOON, || async {
        (questions() > u64::from(NAMES) * 10).then_some(())
    })
    .await
    .unwrap();
    let asked = questions();
    let ticks = start.elapsed().as_millis() / 100;
    let most = u128::from(NAMES) * (ticks + 8);
    assert!(
        u128::from(asked) <= most,
        "{asked} questions, {most} are many"
    );
    for guard in guards {
        assert!(guard.release().await.is_clean());
    }
    while let Some(taken) = within(SOON, "the lock is granted", waiting.join_next()).await {
        assert!(taken.unwrap().unwrap().release().await.is_clean());
    }
}

/// A waiter over a slow network gets each push long after the releasing process has acquired the
/// lock again.
#[tokio::test(flavor = "multi_thread")]
async fn a_fast_process_does_not_starve_a_waiter_on_a_slow_network() {
    let server = RedisServer::start().unwrap();
    let near = locker(&server.url()).await;
    let road = FaultProxy::start(server.address()).await.unwrap();
    let far = locker(&server.url_at(road.address())).await;
    road.delay(Duration::from_millis(10));
    let turns = Arc::new(AtomicU32::new(0));
    let loops = tokio::spawn({
        let turns = Arc::clone(&turns);
        async move {
            loop {
                let guard = near.lock(NAME).wait(SOON).acquire().await.unwrap();
                pause(Duration::from_millis(100)).await;
                assert!(guard.release().await.is_clean());
                turns.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    eventually_async("the loop runs", SOON, || async {
        (turns.load(Ordering::Relaxed) > 0).then_some(())
    })
    .await
    .unwrap();
    for _ in 0..3 {
        let guard = within(
            SOON,
            "the waiter gets the lock",
            far.lock(NAME).wait(SOON).acquire(),
        )
        .await;
        assert!(guard.unwrap().release().await.is_clean());
    }
    loops.abort();
}

/// In four queues, the first contender has died. No push tells the one behind it. The dead entries
/// end a third of a renewal's interval apart, so at least one ends long before the next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_entry_delays_the_others_for_its_lease() {
    /// The attempt after the end of the entry, on a machine that is busy with other tests.
    const SLACK: Duration = Duration::from_millis(600);
    let server = RedisServer::start().unwrap();
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let mut waiting = JoinSet::new();
    for left in [2.5, 2.85, 3.2, 3.55].map(Duration::from_secs_f64) {
        let name = format!("{NAME}-{}", left.as_millis());
        let lock = holder.lock(&name).ttl(Duration::from_secs(60));
        let held = lock.acquire().await.unwrap();
        let queue = server
            .command(&["KEYS", &format!("*:lock:{name}")])
            .unwrap();
        let queue = queue.replace(":lock:", ":queue:");
        let time = server.command(&["TIME"]).unwrap();
        let time: Vec<u64> = time.lines().map(|it| it.parse().unwrap()).collect();
        let ends = time[0] * 1000 + time[1] / 1000 + u64::try_from(left.as_millis()).unwrap();
        let ended = Instant::now() + left;
        let dead = format!("dead {ends};");
        server
            .command(&["SET", &queue, &dead, "PX", "12000"])
            .unwrap();
        // The key of an entry exists long after the end of the entry.
        let key = queue.replace(":queue:", ":queue-entry:") + ":dead";
        server
            .command(&["SET", &key, "dead", "PX", "60000"])
            .unwrap();
        let (holder, waiter) = (holder.clone(), waiter.clone());
        waiting.spawn(async move {
            let granted = tokio::spawn(waiter.lock(&name).wait(SOON).acquire());
            eventually_async("it waits behind the dead one", SOON, || async {
                (holder.inspect(&name).await.unwrap().waiters == Some(2)).then_some(())
            })
            .await
            .unwrap();
            assert!(held.release().await.is_clean());
            let granted = granted.await.unwrap().unwrap();
            let now = Instant::now();
            assert!(granted.release().await.is_clean());
            assert!(now > ended - SLACK, "the dead entry did not count");
            now.saturating_duration_since(ended)
        });
    }
    let late = waiting.join_all().await;
    assert!(late.iter().all(|late| *late < SLACK), "{late:?} late");
}
