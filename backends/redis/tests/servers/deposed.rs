//! A primary that the sentinels have replaced, and that some clients still reach.
#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]
#![expect(clippy::print_stdout, reason = "it says what it measured")]

use std::time::{Duration, Instant};

use crate::common::{SOON, locker, pause, redis, within};
use distlock_core::{ErrorKind, Expect, Guard, Locker, LossReason, RecordKey, Written};
use distlock_harness::{Signal, eventually, eventually_async, servers::redis::RedisSentinels};

/// A time that is longer than a failover, so that a lease lasts from before the failover until
/// after it.
const TTL: Duration = Duration::from_secs(8);

/// The tolerance of measured times on a busy machine.
const LATE: Duration = Duration::from_millis(100);

async fn hold(locker: &Locker, name: &str) -> Guard {
    let acquired = locker.lock(name).ttl(TTL).wait(SOON).acquire();
    acquired.await.unwrap()
}

async fn try_hold(locker: &Locker, name: &str) -> distlock_core::Result<Guard> {
    let wanted = locker.lock(name).ttl(TTL).wait(Duration::ZERO);
    wanted.acquire().await
}

/// Stops replication. The replica can still be promoted.
fn stop_replication(servers: &RedisSentinels) {
    let set = ["CONFIG", "SET", "masteruser", "nobody", "masterauth", "x"];
    assert_eq!(servers.replica.command(&set).unwrap(), "OK");
    let kill = ["CLIENT", "KILL", "TYPE", "replica"];
    assert_eq!(servers.primary.command(&kill).unwrap(), "1");
}

/// Waits until these sentinels name the former replica. The returned moment is at or after the
/// last change of an answer.
async fn wait_until_replica_is_named(servers: &RedisSentinels, sentinels: &[usize]) -> Instant {
    let port = servers.replica.port();
    eventually_async("another primary is named", SOON, || async {
        let mut sentinels = sentinels.iter();
        let named = sentinels.all(|at| {
            servers
                .primary_port_at(*at)
                .is_ok_and(|named| named == port)
        });
        named.then_some(())
    })
    .await
    .unwrap();
    Instant::now()
}

/// A client of the old primary acquires one new lock after the other, until the new primary grants
/// one. Returns the latest deadline of the locks from the old primary.
async fn acquire_until_moved(locker: &Locker, servers: &RedisSentinels) -> Option<Instant> {
    let mut believed_until = None;
    for number in 0.. {
        let name = format!("fresh-{number}");
        let Ok(guard) = try_hold(locker, &name).await else {
            pause(Duration::from_millis(20)).await;
            continue;
        };
        let until = Instant::now() + guard.remaining();
        let keys = servers
            .replica
            .command(&["KEYS", &format!("*:lock:{name}")]);
        if !keys.unwrap().is_empty() {
            break;
        }
        believed_until = believed_until.max(Some(until));
        pause(Duration::from_millis(20)).await;
    }
    believed_until
}

