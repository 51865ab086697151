//! Fenced changes of data on a Redis server.

use crate::common::{SOON, within};
use distlock_core::{Epoch, ErrorKind, Fence, FenceError, FenceRefusal, FencingToken, OwnerId};
use distlock_harness::servers::redis::RedisServer;
use distlock_redis::fence::Fenced;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;

const BAR: &str = "{account}:fence";
const BALANCE: &str = "{account}:balance";

fn fence(token: u64) -> Fence {
    Fence::new(
        FencingToken::new(token).unwrap(),
        OwnerId::new().tag(),
        Epoch::new("e"),
    )
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// Takes 1 from the balance, if the bar admits `fence`.
async fn pay(server: &mut MultiplexedConnection, fence: &Fence) -> Result<i64, FenceError> {
    let pay = Fenced::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
    pay.run(server, BAR, fence, &[BALANCE], &["1"]).await
}

fn kind(refused: FenceError) -> ErrorKind {
    match refused {
        FenceError::Failed(error) => error.kind(),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_holder_changes_nothing() {
    let server = RedisServer::start().unwrap();
    let mut connection = connect(&server).await;
    let (early, late) = (fence(7), fence(8));
    assert_eq!(pay(&mut connection, &early).await.unwrap(), -1);
    assert_eq!(pay(&mut connection, &late).await.unwrap(), -2);
    // After this the server knows no scripts, as after a restart.
    server.command(&["SCRIPT", "FLUSH"]).unwrap();
    assert_eq!(pay(&mut connection, &late).await.unwrap(), -3);
    let refused = pay(&mut connection, &early).await.unwrap_err();
    assert!(matches!(
        refused.refusal(),
        Some(FenceRefusal::Older { seen, offered })
            if *seen == late.token && *offered == early.token
    ));
    let refused = pay(&mut connection, &fence(8)).await.unwrap_err();
    assert!(matches!(
        refused.refusal(),
        Some(FenceRefusal::SameTokenOtherOwner { .. })
    ));
    assert_eq!(server.command(&["GET", BALANCE]).unwrap(), "-3");
    assert_eq!(server.command(&["PTTL", BAR]).unwrap(), "-1");
    let nothing: Option<String> = Fenced::new("return redis.call('GET', KEYS[1])")
        .run(&mut connection, BAR, &late, &["{account}:none"], &[])
        .await
        .unwrap();
    assert_eq!(nothing, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_without_answer_succeeds_and_a_half_made_change_is_internal() {
    let server = RedisServer::start().unwrap();
    let mut connection = connect(&server).await;
    for silent in ["redis.call('SET', KEYS[1], 'x')", "return nil", "return"] {
        let silent = Fenced::new(silent);
        let said: Option<String> = silent
            .run(&mut connection, BAR, &fence(7), &["{account}:x"], &[])
            .await
            .unwrap_or_else(|refused| panic!("{refused}"));
        assert_eq!(said, None);
        server.command(&["DEL", BAR]).unwrap();
    }
    let twice = "redis.call('INCR', KEYS[1]); redis.call('LPUSH', KEYS[2], 'x')";
    let broken = Fenced::new(twice)
        .run::<Option<i64>>(
            &mut connection,
            BAR,
            &fence(7),
            &[BALANCE, "{account}:x"],
            &[],
        )
        .await
        .unwrap_err();
    assert_eq!(server.command(&["GET", BALANCE]).unwrap(), "1");
    assert_eq!(kind(broken), ErrorKind::Internal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_answers_an_error_is_internal() {
    let server = RedisServer::start().unwrap();
    let mut connection = connect(&server).await;
    server.command(&["SET", "{account}:x", "no list"]).unwrap();
    let (holder, mut done) = (fence(7), 0);
    for refused in [
        "redis.pcall('LPUSH', KEYS[2], 'x')",
        "{1, {redis.pcall('LPUSH', KEYS[2], 'x')}}",
        "redis.error_reply('OOM says the change')",
        "redis.call('LPUSH', KEYS[2], 'x')",
        "error('READONLY says the change')",
        "error({})",
    ] {
        let change = Fenced::new(&format!("redis.call('INCR', KEYS[1]); return {refused}"));
        let error = change
            .run::<redis::Value>(
                &mut connection,
                BAR,
                &holder,
                &[BALANCE, "{account}:x"],
                &[],
            )
            .await
            .unwrap_err();
        done += 1;
        let balance = server.command(&["GET", BALANCE]).unwrap();
        assert_eq!(balance, done.to_string(), "{refused}");
        assert_eq!(kind(error), ErrorKind::Internal, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_with_an_unreadable_answer_is_reported_as_made() {
    let server = RedisServer::start().unwrap();
    let mut connection = connect(&server).await;
    for (token, answer) in [(7, ""), (8, "return 'many'"), (9, "return {1, 2}")] {
        let change = Fenced::new(&format!("redis.call('INCR', KEYS[1]); {answer}"));
        let refused = change
            .run::<i64>(&mut connection, BAR, &fence(token), &[BALANCE], &[])
            .await
            .unwrap_err();
        let FenceError::Failed(error) = refused else {
            panic!("{refused}");
        };
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
        assert!(error.to_string().contains("the change was made"), "{error}");
    }
    assert_eq!(server.command(&["GET", BALANCE]).unwrap(), "3");
}

/// If the server refuses the change before its first write, the caller may repeat the change.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_refused_before_its_first_write_did_not_happen() {
    let server = RedisServer::start().unwrap();
    let mut connection = connect(&server).await;
    let (early, late) = (fence(7), fence(8));
    pay(&mut connection, &early).await.unwrap();
    for (hindrance, remedy, expected) in [
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
            ErrorKind::Unavailable,
        ),
        (
            "CONFIG SET maxmemory 1",
            "CONFIG SET maxmemory 0",
            ErrorKind::LimitExceeded,
        ),
        (
            "REPLICAOF 127.0.0.1 1",
            "REPLICAOF NO ONE",
            ErrorKind::Unavailable,
        ),
        (
            "ACL SETUSER default -script",
            "ACL SETUSER default +script",
            ErrorKind::AccessDenied,
        ),
    ] {
        let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        server.command(&words(hindrance)).unwrap();
        let refused = pay(&mut connection, &late).await.unwrap_err();
        server.command(&words(remedy)).unwrap();
        assert_eq!(kind(refused), expected, "{hindrance}");
        pay(&mut connection, &early).await.unwrap();
    }
    assert_eq!(server.command(&["GET", BALANCE]).unwrap(), "-5");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_bar_refuses_every_holder() {
    let server = RedisServer::start().unwrap();
    let mut connection = connect(&server).await;
    pay(&mut connection, &fence(7)).await.unwrap();
    server.command(&["SET", BAR, "garbage"]).unwrap();
    let refused = pay(&mut connection, &fence(9)).await.unwrap_err();
    assert_eq!(kind(refused), ErrorKind::Corrupt);
    let not_text = "return redis.call('SET', KEYS[1], '\\255')";
    server.command(&["EVAL", not_text, "1", BAR]).unwrap();
    let refused = pay(&mut connection, &fence(9)).await.unwrap_err();
    assert_eq!(kind(refused), ErrorKind::Corrupt);
    server.command(&["DEL", BAR]).unwrap();
    server.command(&["LPUSH", BAR, "1"]).unwrap();
    let refused = pay(&mut connection, &fence(9)).await.unwrap_err();
    assert_eq!(kind(refused), ErrorKind::Corrupt);
    assert_eq!(server.command(&["GET", BALANCE]).unwrap(), "-1");
}

/// Several holders change the bar at the same time, between each other's read and change.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_holders_write_in_the_order_of_their_tokens() {
    let server = RedisServer::start().unwrap();
    let write = Fenced::new("return redis.call('RPUSH', KEYS[1], ARGV[1])");
    let mut holders = Vec::new();
    for turn in 1..=8 {
        let (mut connection, write) = (connect(&server).await, write.clone());
        // Each task is admitted several times with higher tokens, and passes the other tasks.
        holders.push(tokio::spawn(async move {
            let mut written = 0;
            for round in 0..50 {
                let token = round * 8 + turn;
                let text = token.to_string();
                let done: Result<i64, _> = write
                    .run(
                        &mut connection,
                        BAR,
                        &fence(token),
                        &["{account}:log"],
                        &[&text],
                    )
                    .await;
                match done {
                    Ok(_) => written += 1,
                    Err(refused) => assert!(refused.refusal().is_some(), "{refused}"),
                }
            }
            written
        }));
    }
    let written = within(SOON, "all have written", join_all(holders)).await;
    let written: usize = written.into_iter().map(Result::unwrap).sum();
    let log = server
        .command(&["LRANGE", "{account}:log", "0", "-1"])
        .unwrap();
    let tokens: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), written);
    assert!(tokens.is_sorted(), "{tokens:?}");
}
