//! Tests that a waiter survives an outage of its store: in the library and in `distlock run`, on
//! each store, with a store that is cut off or frozen, for a short and for a long time. Afterwards
//! the store queue has no entry of a waiter.

use std::{net::SocketAddr, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock::{Clock as _, Guard, Renew, Store, SystemClock};
use distlock_harness::{
    Direction, FaultProxy, eventually_async,
    servers::{
        mysql::{MySqlServer, Product},
        postgres::PostgresServer,
        redis::RedisServer,
        zookeeper::ZooKeeper,
    },
};
use sqlx::{Connection as _, SqliteConnection};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

/// The lengths of outages.
const OUTAGES: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(8)];
/// The time for which the waiter of the library waits.
const WAIT: Duration = Duration::from_secs(60);
/// The deadline of each step that has no reason to take long, on a machine that is busy with other
/// tests.
const SOON: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
enum Outage {
    /// Connections break, and new ones are closed at once.
    Refused,
    /// Connections stay open, and no data arrives until the end.
    Frozen,
}

/// A server that keeps a queue of waiters.
trait KeepsQueue {
    /// The option of a URL that has the reaper run every quarter of a second.
    const REAP_OFTEN: Option<&str>;

    /// Kills the server, and starts it again with its data.
    fn restart(&mut self) -> Result<()>;

    /// The number of entries in all queues.
    fn count_entries(&self) -> Result<usize>;
}

impl KeepsQueue for RedisServer {
    const REAP_OFTEN: Option<&str> = None;

    fn restart(&mut self) -> Result<()> {
        Self::restart(self)
    }

    fn count_entries(&self) -> Result<usize> {
        // The key of a dead waiter stays for a minute at most, so only its expiry is checked.
        for key in self.command(&["KEYS", "*:p:*"])?.lines() {
            let left: i64 = self.command(&["PTTL", key])?.parse()?;
            ensure!(left <= 60_000 && left != -1, "{key} stays for {left} ms");
        }
        let lines = self.command(&["KEYS", "*:q:*"])?;
        let kept = lines.lines().map(|line| self.command(&["GET", line]));
        let kept = kept.collect::<Result<String>>()?;
        Ok(kept.matches(';').count())
    }
}

impl KeepsQueue for PostgresServer {
    const REAP_OFTEN: Option<&str> = Some("reap_after=1s");

    fn restart(&mut self) -> Result<()> {
        Self::restart(self)
    }

    fn count_entries(&self) -> Result<usize> {
        Ok(self.sql(COUNT_ENTRIES)?.trim().parse()?)
    }
}

impl KeepsQueue for MySqlServer {
    const REAP_OFTEN: Option<&str> = Some("reap_after=1s");

    fn restart(&mut self) -> Result<()> {
        Self::restart(self)
    }

    fn count_entries(&self) -> Result<usize> {
        Ok(self.sql(COUNT_ENTRIES)?.trim().parse()?)
    }
}

const COUNT_ENTRIES: &str = "SELECT COUNT(*) FROM distributed_line";

