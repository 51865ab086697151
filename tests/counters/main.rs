//! Tests of unread counters over real servers, with processes that are killed and connections that
//! break. A naive way of counting runs too, and its totals must be wrong in the end.

mod naive;
mod ways;
mod worker;

use std::{
    env,
    net::SocketAddr,
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use distlock::{Clock as _, ErrorKind, SystemClock};
use distlock_harness::{
    FaultProxy, Process, Signal, eventually,
    servers::{
        mysql::{MySqlServer, Product},
        postgres::PostgresServer,
        redis::RedisServer,
        zookeeper::ZooKeeper,
    },
};
use distlock_recipes::unread::{Counter, MOST, SqlCounters, Unread, UnreadCounters};
use fastrand::Rng;
use libtest_mimic::{Arguments, Trial};
use tokio::{runtime::Runtime, time::timeout};

use crate::ways::{CONVERSATIONS, USERS, Way, ways};

/// The number of processes that change counters at the same time.
const PROCESSES: usize = 8;
/// The number of processes that are killed.
const KILLS: usize = 40;
/// The deadline of each step that has no reason to take long.
const SOON: Duration = Duration::from_secs(30);
/// The time between two kills.
const LIFE: Duration = Duration::from_millis(100);

fn main() -> Result<ExitCode> {
    if let Ok(url) = env::var(worker::URL) {
        return worker::run(&url).map(|()| ExitCode::SUCCESS);
    }
    let trials = vec![
        trial("totals_stay_right_after_kills_on_sqlite", || {
            let folder = tempfile::tempdir()?;
            let url = format!("sqlite:{}", folder.path().join("counters.db").display());
            play(&url, None)
        }),
        trial("totals_stay_right_after_kills_on_redis", || {
            let server = RedisServer::start()?;
            play(&server.url(), Some(server.address()))?;
            check_wrong_type(&server)
        }),
        trial("totals_stay_right_after_kills_on_postgres", || {
            let server = PostgresServer::start()?;
            play(&server.url(), Some(server.address()))
        }),
        trial("totals_stay_right_after_kills_on_mariadb", || {
            let server = MySqlServer::start(Product::MariaDb)?;
            play(&server.url(), Some(server.address()))
        }),
        // The default of MariaDB from 11.6.
        trial(
            "totals_stay_right_on_mariadb_with_snapshot_isolation",
            || {
                let settings = ["innodb-snapshot-isolation=ON"];
                let server = MySqlServer::with(Product::MariaDb, &settings)?;
                play(&server.url(), Some(server.address()))
            },
        ),
        trial("totals_stay_right_after_kills_on_mysql", || {
            let server = MySqlServer::start(Product::MySql)?;
            play(&server.url(), Some(server.address()))
        }),
        trial("an_ended_session_is_a_passing_failure_on_postgres", || {
            let server = PostgresServer::start()?;
            check_ended_session(
                &server.url(),
                |user| server.hold_open(&lock_total(user)),
                || {
                    server.sql(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                         WHERE wait_event_type = 'Lock'",
                    )
                },
            )
        }),
        trial("an_ended_session_is_a_passing_failure_on_mariadb", || {
            check_ended_session_on_mysql(Product::MariaDb)
        }),
        trial("an_ended_session_is_a_passing_failure_on_mysql", || {
            check_ended_session_on_mysql(Product::MySql)
        }),
        trial("totals_stay_right_after_kills_on_zookeeper", || {
            let server = ZooKeeper::start()?;
            play(&format!("zookeeper://{}", server.servers()), None)
        }),
    ];
    Ok(libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}

fn trial(name: &str, play: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, || play().map_err(|error| format!("{error:#}").into()))
}

/// Runs all tests over one server. `proxied` is the address of the server; without it, connections
/// are not broken.
fn play(url: &str, proxied: Option<SocketAddr>) -> Result<()> {
    let runtime = Runtime::new()?;
    let ways = runtime.block_on(ways(url))?;
    runtime.block_on(check_same_results(&ways))?;
    runtime.block_on(check_bad_input(&ways))?;
    runtime.block_on(check_kills_and_broken_connections(url, proxied, &ways))
}

fn counter(user: &str, conversation: &str) -> Counter {
    Counter::new(user, conversation).unwrap()
}

/// Makes the same random changes in every way, each on a user of its own. The answers must be
/// equal.
async fn check_same_results(ways: &[Way]) -> Result<()> {
    let seed = fastrand::u64(..);
    let mut answers = Vec::new();
    for way in ways {
        let mut rng = Rng::with_seed(seed);
        let user = format!("same-{}", way.name);
        let mut said = Vec::new();
        for _ in 0..60 {
            let conversation = CONVERSATIONS[rng.usize(..CONVERSATIONS.len())];
            let counter = counter(&user, conversation);
            said.push(match rng.u8(..4) {
                0 => way
                    .counters
                    .clear(&counter)
                    .await
                    .map_err(|error| error.kind()),
                1 => way
                    .counters
                    .read(&counter)
                    .await
                    .map_err(|error| error.kind()),
                _ => {
                    let by = rng.i64(1..9);
                    way.counters
                        .increment(&counter, by)
                        .await
                        .map_err(|error| error.kind())
                }
            });
        }
        answers.push((way.name, said));
    }
    let (first, expected) = &answers[0];
    for (name, said) in &answers {
        ensure!(
            said == expected,
            "seed {seed}: {name} says {said:?}, {first} {expected:?}"
        );
    }
    Ok(())
}

async fn check_bad_input(ways: &[Way]) -> Result<()> {
    for way in ways.iter().filter(|way| !way.is_naive) {
        let (user, counters) = (format!("bad-{}", way.name), &way.counters);
        let work = counter(&user, "work");
        let most = i64::try_from(MOST)?;
        let unknown = counters.clear(&work).await.unwrap_err();
        ensure!(unknown.to_string().contains(&user), "{unknown}");
        counters.increment(&work, 2).await?;
        for (amount, kind) in [
            (0, ErrorKind::InvalidArgument),
            (-1, ErrorKind::InvalidArgument),
            (most - 1, ErrorKind::LimitExceeded),
            (i64::MAX, ErrorKind::LimitExceeded),
        ] {
            let error = counters.increment(&work, amount).await.unwrap_err();
            ensure!(error.kind() == kind, "{}: {amount}: {error}", way.name);
        }
        let unread = counters.read(&work).await?;
        let two = Unread {
            conversation: 2,
            total: 2,
        };
        ensure!(unread == two, "{}: {unread:?}", way.name);
        let most = counters.increment(&work, most - 2).await?;
        ensure!(most.total == MOST, "{}: {most:?}", way.name);
    }
    Ok(())
}

/// Eight processes change counters. One after the other is killed and replaced, while connections
/// break and answers get lost.
async fn check_kills_and_broken_connections(
    url: &str,
    proxied: Option<SocketAddr>,
    ways: &[Way],
) -> Result<()> {
    let proxy = match proxied {
        Some(server) => Some(FaultProxy::start(server).await?),
        None => None,
    };
    let theirs = match (&proxy, proxied) {
        (Some(proxy), Some(server)) => {
            url.replace(&server.to_string(), &proxy.address().to_string())
        }
        _ => url.to_owned(),
    };
    ensure!(
        proxied.is_none() || theirs != url,
        "{url} does not name {proxied:?}"
    );
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(start(&theirs)?);
    }
    // On a busy machine, a process may need longer to start than it is left to live.
    timeout(SOON, until_all_are_counted(ways)).await??;
    for kill in 0..KILLS {
        SystemClock.sleep(LIFE).await;
        if let Some(proxy) = &proxy {
            match kill % 3 {
                0 => proxy.reset(),
                1 => proxy.swallow_one_reply(),
                _ => proxy.pass(),
            }
        }
        let victim = fastrand::usize(..PROCESSES);
        let running = processes[victim].is_running()?;
        ensure!(
            running,
            "a process ended by itself: {}",
            processes[victim].output()
        );
        processes[victim].signal(Signal::KILL)?;
        processes[victim] = start(&theirs)?;
    }
    drop(processes);
    let mut wrong = Vec::new();
    for way in ways {
        for user in 0..USERS {
            let user = way.user(user);
            match check_total(&*way.counters, &user).await {
                Ok(seen) if way.is_naive => ensure!(seen > 0, "nothing was counted for {user}"),
                Ok(seen) => {
                    ensure!(seen > 0, "nothing was counted for {user}");
                    // The counters can still be changed afterwards.
                    way.counters
                        .increment(&counter(&user, CONVERSATIONS[0]), 1)
                        .await?;
                    way.counters
                        .clear(&counter(&user, CONVERSATIONS[0]))
                        .await?;
                }
                Err(error) => wrong.push((way.is_naive, format!("{}: {error:#}", way.name))),
            }
        }
    }
    let (naive, ours): (Vec<_>, Vec<_>) = wrong.into_iter().partition(|(naive, _)| *naive);
    ensure!(ours.is_empty(), "{ours:?}");
    ensure!(
        !naive.is_empty(),
        "the naive way came through it, so this shows nothing"
    );
    Ok(())
}