/// One client holds a lock and another one acquires new locks, while the sentinels replace the
/// primary. Returns a new client and the lock that it then holds.
async fn depose_primary(servers: &RedisSentinels, url: &str, cut_off: &[usize]) -> (Locker, Guard) {
    let (holder, taker) = (locker(url).await, locker(url).await);
    stop_replication(servers);
    let guard = hold(&holder, "a").await;
    servers.cut_off_primary_with(cut_off).unwrap();
    let all = 0..servers.sentinels.len();
    let others: Vec<_> = all.filter(|at| !cut_off.contains(at)).collect();
    let watching = async {
        let reason = within(SOON, "the holder learns of the loss", guard.lost()).await;
        (reason, Instant::now())
    };
    let taking = within(
        SOON * 2,
        "the client follows",
        acquire_until_moved(&taker, servers),
    );
    let replaced = async {
        let named_at = wait_until_replica_is_named(servers, &others).await;
        let newcomer = locker(&servers.url_of(&others)).await;
        let next = within(SOON, "the lock is taken", hold(&newcomer, "a")).await;
        (named_at, Instant::now(), newcomer, next)
    };
    let ((reason, lost_at), believed_until, (named_at, taken_at, newcomer, next)) =
        tokio::join!(watching, taking, replaced);
    let role = servers.primary.info("role").unwrap();
    assert_eq!(role, "master", "nobody told the old primary");
    assert_eq!(reason, LossReason::HistoryChanged);
    let overlap = lost_at.saturating_duration_since(taken_at);
    println!("both were valid for {overlap:?}, one TTL is {TTL:?}");
    assert!(lost_at < named_at + TTL + LATE, "{:?}", lost_at - named_at);
    let believed_until = believed_until.expect("it took some before the failover");
    let after = believed_until.saturating_duration_since(named_at);
    println!("fresh locks of the old primary were believed for {after:?} after it was replaced");
    assert!(after < TTL + LATE, "{after:?}");
    assert!(next.is_valid());
    (newcomer, next)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_are_valid_for_one_ttl_at_the_most() {
    let servers = RedisSentinels::start().unwrap();
    let (_newcomer, next) = depose_primary(&servers, &servers.url(), &[]).await;
    assert!(next.release().await.is_clean());
}

/// A client that only reads, and gets no event from the sentinels, follows them within the
/// documented second.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_read_from_the_old_primary_for_one_second_at_the_most() {
    const USER: &str = "ACL SETUSER quiet on >canary ~* +@all -subscribe";
    let servers = RedisSentinels::start().unwrap();
    for sentinel in &servers.sentinels {
        let user: Vec<_> = USER.split(' ').collect();
        assert_eq!(sentinel.command(&user).unwrap(), "OK");
    }
    let quiet = "sentinel_user=quiet&sentinel_password=canary";
    let reader = redis(&format!("{}&{quiet}", servers.url())).await.unwrap();
    let reader = reader.records();
    let key = RecordKey::new("k").unwrap();
    let written = reader.put(&key, b"old", Expect::Absent).await.unwrap();
    let Written::Stored(version) = written else {
        panic!("{written:?}");
    };
    eventually("the replica has the record", SOON, || {
        let keys = servers.replica.command(&["KEYS", "*:record:*"]).unwrap();
        !keys.is_empty()
    })
    .unwrap();
    servers.cut_off_primary_with(&[]).unwrap();
    let replaced = async {
        let named_at = wait_until_replica_is_named(&servers, &[0, 1, 2]).await;
        let newcomer = redis(&servers.url()).await.unwrap().records();
        let next = newcomer.put(&key, b"new", Expect::Version(version)).await;
        assert!(matches!(next, Ok(Written::Stored(_))), "{next:?}");
        named_at
    };
    let reading = async {
        let promoted = || servers.replica.info("role").is_ok_and(|it| it == "master");
        while !promoted() {
            // A write asks the sentinels. So they have just named the old primary when the reads
            // begin.
            let other = RecordKey::new("other").unwrap();
            let _ = reader.put(&other, b"", Expect::Absent).await;
            pause(Duration::from_millis(10)).await;
        }
        let mut asked_old_at = Instant::now();
        loop {
            let asked_at = Instant::now();
            match reader.get(&key).await.map(|it| it.unwrap().value) {
                Ok(value) if value == b"new" => return asked_old_at,
                Ok(_) => asked_old_at = asked_at,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            pause(Duration::from_millis(10)).await;
        }
    };
    let (named_at, asked_old_at) = within(SOON * 2, "the reader follows", async {
        tokio::join!(replaced, reading)
    })
    .await;
    let after = asked_old_at.saturating_duration_since(named_at);
    println!("the old primary was asked for {after:?} after it was replaced");
    assert!(after <= Duration::from_secs(1), "{after:?}");
}

/// The sentinel that is cut off with the old primary still names the old primary.
#[tokio::test(flavor = "multi_thread")]
async fn the_vote_of_one_cut_off_sentinel_is_not_enough() {
    let servers = RedisSentinels::start().unwrap();
    // The first sentinel in the URL is the one that is cut off.
    let (_newcomer, next) = depose_primary(&servers, &servers.url(), &[0]).await;
    assert_eq!(servers.primary_port_at(0).unwrap(), servers.primary.port());
    // This client knows only that sentinel from its URL.
    let other = locker(&servers.url_of(&[0])).await;
    let busy = try_hold(&other, "a").await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Timeout, "{busy}");
    assert!(next.release().await.is_clean());
}

/// Three of five sentinels are configured. Two of these three, a majority of the configured ones,
/// are cut off with the old primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_of_the_configured_sentinels_is_not_enough() {
    let servers = RedisSentinels::with_sentinels(5).unwrap();
    let url = servers.url_of(&[0, 1, 2]);
    let (_newcomer, next) = depose_primary(&servers, &url, &[0, 1]).await;
    let other = locker(&url).await;
    let busy = try_hold(&other, "a").await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Timeout, "{busy}");
    assert!(next.release().await.is_clean());
    // If the other sentinels do not answer, this client gets an error.
    for at in [2, 3, 4] {
        servers.sentinels[at].signal(Signal::STOP).unwrap();
    }
    let refused = redis(&format!("{url}&connect_timeout=2s"))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let says = refused.to_string();
    assert!(says.contains("2 of 5 sentinels answered"), "{says}");
}