#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_outages_on_redis() -> Result<()> {
    let mut server = RedisServer::start()?;
    check_outages(server.address(), |address| server.url_at(address)).await?;
    let url = server.url();
    check_no_entry_stays(&mut server, &url).await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_outages_on_postgres() -> Result<()> {
    let mut server = PostgresServer::start()?;
    check_outages(server.address(), |address| server.url_at(address)).await?;
    let url = server.url();
    check_no_entry_stays(&mut server, &url).await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_outages_on_mariadb() -> Result<()> {
    check_mysql_product(Product::MariaDb).await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_outages_on_mysql() -> Result<()> {
    check_mysql_product(Product::MySql).await
}

/// Checks MySQL or MariaDB.
async fn check_mysql_product(product: Product) -> Result<()> {
    let mut server = MySqlServer::start(product)?;
    check_outages(server.address(), |address| server.url_at(address)).await?;
    let url = server.url();
    check_no_entry_stays(&mut server, &url).await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_outages_on_zookeeper() -> Result<()> {
    let server = ZooKeeper::start()?;
    let url = |address| format!("zookeeper://{}/distlock", server.reached_at(&[address]));
    check_outages(server.address(0), url).await
}

/// Another process begins a write transaction, is stopped, and continues after a while. The lease
/// expires meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_outages_on_sqlite() -> Result<()> {
    for outage in OUTAGES {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("locks.db");
        let url = format!("sqlite:{}", file.display());
        let lease = Duration::from_secs(5);
        let waiters = Waiters::start(&url, &url, lease, Renew::Manual).await?;
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
        let mut writer = SqliteConnection::connect_with(&options).await?;
        sqlx::raw_sql("BEGIN EXCLUSIVE")
            .execute(&mut writer)
            .await?;
        for guard in &waiters.held {
            guard.lost().await;
        }
        SystemClock.sleep(outage).await;
        sqlx::raw_sql("ROLLBACK").execute(&mut writer).await?;
        waiters.assert_all_acquire("writer stopped", outage).await?;
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("locks.db");
    check_dead_waiters(&format!("sqlite:{}", file.display())).await?;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let mut reader = SqliteConnection::connect_with(&options).await?;
    let count = sqlx::query_scalar(COUNT_ENTRIES);
    let left: i64 = count.fetch_one(&mut reader).await?;
    ensure!(left == 0, "{left} count_entries are left");
    Ok(())
}

/// Checks all outages of one server at the same time, each behind a proxy of its own.
async fn check_outages(server: SocketAddr, url: impl Fn(SocketAddr) -> String) -> Result<()> {
    let mut cells = Vec::new();
    for kind in [Outage::Refused, Outage::Frozen] {
        for outage in OUTAGES {
            let proxy = FaultProxy::start(server).await?;
            let (direct, cut_off) = (url(server), url(proxy.address()));
            cells.push(async move {
                let mut waiters = Waiters::start(&direct, &cut_off, WAIT, Renew::Auto).await?;
                // No server listens on this port.
                let nowhere = SocketAddr::from(([127, 0, 0, 1], 9));
                match kind {
                    Outage::Refused => proxy.redirect(nowhere),
                    Outage::Frozen => {
                        proxy.stop(Direction::ToServer);
                        proxy.stop(Direction::ToClient);
                    }
                }
                waiters.release_held().await?;
                SystemClock.sleep(outage).await;
                match kind {
                    Outage::Refused => proxy.redirect(server),
                    Outage::Frozen => proxy.pass(),
                }
                waiters
                    .assert_all_acquire(&format!("{kind:?}"), outage)
                    .await
            });
        }
    }
    let direct = url(server);
    tokio::try_join!(
        futures_util::future::try_join_all(cells),
        check_dead_waiters(&direct)
    )?;
    Ok(())
}

/// Checks that no entry is left of three kinds of waiters: those that survived outages, those that
/// were killed or stopped, and those that waited during a restart of the server.
async fn check_no_entry_stays<S: KeepsQueue>(server: &mut S, url: &str) -> Result<()> {
    // A frozen connection may deliver a request late. The entry of that request has no contender
    // that removes it, so the reaper removes it after its expiry.
    let mut _reaping = None;
    if let Some(option) = S::REAP_OFTEN {
        let separator = if url.contains('?') { '&' } else { '?' };
        _reaping = Some(distlock::open(&format!("{url}{separator}{option}")).await?);
    }
    wait_for_entries(server, 0).await?;
    let mut waiters = Waiters::start(url, url, WAIT, Renew::Auto).await?;
    wait_for_entries(server, 2).await?;
    server.restart()?;
    waiters.release_held().await?;
    waiters
        .assert_all_acquire("restarted", Duration::ZERO)
        .await?;
    wait_for_entries(server, 0).await
}

/// Waits until the server has this many entries.
async fn wait_for_entries(server: &impl KeepsQueue, wanted: usize) -> Result<()> {
    let what = format!("{wanted} count_entries in lines");
    eventually_async(&what, SOON, || async {
        (server.count_entries().ok()? == wanted).then_some(())
    })
    .await
}

/// Checks three waiting processes. The first is killed and the second is stopped. The third gets
/// the lock as soon as the entries of both have expired.
async fn check_dead_waiters(url: &str) -> Result<()> {
    let name = format!("line-{:x}", fastrand::u64(..));
    let holding = distlock::open(url).await?.locker();
    let held = holding.lock(&name).ttl(WAIT).acquire().await?;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(start_waiting_run(url, &name).await?);
    }
    waiting[0].kill().await?;
    let second = waiting[1].id().context("it runs")?;
    let second = rustix::process::Pid::from_raw(second.cast_signed()).context("its id")?;
    rustix::process::kill_process(second, rustix::process::Signal::STOP)?;
    ensure!(held.release().await.is_clean(), "the holder lost it");
    let begun = SystemClock.now();
    let third = waiting.pop().context("the third")?;
    let done = timeout(SOON, third.wait_with_output()).await;
    let done = done.context("the third waits on behind dead ones")??;
    ensure!(done.status.success(), "{done:?}");
    let took = SystemClock.now().since(begun);
    #[expect(
        clippy::print_stderr,
        reason = "the measured times are the result that people ask for"
    )]
    {
        eprintln!("behind a killed and a stopped waiter: {took:.1?}");
    }
    Ok(())
}

