//! The documented rights are enough on every kind of server, and each of them is needed.

use std::time::Duration;

use crate::common::{SOON, redis, request, slot_migration::SlotMigration, within};
use distlock_core::{
    AcquireRequest, Attempt, Deleted, Expect, Forced, Grant, HandOver, Health, Lease, RecordKey,
    ReleaseOutcome, Renewal, Renewed, Result, Verdict, Written,
};
use distlock_harness::servers::redis::{Flavour, RedisCluster, RedisSentinels, RedisServer};
use futures_util::future::join_all;

/// The ACL line in the crate's documentation.
const ACL: &str = include_str!("../../src/acl.txt");

const LONG: Duration = Duration::from_secs(600);

/// Gives these rights to the user.
fn permit(server: &RedisServer, words: &[&str]) {
    assert_eq!(server.command(words).unwrap(), "OK");
}

fn documented_acl() -> Vec<String> {
    let line = ACL.trim().replace(">PASSWORD", ">canary");
    line.split(' ').map(str::to_owned).collect()
}

/// Returns the URL with this test's user in place of the password that it had.
fn url_of_user(url: &str) -> String {
    let (scheme, hosts) = url.split_once("://:").unwrap();
    let (_, hosts) = hosts.split_once('@').unwrap();
    format!("{scheme}://distlock:canary@{hosts}")
}

fn granted(
    asked: Result<Attempt<Grant>>,
    of: &AcquireRequest,
) -> std::result::Result<Lease, String> {
    match asked {
        Ok(Attempt::Acquired(grant)) => {
            Ok(Lease::new(of.name.clone(), of.owner, Some(grant.token)))
        }
        other => Err(format!("acquire: {other:?}")),
    }
}

/// Returns early with an error unless the answer matches the pattern.
macro_rules! got {
    ($answer:expr, $pattern:pat) => {{
        match $answer {
            Ok($pattern) => {}
            answer => return Err(format!("{}: {answer:?}", stringify!($answer))),
        }
    }};
}

/// Runs every operation of locks and records. The error names the first operation that fails.
async fn run_every_operation(url: &str) -> std::result::Result<Health, String> {
    let store = redis(url).await.map_err(|error| error.to_string())?;
    let (lock, records) = (store.lock(), store.records());
    let next = request("n0", LONG);
    let mut contender = lock
        .contend(&next)
        .await
        .map_err(|error| error.to_string())?;

    // One lock in its own request, and several locks in one batch.
    let alone = request("alone", LONG);
    let alone = granted(lock.try_acquire(&alone).await, &alone)?;
    got!(lock.release(&alone).await, ReleaseOutcome::Released { .. });
    let wanted: Vec<_> = (0..64).map(|at| request(&format!("n{at}"), LONG)).collect();
    let asked = join_all(wanted.iter().map(|request| lock.try_acquire(request))).await;
    let held = asked.into_iter().zip(&wanted);
    let held: Vec<_> = held
        .map(|(asked, of)| granted(asked, of))
        .collect::<std::result::Result<_, _>>()?;
    let renewal = Renewal::plain(next.ttl);
    got!(
        lock.renew(&held[0], &renewal).await,
        Renewed::Extended { .. }
    );
    got!(contender.attempt().await, Attempt::Busy(Some(_)));
    for released in join_all(held.iter().map(|lease| lock.release(lease))).await {
        got!(released, ReleaseOutcome::Released { .. });
    }
    within(SOON, "the waiter wakes up", contender.wait(LONG)).await;
    let lease = granted(contender.attempt().await, &next)?;

    let other = request("n0", LONG);
    let Ok(HandOver::Done(grant)) = lock.hand_over(&lease, &other).await else {
        return Err("it is not handed over".into());
    };
    got!(
        lock.inspect(&other.name).await.map(|info| info.held),
        Some(_)
    );
    got!(lock.list("n", None, 10).await.as_deref(), [_]);
    got!(
        lock.force_release(&other.name, grant.token).await,
        Forced::Released
    );

    let key = RecordKey::new("k").unwrap();
    let written = records.put(&key, b"v", Expect::Absent).await;
    let Ok(Written::Stored(version)) = written else {
        return Err(format!("put: {written:?}"));
    };
    got!(records.get(&key).await, Some(_));
    got!(records.scan("k", None, 10).await.as_deref(), [_]);
    got!(records.delete(&key, version).await, Deleted::Done);

    lock.health().await.map_err(|error| error.to_string())
}

fn verdicts(health: &Health) -> Vec<(&'static str, Verdict)> {
    let findings = health.findings.iter();
    findings.map(|found| (found.check, found.verdict)).collect()
}

fn assert_all_rights(health: &Health) {
    for (check, verdict) in verdicts(health) {
        assert!(check != "rights" || verdict == Verdict::Pass, "{health:?}");
    }
}

