//! Tests that every call ends within its documented bound while its store hangs. Every time-out
//! option of the store has its maximum, because a bound must not depend on these options.

use std::{future::Future, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock::{Clock as _, Locker, Store, SystemClock};
use distlock_harness::{
    Direction, FaultProxy,
    servers::{
        mysql::{MySqlServer, Product},
        postgres::PostgresServer,
        redis::RedisServer,
        zookeeper::ZooKeeper,
    },
};
use sqlx::{Connection as _, SqliteConnection};

/// Additional time for a machine that is busy with other tests.
const SLACK: Duration = Duration::from_millis(1500);
/// The bound of `close`, whatever the store does.
const CLOSING: Duration = Duration::from_secs(10);
/// A TTL so long that no lease ends while the store hangs.
const LONG: Duration = Duration::from_secs(600);
/// The shortest and the longest `connect_timeout`.
const CONNECTING: [&str; 2] = ["100ms", "60s"];

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_within_their_bound_on_postgres() -> Result<()> {
    let server = PostgresServer::start()?;
    let proxy = FaultProxy::start(server.address()).await?;
    let at = server.url_at(proxy.address());
    check_hanging_server(&proxy, &at, "statement_timeout=60s").await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_within_their_bound_on_mariadb() -> Result<()> {
    check_mysql_product(Product::MariaDb).await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_within_their_bound_on_mysql() -> Result<()> {
    check_mysql_product(Product::MySql).await
}

/// Checks the calls on MySQL or MariaDB.
async fn check_mysql_product(product: Product) -> Result<()> {
    let server = MySqlServer::start(product)?;
    let proxy = FaultProxy::start(server.address()).await?;
    let at = format!("mysql://{}/distlock", server.account_at(proxy.address()));
    check_hanging_server(&proxy, &at, "ssl-mode=DISABLED&statement_timeout=60s").await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_within_their_bound_on_redis() -> Result<()> {
    let server = RedisServer::start()?;
    let proxy = FaultProxy::start(server.address()).await?;
    let at = server.url_at(proxy.address());
    check_hanging_server(&proxy, &at, "request_timeout=60s").await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_within_their_bound_on_zookeeper() -> Result<()> {
    let server = ZooKeeper::start()?;
    let proxy = FaultProxy::start(server.address(0)).await?;
    let at = format!(
        "zookeeper://{}/distlock",
        server.reached_at(&[proxy.address()])
    );
    check_hanging_server(
        &proxy,
        &at,
        "session_timeout=1h&reap_after=2h&request_timeout=5s",
    )
    .await
}

/// Another process has begun a write transaction, and the transaction stays open.
#[tokio::test(flavor = "multi_thread")]
async fn calls_end_within_their_bound_on_sqlite() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("locks.db");
    let url = format!("sqlite:{}?busy_timeout=1s", file.display());
    let stores = [OpenStore::open(&url).await?, OpenStore::open(&url).await?];
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let mut other_writer = SqliteConnection::connect_with(&options).await?;
    sqlx::raw_sql("BEGIN EXCLUSIVE")
        .execute(&mut other_writer)
        .await?;
    Box::pin(check_all_calls(stores)).await
}

/// Checks the calls of a client whose server accepts data and sends no answer.
async fn check_hanging_server(proxy: &FaultProxy, at: &str, options: &str) -> Result<()> {
    let url = format!("{at}?{options}&connect_timeout=60s");
    let stores = [OpenStore::open(&url).await?, OpenStore::open(&url).await?];
    proxy.stop(Direction::ToServer);
    proxy.stop(Direction::ToClient);
    let opening = CONNECTING.map(|limit| {
        let url = format!("{at}?{options}&connect_timeout={limit}");
        async move {
            let limit = if limit == "60s" { 60_000 } else { 100 };
            let opened =
                ends_within("open", Duration::from_millis(limit), distlock::open(url)).await?;
            ensure!(opened.is_err(), "it opened");
            Ok(())
        }
    });
    let [briefly, long] = opening;
    tokio::try_join!(Box::pin(check_all_calls(stores)), briefly, long)?;
    Ok(())
}

/// An open store with a few held locks.
struct OpenStore {
    store: Store,
    locker: Locker,
    guards: Vec<distlock::Guard>,
}

impl OpenStore {
    async fn open(url: &str) -> Result<Self> {
        let store = distlock::open(url).await?;
        store.ready().await?;
        let locker = store.locker();
        let mut guards = Vec::new();
        for _ in 0..5 {
            let name = format!("held-{:x}", fastrand::u64(..));
            guards.push(locker.lock(name).ttl(LONG).acquire().await?);
        }
        Ok(Self {
            store,
            locker,
            guards,
        })
    }

    fn take_guard(&mut self) -> Result<distlock::Guard> {
        self.guards.pop().context("a guard is left")
    }
}

/// Checks every kind of call on the first store, and `close` with calls in flight on the second
/// store.
async fn check_all_calls(stores: [OpenStore; 2]) -> Result<()> {
    let [mut calling, mut closing] = stores;
    let locker = &calling.locker;
    let seconds = Duration::from_secs;
    let (extended, released) = (calling.guards.pop(), calling.guards.pop());
    let (extended, released) = (extended.context("one")?, released.context("another")?);
    let (wait, token) = (seconds(1), extended.token());
    let calls = async {
        tokio::join!(
            ends_within(
                "acquire",
                wait + seconds(5),
                locker.lock("a").wait(wait).acquire()
            ),
            ends_within(
                "acquire at once",
                seconds(5),
                locker.lock("b").wait(Duration::ZERO).acquire()
            ),
            ends_within("extend", seconds(20), extended.extend(LONG)),
            ends_within("release", seconds(20), released.release()),
            ends_within("inspect", seconds(10), locker.inspect("c")),
            ends_within("list", seconds(10), locker.list("")),
            ends_within(
                "force_release",
                seconds(10),
                locker.force_release("d", token)
            ),
            ends_within("health", seconds(10), locker.health()),
        )
    };
    let close = async {
        // During its `close`, the store has a dropped guard, a waiting caller, an abandoned caller,
        // and a caller whose future nobody polls.
        drop(closing.take_guard()?);
        let locker = closing.locker.clone();
        let waits = tokio::spawn(locker.lock("e").wait_forever().acquire());
        let left = tokio::spawn(locker.lock("f").wait_forever().acquire());
        SystemClock.sleep(Duration::from_millis(100)).await;
        left.abort();
        let mut idle = Box::pin(locker.lock("g").wait_forever().acquire());
        let _ = futures_util::poll!(&mut idle);
        ends_within("close", CLOSING, closing.store.close()).await?;
        ensure!(ends_within("a waiter", seconds(1), waits).await??.is_err());
        // A second `close` must end within the same time.
        ends_within("close again", CLOSING, closing.store.close()).await?;
        Ok::<_, anyhow::Error>(())
    };
    let (calls, close) = tokio::join!(calls, close);
    close?;
    calls.0?.err().context("it was granted")?;
    calls.1?.err().context("it was granted")?;
    // On ZooKeeper the lease lasts as long as the session, so a longer lease needs no request and
    // succeeds.
    drop(calls.2?);
    ensure!(!calls.3?.is_clean(), "it was released");
    for ended in [
        calls.4.map(drop),
        calls.5.map(drop),
        calls.6.map(drop),
        calls.7.map(drop),
    ] {
        ended?;
    }
    // Now the calls are checked again, with held guards and after abandoned calls.
    drop(calling.take_guard()?);
    ends_within("close after calls", CLOSING, calling.store.close()).await
}

/// Runs a call and checks that it ends within its documented bound. Returns the result of the call.
async fn ends_within<T>(what: &str, limit: Duration, call: impl Future<Output = T>) -> Result<T> {
    let begun = SystemClock.now();
    let answer = tokio::time::timeout(limit + Duration::from_secs(60), call).await;
    let took = SystemClock.now().since(begun);
    #[expect(
        clippy::print_stderr,
        reason = "what is seen is told where a test fails"
    )]
    {
        eprintln!("{what}: {took:.1?} of {limit:.1?}");
    }
    ensure!(
        took <= limit + SLACK,
        "{what} took {took:?} instead of {limit:?}"
    );
    answer.with_context(|| format!("{what} never ended"))
}