/// Starts `distlock run`, and returns when that process waits for the lock.
async fn start_waiting_run(url: &str, name: &str) -> Result<tokio::process::Child> {
    let mut run = Command::new(env!("CARGO_BIN_EXE_distlock"))
        .args(["run", name, "--", "echo", "held"])
        // The URL holds a password, and every user can read arguments, so it is passed as a
        // variable.
        .env("DISTLOCK_BACKEND", url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut told = BufReader::new(run.stderr.take().context("its stderr")?).lines();
    let line = timeout(SOON, told.next_line()).await??;
    let line = line.context("it says that it waits")?;
    ensure!(line.contains("waiting for"), "{line}");
    // The output is read to its end. Otherwise a full pipe would block the process.
    tokio::spawn(async move { while let Ok(Some(_)) = told.next_line().await {} });
    Ok(run)
}

/// A waiter of the library and a waiter of the tool. Their locks are held until the outage.
struct Waiters {
    held: Vec<Guard>,
    store: Store,
    waiting: tokio::task::JoinHandle<distlock::Result<Guard>>,
    run: tokio::process::Child,
}

impl Waiters {
    /// Takes the locks through one URL, and starts the waiters on the other.
    async fn start(direct: &str, waited: &str, lease: Duration, renew: Renew) -> Result<Self> {
        let names = [(); 2].map(|()| format!("outage-{:x}", fastrand::u64(..)));
        let holding = distlock::open(direct).await?.locker();
        let mut held = Vec::new();
        for name in &names {
            held.push(holding.lock(name).ttl(lease).renew(renew).acquire().await?);
        }
        let store = distlock::open(waited).await?;
        store.ready().await?;
        let waiting = tokio::spawn(store.locker().lock(&names[0]).wait(WAIT).acquire());
        let run = start_waiting_run(waited, &names[1]).await?;
        Ok(Self {
            held,
            store,
            waiting,
            run,
        })
    }

    async fn release_held(&mut self) -> Result<()> {
        for guard in self.held.drain(..) {
            ensure!(guard.release().await.is_clean(), "the holder lost it");
        }
        Ok(())
    }

    /// Checks that both waiters get their locks after the store has recovered.
    async fn assert_all_acquire(self, kind: &str, outage: Duration) -> Result<()> {
        let back = SystemClock.now();
        let what = format!("{kind} for {outage:?}");
        let guard = timeout(SOON, self.waiting).await;
        let guard = guard.with_context(|| format!("{what}: the library waits on"))??;
        let guard = guard.with_context(|| format!("{what}: the library"))?;
        let library = SystemClock.now().since(back);
        let done = timeout(SOON, self.run.wait_with_output()).await;
        let done = done.with_context(|| format!("{what}: run waits on"))??;
        ensure!(
            done.status.success() && done.stdout == b"held\n",
            "{what}: run: {done:?}"
        );
        let run = SystemClock.now().since(back);
        #[expect(
            clippy::print_stderr,
            reason = "the measured times are the result that people ask for"
        )]
        {
            eprintln!("{what}: library {library:.1?} after the end, run {run:.1?}");
        }
        drop(guard.release().await);
        self.store.close().await;
        Ok(())
    }
}
