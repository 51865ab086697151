//! Holders, waiters and callers when the server or its network fails.
#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]

use std::time::{Duration, Instant};

use crate::common::{SOON, locker, over_records, pause, redis, request, take, within};
use distlock_core::{
    ErrorKind, Expect, Forced, Guard, HandOver, Lease, LockName, Locker, LossReason, RecordKey,
    ReleaseOutcome, Released, Renew, Written,
};
use distlock_harness::{
    Direction, FaultProxy, Signal, eventually_async, servers::redis::RedisServer,
};

/// The TTL of a lease that must expire during a test.
const TTL: Duration = Duration::from_millis(1500);

/// The TTL of a lease that outlives every test.
const LONG: Duration = Duration::from_secs(60);

async fn hold(locker: &Locker, name: &str, ttl: Duration) -> Guard {
    locker.lock(name).ttl(ttl).acquire().await.unwrap()
}

/// Starts a server behind a proxy. The URL leads through the proxy.
async fn behind_a_proxy() -> (RedisServer, FaultProxy, String) {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let url = server.url_at(proxy.address());
    (server, proxy, url)
}

fn locks(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*:lock:*"]).unwrap();
    keys.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_data_changes_only_the_epoch() {
    let mut server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let guard = hold(&locker, "a", TTL * 4).await;
    let (epoch, token) = (guard.epoch(), guard.token());
    // Every write is on disk before it is answered. By default a write may reach the disk a second
    // later.
    server
        .command(&["CONFIG", "SET", "appendfsync", "always"])
        .unwrap();
    server.restart().unwrap();
    eventually_async("the new epoch is noted", SOON, || async {
        (guard.epoch() != epoch).then_some(())
    })
    .await
    .unwrap();
    assert!(guard.is_valid());
    assert_eq!(guard.token(), token);
    assert_eq!(
        locker.inspect("a").await.unwrap().epoch,
        Some(guard.epoch())
    );
    // A lock that was removed by hand after the change of the epoch was not lost to that change.
    server.command(&["DEL", &locks(&server)[0]]).unwrap();
    let reason = within(SOON, "the holder learns of the loss", guard.lost()).await;
    assert_eq!(reason, LossReason::Removed);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_without_data_the_holder_learns_of_its_loss_and_tokens_rise() {
    let mut server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let guard = hold(&locker, "a", TTL * 4).await;
    let start = Instant::now();
    server.restart_empty().unwrap();
    let reason = within(SOON, "the holder learns of the loss", guard.lost()).await;
    assert_eq!(reason, LossReason::HistoryChanged);
    assert!(start.elapsed() < TTL * 4, "not only when the lease ends");
    let next = hold(&locker, "a", TTL * 4).await;
    assert!(
        next.token() > guard.token(),
        "the counter was lost, the clock was not"
    );
    assert_ne!(next.epoch(), guard.epoch());
    drop(guard);
    // A lock granted after the change of the epoch is lost for another reason.
    server.command(&["FLUSHALL"]).unwrap();
    let reason = within(SOON, "the holder learns of the loss", next.lost()).await;
    assert_eq!(reason, LossReason::Removed);
}

/// Locks over the records of the server notice the loss of all data too: by a renewal, and by a
/// release of a lock that nobody renewed since.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_over_records_notices_a_restart_without_data() {
    let mut server = RedisServer::start().unwrap();
    let locker = over_records(server.url()).await.unwrap().locker();
    let renewed = hold(&locker, "renewed", TTL * 4).await;
    let lock = locker.lock("released").ttl(LONG).renew(Renew::Manual);
    let unrenewed = lock.acquire().await.unwrap();
    server.restart_empty().unwrap();
    let reason = within(SOON, "the holder learns of the loss", renewed.lost()).await;
    assert_eq!(reason, LossReason::HistoryChanged);
    let released = unrenewed.release().await;
    assert!(
        matches!(released, Released::AlreadyLost(LossReason::HistoryChanged)),
        "{released:?}"
    );
    let next = hold(&locker, "renewed", TTL * 4).await;
    assert!(next.token() > renewed.token(), "the clock was not lost");
    assert_ne!(next.epoch(), renewed.epoch());
    // A lock that is removed within the new history was not lost with the old one.
    let forced = locker.force_release("renewed", next.token()).await;
    assert_eq!(forced.unwrap(), Forced::Released);
    let reason = within(SOON, "the holder learns of the loss", next.lost()).await;
    assert_eq!(reason, LossReason::Removed);
    locker.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_is_reported_at_the_next_renewal() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let ttl = TTL * 4;
    let guard = hold(&locker, "a", ttl).await;
    server.command(&["FLUSHALL"]).unwrap();
    assert_eq!(
        within(ttl, "the holder learns of the loss", guard.lost()).await,
        LossReason::Removed
    );
    let next = hold(&locker, "a", LONG).await;
    assert!(next.token() > guard.token());
    assert!(next.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn flushed_scripts_are_sent_again() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    for _ in 0..2 {
        let guard = hold(&locker, "a", LONG).await;
        assert_eq!(server.command(&["SCRIPT", "FLUSH"]).unwrap(), "OK");
        guard.extend(LONG).await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert!(guard.release().await.is_clean());
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
    }
    // The same with several locks in one request.
    let guards = locker.lock_all(["a", "b", "c"]).acquire().await.unwrap();
    for (name, released) in guards.release().await {
        assert!(released.is_clean(), "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_connection_is_replaced() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let ttl = TTL * 3;
    let guard = hold(&locker, "a", ttl).await;
    let until = Instant::now() + ttl * 3 / 2;
    while Instant::now() < until {
        server
            .command(&["CLIENT", "KILL", "TYPE", "normal"])
            .unwrap();
        pause(ttl / 10).await;
    }
    assert!(guard.is_valid(), "every renewal arrived");
    assert!(matches!(
        guard.release().await,
        Released::Clean | Released::Unconfirmed(_)
    ));
    eventually_async("the lock is released nevertheless", SOON, || async {
        locks(&server).is_empty().then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_survives_a_cut_of_a_third_of_its_ttl() {
    let (_server, proxy, url) = behind_a_proxy().await;
    let locker = locker(&url).await;
    let ttl = TTL * 4;
    let guard = hold(&locker, "a", ttl).await;
    proxy.stop(Direction::ToServer);
    proxy.stop(Direction::ToClient);
    pause(ttl / 3).await;
    proxy.pass();
    pause(ttl).await;
    assert!(guard.is_valid());
    assert!(guard.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_longer_than_the_lease_ends_the_guard_in_time() {
    let ttl = TTL * 2;
    for black_hole in [false, true] {
        let (server, proxy, url) = behind_a_proxy().await;
        let (cut, direct) = (locker(&url).await, locker(&server.url()).await);
        let guard = hold(&cut, "a", ttl).await;
        let (token, watch) = (guard.token(), guard.watch());
        if black_hole {
            proxy.black_hole();
        } else {
            proxy.stop(Direction::ToServer);
            proxy.stop(Direction::ToClient);
        }
        let start = Instant::now();
        // Another client waits for the lock over a working connection. When that client gets the
        // lock, the holder's guard must be invalid.
        let other = tokio::spawn(async move {
            let guard = direct.lock("a").ttl(LONG).wait(SOON).acquire().await;
            assert!(!watch.is_valid(), "two holders at once");
            guard.unwrap()
        });
        let reason = within(SOON, "the holder learns of the loss", guard.lost()).await;
        assert_eq!(reason, LossReason::Unreachable);
        assert!(start.elapsed() < ttl + Duration::from_millis(250));
        let next = within(SOON, "the other client gets the lock", other)
            .await
            .unwrap();
        assert!(next.token() > token);
        proxy.pass();
        // Neither the requests that the proxy held back nor later requests of the old holder change
        // the lock.
        assert!(!guard.release().await.is_clean());
        next.extend(LONG).await.unwrap();
        assert!(next.release().await.is_clean());
        let again = within(SOON, "the connection works again", cut.lock("a").acquire()).await;
        assert!(again.unwrap().release().await.is_clean());
    }
}

/// Connecting takes longer than an operation waits for a connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_a_slow_network_is_replaced() {
    let (_server, proxy, url) = behind_a_proxy().await;
    let locker = locker(&url).await;
    proxy.delay(Duration::from_millis(300));
    proxy.reset();
    let guard = eventually_async("the client is connected again", SOON, || async {
        locker.lock("a").wait(Duration::ZERO).acquire().await.ok()
    })
    .await
    .unwrap();
    assert!(guard.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_ends_the_guard_and_keeps_exclusion() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let guard = hold(&locker, "a", TTL).await;
    server.signal(Signal::STOP).unwrap();
    let start = Instant::now();
    let refused = locker.lock("b").wait(Duration::ZERO).acquire().await;
    assert!(refused.unwrap_err().is_retryable());
    assert!(start.elapsed() < SOON, "ends within a bound");
    assert_eq!(
        within(SOON, "the holder learns of the loss", guard.lost()).await,
        LossReason::Unreachable
    );
    server.signal(Signal::CONT).unwrap();
    for name in ["a", "b"] {
        let again = within(SOON, name, locker.lock(name).acquire()).await;
        assert!(again.unwrap().release().await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_reply_was_lost_is_recognised() {
    let (server, proxy, url) = behind_a_proxy().await;
    let locker = locker(&url).await;
    // The scripts are loaded first, so that the lost reply is the reply to the grant.
    assert!(hold(&locker, "a", LONG).await.release().await.is_clean());
    for round in 0..5 {
        proxy.swallow_one_reply();
        let ttl = Duration::from_secs(30);
        let guard = within(SOON, "the lock is granted", hold(&locker, "a", ttl)).await;
        assert_eq!(locks(&server).len(), 1, "round {round}");
        let shown = locker.inspect("a").await.unwrap();
        assert_eq!(shown.last_token, Some(guard.token()));
        assert!(guard.release().await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_reply_was_lost_happened_once() {
    let (server, proxy, url) = behind_a_proxy().await;
    let (cut, direct) = (locker(&url).await, locker(&server.url()).await);
    // The scripts are loaded first, so that the lost reply is the reply to the release.
    assert!(hold(&cut, "a", LONG).await.release().await.is_clean());
    let guard = hold(&cut, "a", Duration::from_secs(30)).await;
    proxy.swallow_one_reply();
    // The first release freed the lock. The repeated release finds no lock, and the result is still
    // clean.
    assert!(guard.release().await.is_clean());
    assert!(locks(&server).is_empty(), "it was applied");
    let next = hold(&direct, "a", Duration::from_secs(30)).await;
    cut.close().await;
    assert!(next.is_valid());
    next.extend(Duration::from_secs(30)).await.unwrap();
    assert!(next.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_whose_reply_was_lost_has_an_unknown_outcome() {
    let (server, proxy, url) = behind_a_proxy().await;
    let locker = locker(&url).await;
    let ttl = Duration::from_secs(30);
    let guard = hold(&locker, "a", ttl).await;
    // The script is loaded first, so that the lost reply is the reply to the renewal.
    guard.extend(ttl).await.unwrap();
    let token = guard.token();
    proxy.swallow_one_reply();
    // No other request is sent meanwhile, because the next automatic renewal is not due for a long
    // time.
    let error = guard.extend(ttl * 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    let left = server.command(&["PTTL", &locks(&server)[0]]).unwrap();
    assert!(left.parse::<u128>().unwrap() > ttl.as_millis(), "{left}");
    assert!(guard.is_valid());
    eventually_async("the next renewal is answered", SOON, || async {
        guard.extend(ttl).await.ok()
    })
    .await
    .unwrap();
    assert_eq!(guard.token(), token);
    assert!(guard.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_whose_reply_was_lost_is_recognised() {
    let (server, proxy, url) = behind_a_proxy().await;
    let store = redis(&url).await.unwrap();
    let lock = store.lock();
    let mut holder = request("a", LONG);
    let mut grant = take(&*lock, &holder).await;
    for round in 0..5 {
        let lease = Lease::new(holder.name.clone(), holder.owner, Some(grant.token));
        let next = request("a", LONG);
        // The first round loads the script.
        if round > 0 {
            proxy.swallow_one_reply();
        }
        let handed = eventually_async("the server answers", SOON, || async {
            let handed = lock.hand_over(&lease, &next).await;
            let handed = handed.inspect_err(|error| assert!(error.is_retryable(), "{error}"));
            handed.ok()
        })
        .await
        .unwrap();
        let HandOver::Done(given) = handed else {
            panic!("{handed:?}");
        };
        assert!(given.token > grant.token, "round {round}");
        let [key] = &*locks(&server) else {
            panic!("one lock");
        };
        let value = server.command(&["GET", key]).unwrap();
        assert!(value.contains(&given.token.to_string()), "{value}");
        // The former holder no longer has the lock.
        let released = lock.release(&lease).await.unwrap();
        assert_eq!(released, ReleaseOutcome::NotHeld);
        (holder, grant) = (next, given);
    }
}

/// The same case with guards: the next task of the process gets the lock, and no other caller does.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_gets_the_lock_although_the_reply_to_a_hand_over_was_lost() {
    let (server, proxy, url) = behind_a_proxy().await;
    let locker = locker(&url).await;
    for _ in 0..5 {
        let guard = hold(&locker, "a", LONG).await;
        let token = guard.token();
        let next = tokio::spawn({
            let locker = locker.clone();
            async move { locker.lock("a").ttl(LONG).wait(SOON).acquire().await }
        });
        // The task is most likely in the local queue by now. Otherwise the lost reply is the reply
        // to a release.
        pause(Duration::from_millis(20)).await;
        proxy.swallow_one_reply();
        let released = guard.release().await;
        assert!(
            matches!(released, Released::Clean | Released::Unconfirmed(_)),
            "{released:?}"
        );
        let next = within(SOON, "the next task gets the lock", next)
            .await
            .unwrap()
            .unwrap();
        assert!(next.token() > token);
        assert_eq!(locks(&server).len(), 1);
        proxy.pass();
        assert!(next.release().await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_server_refuses_and_a_promoted_one_serves() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let guard = hold(&locker, "a", TTL * 4).await;
    let epoch = guard.epoch();
    // A replica without a primary keeps its data and refuses writes.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let refused = locker
        .lock("b")
        .wait(Duration::ZERO)
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("replica"), "{refused}");
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let other = within(SOON, "the server serves", hold(&locker, "b", TTL * 4)).await;
    let promoted = other.epoch();
    assert_ne!(promoted, epoch, "a promotion begins a history");
    // A renewal uses another connection than the grant, and the server has closed neither
    // connection.
    for round in 0..2 {
        for guard in [&guard, &other] {
            guard.extend(TTL * 4).await.unwrap();
            assert_eq!(guard.epoch(), promoted, "{}, round {round}", guard.name());
        }
    }
    assert!(guard.release().await.is_clean());
    assert!(other.release().await.is_clean());
}

/// A lock that is missing in the new epoch was lost to the change. A lock that is removed later was
/// not. Both connections must report the right reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_lost_to_a_promotion_is_distinguished_from_a_removed_one() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let names = ["a", "b"];
    let [a, b] = [
        hold(&locker, names[0], LONG).await,
        hold(&locker, names[1], LONG).await,
    ];
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let refused = locker.lock("c").wait(Duration::ZERO).acquire().await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let keys = locks(&server);
    let key = |name: &str| keys.iter().find(|key| key.ends_with(name)).unwrap();
    server.command(&["DEL", key("a")]).unwrap();
    // Both connections are used for each bucket, the connection of the renewals last.
    for name in names {
        let tried = eventually_async("the server serves", SOON, || async {
            let free = locker.lock(name).wait(Duration::ZERO).acquire().await;
            match free {
                Err(error) if error.kind() == ErrorKind::Unavailable => None,
                tried => Some(tried),
            }
        });
        drop(tried.await.unwrap());
    }
    assert!(a.extend(LONG).await.is_err());
    let reason = within(SOON, "the holder learns of the loss", a.lost()).await;
    assert_eq!(reason, LossReason::HistoryChanged);
    b.extend(LONG).await.unwrap();
    server.command(&["DEL", key("b")]).unwrap();
    assert!(b.extend(LONG).await.is_err());
    let reason = within(SOON, "the holder learns of the loss", b.lost()).await;
    assert_eq!(reason, LossReason::Removed);
}

/// Held locks can be renewed and released, by guard and by ticket, because releases free memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory_renews_and_releases() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let guard = hold(&locker, "guarded", LONG).await;
    let [first, second] = ["first", "second"].map(|name| hold(&locker, name, LONG));
    let first = first.await.into_ticket().await.unwrap();
    let second = second.await;
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    assert_eq!(server.command(&full).unwrap(), "OK");
    let refused = locker.lock("new").wait(Duration::ZERO).acquire().await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::LimitExceeded);
    guard.extend(LONG).await.unwrap();
    locker.renew_ticket(&first, LONG).await.unwrap();
    locker.release_ticket(&first).await.unwrap();
    let second = second.into_ticket().await.unwrap();
    let resumed = locker.resume(&second).await.unwrap();
    assert!(resumed.release().await.is_clean());
    assert!(guard.release().await.is_clean());
    assert_eq!(locks(&server), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_operation_did_not_happen_and_names_the_reason() {
    let server = RedisServer::with(&["appendonly no", "enable-protected-configs yes"]).unwrap();
    let locker = locker(&server.url()).await;
    let held = hold(&locker, "held", LONG).await;
    let records = redis(&server.url()).await.unwrap().records();
    let [kept, new] = ["kept", "new"].map(|key| RecordKey::new(key).unwrap());
    let written = records.put(&kept, b"v", Expect::Absent).await.unwrap();
    let Written::Stored(version) = written else {
        panic!("{written:?}");
    };
    let set = |name: &str, value: &str| {
        assert_eq!(
            server.command(&["CONFIG", "SET", name, value]).unwrap(),
            "OK"
        );
    };
    // Returns the error of every operation that writes. A full server does not refuse a delete,
    // which frees memory.
    let refused = || async {
        let acquired = locker.lock("a").wait(Duration::ZERO).acquire().await;
        let error = acquired.unwrap_err();
        let created = records.put(&new, b"v", Expect::Absent).await;
        let replaced = records.put(&kept, b"w", Expect::Version(version)).await;
        let mut others = vec![created.unwrap_err(), replaced.unwrap_err()];
        if error.kind() != ErrorKind::LimitExceeded {
            others.push(records.delete(&kept, version).await.unwrap_err());
        }
        for other in &others {
            assert_eq!(other.message(), error.message(), "{other}");
            assert_eq!(other.kind(), error.kind(), "{other}");
            assert_eq!(other.is_retryable(), error.is_retryable(), "{other}");
            assert!(other.did_not_happen(), "{other}");
        }
        assert!(error.did_not_happen(), "{error}");
        let entry = records.get(&kept).await.unwrap();
        assert_eq!(entry.unwrap().version, version);
        assert!(records.get(&new).await.unwrap().is_none());
        error
    };

    set("min-replicas-to-write", "1");
    let error = refused().await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("NOREPLICAS"), "{error}");
    set("min-replicas-to-write", "0");

    set("maxmemory", "1");
    let error = refused().await;
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.to_string().contains("out of memory"), "{error}");
    assert!(error.is_retryable(), "{error}");
    set("maxmemory", "0");

    // After a failed snapshot the server refuses writes.
    set("save", "3600 1");
    set("dbfilename", "no-such-folder");
    let folder = server.folder().join("no-such-folder");
    std::fs::create_dir_all(folder.join("full")).unwrap();
    server.command(&["BGSAVE"]).unwrap();
    eventually_async("the snapshot failed", SOON, || async {
        (server.info("rdb_last_bgsave_status").unwrap() == "err").then_some(())
    })
    .await
    .unwrap();
    let error = refused().await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("MISCONF"), "{error}");
    set("save", "");

    set("busy-reply-threshold", "50");
    let busy = std::thread::spawn({
        let (at, password) = (server.address(), server.password().to_owned());
        move || {
            use std::io::Write as _;
            let mut stream = std::net::TcpStream::connect(at).unwrap();
            let forever = format!("AUTH {password}\r\nEVAL \"while true do end\" 0\r\n");
            stream.write_all(forever.as_bytes()).unwrap();
            stream
        }
    });
    let _stream = busy.join().unwrap();
    let error = eventually_async("the server is busy", SOON, || async {
        let error = locker.lock("a").wait(Duration::ZERO).acquire().await;
        error
            .err()
            .filter(|error| error.to_string().contains("BUSY"))
    })
    .await
    .unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    server.command(&["SCRIPT", "KILL"]).unwrap();

    let again = within(SOON, "the server serves again", hold(&locker, "a", LONG)).await;
    assert!(again.release().await.is_clean());
    assert!(held.is_valid());
    assert!(held.release().await.is_clean());
    assert!(locks(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_names_the_client_limit_of_a_full_server() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let guard = hold(&locker, "a", LONG).await;
    server
        .command(&["CONFIG", "SET", "maxclients", "1"])
        .unwrap();
    let start = Instant::now();
    let error = redis(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(
        error.to_string().contains("max number of clients"),
        "{error}"
    );
    assert!(error.is_retryable(), "{error}");
    assert!(start.elapsed() < SOON);
    // Connected clients still work.
    guard.extend(LONG).await.unwrap();
    assert!(guard.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_after_a_counter_was_set_back() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let mut last = None;
    for sabotage in [
        None,
        Some("1"),
        Some("0000000000000001"),
        Some("nonsense"),
        None,
    ] {
        let guard = hold(&locker, "a", LONG).await;
        assert!(last < Some(guard.token()), "{sabotage:?}");
        last = Some(guard.token());
        let counter = server.command(&["KEYS", "*:counter"]).unwrap();
        match sabotage {
            Some(value) => server.command(&["SET", &counter, value]).unwrap(),
            None => server.command(&["DEL", &counter]).unwrap(),
        };
        assert!(guard.release().await.is_clean());
    }
    // If the counter is at the highest token, an acquire gets an error and no grant.
    assert!(hold(&locker, "a", LONG).await.release().await.is_clean());
    let counter = server.command(&["KEYS", "*:counter"]).unwrap();
    server
        .command(&["SET", &counter, "9007199254740991"])
        .unwrap();
    let error = locker.lock("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(locks(&server).is_empty());
    server.command(&["DEL", &counter]).unwrap();
    assert!(hold(&locker, "a", LONG).await.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_value_is_neither_free_nor_overwritten() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    assert!(hold(&locker, "a", LONG).await.release().await.is_clean());
    let counter = server.command(&["KEYS", "*:counter"]).unwrap();
    let key = counter.replace("}:counter", "}:lock:a");
    for (write, kind) in [
        (vec!["SET", &key, "not a lock"], "string"),
        (vec!["SET", &key, "not a lock", "PX", "60000"], "string"),
        (vec!["RPUSH", &key, "not a lock"], "list"),
    ] {
        server.command(&write).unwrap();
        let error = locker.lock("a").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        // One request acquires the foreign lock together with a free one.
        let error = locker.lock_all(["a", "b"]).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(server.command(&["TYPE", &key]).unwrap(), kind);
        assert_eq!(server.command(&["DEL", &key]).unwrap(), "1");
    }
    assert!(hold(&locker, "a", LONG).await.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_is_neither_renewed_nor_released_nor_revived() {
    let server = RedisServer::start().unwrap();
    let store = redis(&server.url()).await.unwrap();
    let lock = store.lock();
    let first = request("a", Duration::from_millis(100));
    let grant = take(&*lock, &first).await;
    pause(Duration::from_millis(250)).await;
    let lease = Lease::new(first.name.clone(), first.owner, Some(grant.token));
    let renewal = distlock_core::Renewal::plain(first.ttl);
    let renewed = lock.renew(&lease, &renewal).await.unwrap();
    assert!(
        matches!(renewed, distlock_core::Renewed::NotHeld(_)),
        "{renewed:?}"
    );
    assert!(locks(&server).is_empty());
    // The same owner gets a new lease, and the old lease has ended.
    let mut again = first.clone();
    again.ttl = distlock_core::Ttl::new(LONG).unwrap();
    let second = take(&*lock, &again).await;
    assert!(second.token > grant.token);
    let renewed = lock.renew(&lease, &renewal).await.unwrap();
    assert!(matches!(
        renewed,
        distlock_core::Renewed::NotHeld(LossReason::Expired)
    ));
    assert_eq!(lock.release(&lease).await.unwrap(), ReleaseOutcome::NotHeld);
    let name = LockName::new("a").unwrap();
    assert_eq!(
        lock.inspect(&name).await.unwrap().last_token,
        Some(second.token)
    );
}