/// Returns the commands and keys that servers refused since the last call.
fn refused(servers: &[RedisServer]) -> Vec<String> {
    let mut objects = Vec::new();
    for server in servers {
        let log = server.command(&["ACL", "LOG"]).unwrap();
        let words: Vec<_> = log.lines().collect();
        let pairs = words.windows(2).filter(|pair| pair[0] == "object");
        objects.extend(pairs.map(|pair| pair[1].to_owned()));
        server.command(&["ACL", "LOG", "RESET"]).unwrap();
    }
    objects
}

/// Removes one right after the other, and checks that an operation then fails.
async fn check_each_right_is_needed(
    servers: &[RedisServer],
    rights: &[String],
    tried: impl AsyncFn() -> std::result::Result<Health, String>,
) {
    let all = documented_acl();
    let mut whole = None;
    for right in [None].into_iter().chain(rights.iter().map(Some)) {
        let words = all.iter().filter(|word| Some(*word) != right);
        let words: Vec<_> = words.map(String::as_str).collect();
        for server in servers {
            server.command(&["FLUSHALL"]).unwrap();
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            permit(server, &words);
        }
        refused(servers);
        let outcome = tried().await;
        let refused = refused(servers);
        let Some(right) = right else {
            let health = outcome.expect("with all of them it works");
            assert_all_rights(&health);
            whole = Some(verdicts(&health));
            continue;
        };
        match right.as_str() {
            // Only the doctor needs this right.
            "+info" => {
                let health = outcome.expect(right);
                assert_ne!(whole, Some(verdicts(&health)), "{right}: {health:?}");
            }
            _ => {
                let error = outcome.expect_err(right);
                let says = if right == "+select" {
                    "for this user"
                } else {
                    "does not permit"
                };
                assert!(error.contains(says), "{right}: {error}");
                let object = right.trim_start_matches('+');
                let missed = refused.iter().any(|refused| {
                    refused == object
                        || (object.starts_with('~') && refused.starts_with("distlock:"))
                });
                assert!(missed, "{right}: {error}: {refused:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_needs_each_documented_right() {
    let mut rights = documented_acl();
    rights.retain(|word| word.starts_with(['+', '~']));
    rights.retain(|word| !["+cluster|slots", "+asking"].contains(&word.as_str()));
    assert!(rights.len() > 20, "{rights:?}");
    for flavour in [Flavour::Installed, Flavour::Redis8, Flavour::Valkey9] {
        let servers = [RedisServer::start_flavour(flavour, &[]).unwrap()];
        let url = url_of_user(&format!("{}/1", servers[0].url()));
        let tried = async || run_every_operation(&url).await;
        check_each_right_is_needed(&servers, &rights, tried).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_needs_two_more_rights() {
    let cluster = RedisCluster::start(3, 0).unwrap();
    let url = url_of_user(&cluster.url());
    let rights = ["+cluster|slots".to_owned(), "+asking".to_owned()];
    check_each_right_is_needed(&cluster.nodes, &rights, async || {
        let health = run_every_operation(&url).await?;
        acquire_during_migration(&cluster, &url).await?;
        Ok(health)
    })
    .await;
}

/// Acquires a lock whose slot migrates to another server.
async fn acquire_during_migration(
    cluster: &RedisCluster,
    url: &str,
) -> std::result::Result<(), String> {
    let store = redis(url).await.map_err(|error| error.to_string())?;
    let (lock, wanted) = (store.lock(), request("moved", LONG));
    let lease = granted(lock.try_acquire(&wanted).await, &wanted)?;
    let mut keys = Vec::new();
    let from = cluster.nodes.iter().position(|node| {
        let found = node.command(&["KEYS", "*:lock:moved"]).unwrap();
        keys.extend(found.lines().map(str::to_owned));
        !found.is_empty()
    });
    let from = from.unwrap();
    got!(lock.release(&lease).await, ReleaseOutcome::Released { .. });
    let bucket = keys[0].strip_suffix("lock:moved").unwrap();
    let (old, new) = (&cluster.nodes[from], &cluster.nodes[(from + 1) % 3]);
    let moving = SlotMigration::begin(old, new, &keys[0]);
    moving.move_keys(&[&format!("{bucket}counter")]);
    let asked = lock.try_acquire(&wanted).await;
    moving.end();
    granted(asked, &wanted).map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_need_no_more_rights() {
    let servers = RedisSentinels::start().unwrap();
    let words = documented_acl();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    for server in [&servers.primary, &servers.replica] {
        permit(server, &words);
    }
    let health = run_every_operation(&url_of_user(&servers.url())).await;
    assert_all_rights(&health.unwrap());
}

/// HELLO and AUTH need no right, even if the default user is disabled.
#[tokio::test(flavor = "multi_thread")]
async fn newer_servers_need_no_more_rights() {
    let words = documented_acl();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    for flavour in [Flavour::Installed, Flavour::Redis8, Flavour::Valkey9] {
        let server = RedisServer::start_flavour(flavour, &[]).unwrap();
        permit(&server, &words);
        permit(&server, &["ACL", "SETUSER", "default", "off"]);
        let health = run_every_operation(&url_of_user(&server.url())).await;
        assert_all_rights(&health.unwrap());
    }
}