/// One sentinel promotes the replica without the votes of the others, and the others do not learn
/// of the promotion.
#[tokio::test(flavor = "multi_thread")]
async fn one_sentinel_that_promotes_alone_is_not_followed() {
    let servers = RedisSentinels::start().unwrap();
    let old = locker(&servers.url()).await;
    stop_replication(&servers);
    let guard = hold(&old, "a").await;
    servers.cut_off_primary_with(&[0, 1]).unwrap();
    let alone = &servers.sentinels[2];
    eventually("it promotes the replica", SOON, || {
        let _ = alone.command(&["SENTINEL", "FAILOVER", RedisSentinels::PRIMARY]);
        let named = servers.primary_port_at(2);
        named.is_ok_and(|named| named == servers.replica.port())
            && servers
                .replica
                .info("role")
                .is_ok_and(|role| role == "master")
    })
    .unwrap();
    for url in [servers.url_of(&[2]), servers.url_of(&[2, 0]), servers.url()] {
        let newcomer = locker(&url).await;
        let busy = try_hold(&newcomer, "a").await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Timeout, "{url}: {busy}");
    }
    // The old primary still renews the lock.
    pause(TTL).await;
    assert!(guard.is_valid());
    assert_eq!(servers.replica.command(&["KEYS", "*:lock:*"]).unwrap(), "");
    assert!(guard.release().await.is_clean());
}

/// The cost of the rule: without a majority nothing is renewed, although the primary answers.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_renewed() {
    let servers = RedisSentinels::start().unwrap();
    let locker = locker(&servers.url()).await;
    let guard = hold(&locker, "a").await;
    for at in [1, 2] {
        servers.sentinels[at].signal(Signal::STOP).unwrap();
    }
    let stopped = Instant::now();
    let reason = within(SOON, "the holder learns of the loss", guard.lost()).await;
    assert_eq!(reason, LossReason::Unreachable);
    assert!(stopped.elapsed() < TTL, "{:?}", stopped.elapsed());
    let error = try_hold(&locker, "b").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers.sentinels[1].signal(Signal::CONT).unwrap();
    let guard = within(SOON, "the server serves again", hold(&locker, "b")).await;
    assert!(guard.release().await.is_clean());
}

/// If one sentinel of three is missing, nothing is delayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_of_the_sentinels_is_enough() {
    let servers = RedisSentinels::start().unwrap();
    let locker = locker(&servers.url()).await;
    let guard = hold(&locker, "a").await;
    servers.sentinels[0].signal(Signal::STOP).unwrap();
    pause(TTL).await;
    assert!(guard.is_valid());
    assert!(guard.release().await.is_clean());
    let newcomer = crate::common::locker(&servers.url()).await;
    assert!(hold(&newcomer, "b").await.release().await.is_clean());
}

/// A client that acquires locks all the time asks the sentinels a few times in each lease, and
/// never waits for their answers.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_not_asked_for_each_lock() {
    let servers = RedisSentinels::start().unwrap();
    let locker = locker(&servers.url()).await;
    let asked = || servers.sentinels[0].info("total_commands_processed");
    let asked = || asked().unwrap().parse::<u64>().unwrap();
    assert!(hold(&locker, "a").await.release().await.is_clean());
    let (before, start) = (asked(), Instant::now());
    for _ in 0..500 {
        assert!(hold(&locker, "a").await.release().await.is_clean());
    }
    let spent = start.elapsed();
    let rounds = 2 + spent.as_millis() / (TTL / 12).as_millis();
    // Each round has three commands. In addition, the sentinels ask each other two or three times a
    // second.
    let most = 3 * u64::try_from(rounds).unwrap() + 20 * (spent.as_secs() + 1);
    assert!(asked() - before <= most, "{} > {most}", asked() - before);
}

/// A client that only waits learns from the sentinels that another primary serves, and then asks
/// that primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_follows_the_new_primary_at_once() {
    let servers = RedisSentinels::start().unwrap();
    let (holder, waiter) = (locker(&servers.url()).await, locker(&servers.url()).await);
    let guard = holder.lock("a").ttl(TTL * 10).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { hold(&waiter, "a").await });
    eventually("the server tracks the key", SOON, || {
        let clients = servers.primary.command(&["CLIENT", "LIST"]).unwrap();
        clients.contains("flags=t")
    })
    .unwrap();
    let failover = ["SENTINEL", "FAILOVER", RedisSentinels::PRIMARY];
    assert_eq!(servers.sentinels[0].command(&failover).unwrap(), "OK");
    let named_at = wait_until_replica_is_named(&servers, &[0, 1, 2]).await;
    eventually("the other server tracks the key", SOON, || {
        let clients = servers.replica.command(&["CLIENT", "LIST"]).unwrap();
        clients.contains("flags=t")
    })
    .unwrap();
    // Without the sentinels' push, the waiter would ask again only after up to ten seconds.
    assert!(named_at.elapsed() < Duration::from_secs(3));
    assert!(guard.release().await.is_clean());
    let next = within(SOON, "the lock is taken", waiting).await.unwrap();
    assert!(next.release().await.is_clean());
}