/// Waits until every way has counted for every user.
async fn until_all_are_counted(ways: &[Way]) -> Result<()> {
    for way in ways {
        for user in (0..USERS).map(|user| way.user(user)) {
            while conversations(&*way.counters, &user).await?.is_empty() {
                SystemClock.sleep(LIFE).await;
            }
        }
    }
    Ok(())
}

/// Checks that the total is the sum of the conversations. Returns the number of conversations that
/// exist.
async fn check_total(counters: &dyn UnreadCounters, user: &str) -> Result<usize> {
    let seen = conversations(counters, user).await?;
    let sum: u64 = seen.iter().map(|unread| unread.conversation).sum();
    ensure!(
        seen.iter().all(|unread| unread.total == sum),
        "{user} has {seen:?}"
    );
    Ok(seen.len())
}

/// The user's conversations that exist.
async fn conversations(counters: &dyn UnreadCounters, user: &str) -> Result<Vec<Unread>> {
    let mut seen = Vec::new();
    for conversation in CONVERSATIONS {
        match counters.read(&counter(user, conversation)).await {
            Ok(unread) => seen.push(unread),
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(seen)
}

/// The statement that locks the row of a user's total.
fn lock_total(user: &str) -> String {
    format!("SELECT unread FROM distributed_unread_total WHERE account = '{user}' FOR UPDATE")
}

fn check_ended_session_on_mysql(product: Product) -> Result<()> {
    let server = MySqlServer::start(product)?;
    check_ended_session(
        &server.url(),
        |user| server.hold_open(&format!("BEGIN; {}", lock_total(user))),
        || {
            let waits = "SELECT id FROM information_schema.processlist WHERE info LIKE \
                         '%distributed_unread_total%' AND info NOT LIKE '%processlist%'";
            let waits = server.sql(waits)?;
            for id in waits.lines() {
                server.sql(&format!("KILL {id}"))?;
            }
            Ok(waits)
        },
    )
}

/// The server ends the session of a change that waits for a row. The change was not made, and the
/// caller may make it again. `end_waiting` ends all sessions that wait, and returns their list.
fn check_ended_session(
    url: &str,
    hold: impl FnOnce(&str) -> Result<Process>,
    end_waiting: impl Fn() -> Result<String>,
) -> Result<()> {
    let runtime = Runtime::new()?;
    let counters = Arc::new(runtime.block_on(SqlCounters::open(url))?);
    let work = counter("alice", "work");
    runtime.block_on(counters.increment(&work, 1))?;
    let holding = hold("alice")?;
    let change = runtime.spawn({
        let (counters, work) = (Arc::clone(&counters), work.clone());
        async move { counters.increment(&work, 1).await }
    });
    eventually("the session of the change was ended", SOON, || {
        change.is_finished() || end_waiting().is_ok_and(|ended| !ended.is_empty())
    })?;
    let error = runtime.block_on(change)?.unwrap_err();
    ensure!(
        error.kind() == ErrorKind::Unavailable && error.is_retryable(),
        "{:?}: {error}",
        error.kind()
    );
    drop(holding);
    let unread = runtime.block_on(async {
        timeout(SOON, async {
            loop {
                match counters.increment(&work, 1).await {
                    Err(error) if error.is_retryable() => {}
                    changed => return changed,
                }
            }
        })
        .await
    })??;
    ensure!(
        unread.total == 2,
        "the change that failed counted: {unread:?}"
    );
    Ok(())
}

fn start(url: &str) -> Result<Process> {
    let mut command = Command::new(env::current_exe()?);
    Process::spawn(command.env(worker::URL, url)).context("start a worker")
}

/// A key of another Redis type is in the place of a counter. Each call must fail and change
/// nothing.
fn check_wrong_type(server: &RedisServer) -> Result<()> {
    let runtime = Runtime::new()?;
    let ways = runtime.block_on(ways(&server.url()))?;
    for way in ways
        .iter()
        .filter(|way| ["watch", "script"].contains(&way.name))
    {
        for (at, key) in ["of:work", "total"].into_iter().enumerate() {
            let user = format!("wrong-{}-{at}", way.name);
            let work = counter(&user, "work");
            runtime.block_on(way.counters.increment(&work, 3))?;
            let key = format!("distlock:unread:{{{user}}}:{key}");
            server.command(&["DEL", &key])?;
            server.command(&["RPUSH", &key, "a", "list"])?;
            let changes = runtime.block_on(async {
                [
                    way.counters.increment(&work, 1).await,
                    way.counters.clear(&work).await,
                    way.counters.read(&work).await,
                ]
            });
            for change in changes {
                let error = change.unwrap_err();
                ensure!(error.kind() == ErrorKind::Corrupt, "{error}");
                ensure!(error.to_string().contains(&key), "{error}");
                ensure!(error.to_string().contains("list"), "{error}");
            }
            let other = ["total", "of:work"][at];
            let other = format!("distlock:unread:{{{user}}}:{other}");
            ensure!(
                server.command(&["GET", &other])? == "3",
                "half of a change was made"
            );
        }
    }
    Ok(())
}
