//! Tests that a waiter survives an outage of its store: in the library and in `distlock run`, on
//! each store, with a store that is cut off or frozen, for a short and for a long time. Afterwards
//! the store queue has no entry of a waiter. A command that ends during a short outage frees its
//! lock after it.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use distlock::{
    Clock as _, ErrorKind, Expect, Guard, LockName, RecordKey, Renew, Store, SystemClock,
};
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
    task::JoinSet,
    time::timeout,
};

/// The lengths of outages.
const OUTAGES: [Duration; 2] = [Duration::from_millis(1500), Duration::from_secs(8)];
/// The time for which the waiter of the library waits.
const WAIT: Duration = Duration::from_secs(60);
/// The time for which waiters wait, and holders hold, while stores are opened.
const LONG: Duration = Duration::from_secs(600);
/// The deadline of each step that has no reason to take long, on a machine that is busy with other
/// tests.
const SOON: Duration = Duration::from_secs(30);
/// The number of attempts is counted this long, after the pauses have grown for a while.
const MEASURED: Duration = Duration::from_secs(10);
const SETTLING: Duration = Duration::from_secs(4);
/// The number of stores, and of waiters of each, whose attempts are counted.
const KINDS: [(usize, usize); 3] = [(1, 1), (1, 5), (63, 1)];
/// The longest time in which a caller that does not wait learns that the server is away.
const PROMPT: Duration = Duration::from_millis(1500);
/// The longest time from the return of a server to a grant, and additional time for a machine that
/// is busy with other tests.
const RETURNED: Duration = Duration::from_millis(2000 + 1500);

/// The longest time for which the queue entry of a dead process blocks the queue.
const DEAD_ENTRY: Duration = Duration::from_secs(4);

/// The deadline for the end of the tool after a short outage. The pause between two releases is at
/// most half a second.
const SOON_AFTER: Duration = Duration::from_secs(4);
/// No server listens on this port.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

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
        for key in self.command(&["KEYS", "*}:queue-entry:*"])?.lines() {
            let left: i64 = self.command(&["PTTL", key])?.parse()?;
            ensure!(left <= 60_000 && left != -1, "{key} stays for {left} ms");
        }
        let lines = self.command(&["KEYS", "*}:queue:*"])?;
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

const COUNT_ENTRIES: &str = "SELECT COUNT(*) FROM distributed_queue";

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

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ends_during_an_outage_frees_its_lock_on_redis() -> Result<()> {
    let server = RedisServer::start()?;
    check_releases(server.address(), |address| server.url_at(address)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ends_during_an_outage_frees_its_lock_on_postgres() -> Result<()> {
    let server = PostgresServer::start()?;
    check_releases(server.address(), |address| server.url_at(address)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ends_during_an_outage_frees_its_lock_on_mariadb() -> Result<()> {
    let server = MySqlServer::start(Product::MariaDb)?;
    check_releases(server.address(), |address| server.url_at(address)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ends_during_an_outage_frees_its_lock_on_mysql() -> Result<()> {
    let server = MySqlServer::start(Product::MySql)?;
    check_releases(server.address(), |address| server.url_at(address)).await
}

/// Checks the locks of commands that end while their store is away: for a second, and for longer
/// than the tool waits.
async fn check_releases(server: SocketAddr, url: impl Fn(SocketAddr) -> String) -> Result<()> {
    let (proxy, direct) = (FaultProxy::start(server).await?, url(server));
    let cut_off = url(proxy.address());
    let locker = distlock::connect(&*direct).await?;
    for (name, line) in [
        ("job", &["run", "job"][..]),
        ("once", &["run", "once", "--every", "1h"]),
        ("election/led", &["elect", "led"]),
    ] {
        let mut call = Call::start(line, &cut_off).await?;
        proxy.redirect(NOWHERE);
        call.end()?;
        SystemClock.sleep(Duration::from_secs(1)).await;
        proxy.redirect(server);
        let back = SystemClock.now();
        let (code, told) = call.wait().await?;
        ensure!(
            code == Some(0) && !told.contains("warning"),
            "{line:?}: {code:?}: {told}"
        );
        // The tool has ended, so nobody releases the lock any more.
        let seen = locker.inspect(name).await?;
        ensure!(seen.held.is_none(), "{line:?}: {seen:?}: {told}");
        let took = SystemClock.now().since(back);
        ensure!(
            took <= SOON_AFTER,
            "{line:?} took {took:?} after the outage"
        );
    }

    let mut call = Call::start(&["run", "stays"], &cut_off).await?;
    proxy.redirect(NOWHERE);
    let cut = SystemClock.now();
    call.end()?;
    let (code, told) = call.wait().await?;
    let took = SystemClock.now().since(cut);
    // A release takes at most 5 s, and the close after it at most 10 s.
    ensure!(
        code == Some(0) && took <= Duration::from_secs(15),
        "{code:?} {took:?}: {told}"
    );
    let left = told.split_once("\"stays\" could not be released, and stays held for about ");
    let left = left.and_then(|(_, rest)| rest.split_once("s more"));
    let (left, _) = left.with_context(|| format!("no warning: {told}"))?;
    let seen = locker.inspect("stays").await?.held.context("it is free")?;
    let really = seen
        .expires_in
        .context("the store tells no lease")?
        .as_secs_f64();
    // The store counts from the arrival of the last renewal, and the tool from its sending. The
    // tool has printed its text before this test looked.
    let difference = left.parse::<f64>()? - really;
    ensure!(
        (-2.0..=2.0).contains(&difference),
        "{left}s, really {really}s"
    );
    check_ticket_release(
        &direct,
        &cut_off,
        || proxy.redirect(NOWHERE),
        || {
            proxy.redirect(server);
        },
    )
    .await?;
    locker.close().await;
    Ok(())
}

/// Checks `distlock release` during a short outage, and during a long one.
async fn check_ticket_release(
    direct: &str,
    cut_off: &str,
    cut: impl Fn(),
    restore: impl Fn(),
) -> Result<()> {
    let locker = distlock::connect(direct).await?;
    for is_short in [true, false] {
        cut();
        let lock = locker.lock("ticket").ttl(WAIT).wait(SOON);
        let ticket = lock.acquire().await?.into_ticket().await?;
        let mut release = Command::new(env!("CARGO_BIN_EXE_distlock"));
        release.arg("release").env("DISTLOCK_BACKEND", cut_off);
        release.env("DISTLOCK_TICKET", ticket.to_string());
        let release = release.stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
        let begun = SystemClock.now();
        if is_short {
            SystemClock.sleep(Duration::from_secs(1)).await;
            restore();
        }
        let done = timeout(SOON, release.wait_with_output()).await;
        let done = done.context("release does not end")??;
        let (code, told) = (done.status.code(), String::from_utf8(done.stderr)?);
        let took = SystemClock.now().since(begun);
        let held = locker.inspect("ticket").await?.held;
        if is_short {
            ensure!(
                code == Some(0) && held.is_none(),
                "{code:?} {held:?}: {told}"
            );
        } else {
            ensure!(
                code == Some(69) && held.is_some(),
                "{code:?} {held:?}: {told}"
            );
            ensure!(
                told.contains("\"ticket\" stays held for up to 60.0s"),
                "{told}"
            );
            ensure!(took <= Duration::from_secs(15), "{took:?}");
        }
    }
    locker.close().await;
    Ok(())
}

/// A call of the tool whose command runs until its standard input ends.
struct Call {
    tool: tokio::process::Child,
    elects: bool,
}

impl Call {
    /// Starts the call, and waits until its command runs.
    async fn start(line: &[&str], url: &str) -> Result<Self> {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_distlock"))
            .args(line)
            .args([
                "--ttl",
                "60s",
                "--",
                "sh",
                "-c",
                "trap 'exit 0' TERM; echo ready; cat",
            ])
            .env("DISTLOCK_BACKEND", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let out = tool.stdout.take().context("its stdout")?;
        let ready = timeout(SOON, BufReader::new(out).lines().next_line()).await??;
        ensure!(ready.as_deref() == Some("ready"), "{line:?}: {ready:?}");
        let elects = line[0] == "elect";
        Ok(Self { tool, elects })
    }

    /// Ends the command. A candidate would campaign again, so it is asked to end itself.
    fn end(&mut self) -> Result<()> {
        if self.elects {
            let id = self.tool.id().context("it runs")?.cast_signed();
            let id = rustix::process::Pid::from_raw(id).context("its id")?;
            rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        }
        drop(self.tool.stdin.take());
        Ok(())
    }

    /// Waits for the end of the tool. Returns its code and its messages.
    async fn wait(self) -> Result<(Option<i32>, String)> {
        let done = timeout(SOON, self.tool.wait_with_output()).await;
        let done = done.context("the tool does not end")??;
        let told = String::from_utf8(done.stderr)?;
        Ok((done.status.code(), told))
    }
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
                match kind {
                    Outage::Refused => proxy.redirect(NOWHERE),
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

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_read_leaves_nothing_in_doubt_on_redis() -> Result<()> {
    let server = RedisServer::start()?;
    check_lost_reads(server.address(), |address| server.url_at(address)).await?;
    let kv = |address| format!("kv+{}", server.url_at(address));
    check_lost_reads(server.address(), kv).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_read_leaves_nothing_in_doubt_on_postgres() -> Result<()> {
    let server = PostgresServer::start()?;
    check_lost_reads(server.address(), |address| server.url_at(address)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_read_leaves_nothing_in_doubt_on_mysql() -> Result<()> {
    for product in Product::ALL {
        let server = MySqlServer::start(product)?;
        check_lost_reads(server.address(), |address| server.url_at(address)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_read_leaves_nothing_in_doubt_on_zookeeper() -> Result<()> {
    let server = ZooKeeper::start()?;
    let url = |address| format!("zookeeper://{}/reads", server.reached_at(&[address]));
    check_lost_reads(server.address(0), url).await
}

/// The requests that only read.
const READS: [&str; 5] = ["get", "get_many", "scan", "inspect", "list"];

async fn read(store: &Store, which: &str) -> distlock::Result<()> {
    let (records, lock) = (store.records(), store.backend());
    let (key, name) = (RecordKey::new("read")?, LockName::new("read")?);
    match which {
        "get" => records.get(&key).await.map(drop),
        "get_many" => records.get_many(&[key.clone(), key]).await.map(drop),
        "scan" => records.scan("r", None, 10).await.map(drop),
        "inspect" => lock.inspect(&name).await.map(drop),
        _ => lock.list("r", None, 10).await.map(drop),
    }
}

/// Cuts the connection off in the middle of every kind of read. A read changes nothing, so the
/// error never says that the outcome is unknown; it says that the store is away for now.
async fn check_lost_reads(server: SocketAddr, url: impl Fn(SocketAddr) -> String) -> Result<()> {
    let proxy = FaultProxy::start(server).await?;
    let store = distlock::open(&url(proxy.address())).await?;
    let key = RecordKey::new("read")?;
    store.records().put(&key, b"value", Expect::Absent).await?;
    let mut lost = 0;
    for which in READS {
        for _ in 0..3 {
            let before = async || read(&store, which).await.ok();
            eventually_async("it reads", SOON, before).await?;
            proxy.swallow_one_reply();
            let answer = timeout(SOON, read(&store, which)).await;
            proxy.pass();
            // A backend may have read again on another connection.
            if let Err(error) = answer.with_context(|| format!("{which} hangs"))? {
                ensure!(
                    error.kind() == ErrorKind::Unavailable && error.is_retryable(),
                    "{which}: {:?}: {error}",
                    error.kind()
                );
                lost += 1;
            }
        }
    }
    ensure!(lost > 0, "no answer was lost, so this shows nothing");
    store.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_ask_an_absent_redis_once_a_second() -> Result<()> {
    let server = RedisServer::start()?;
    let url = |address| server.url_at(address);
    check_pace(server.address(), url, &KINDS, PROMPT, async |waiters| {
        wait_for_entries(&server, waiters).await
    })
    .await?;
    check_renewals_beside_waiters(server.address(), url).await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_ask_an_absent_postgres_once_a_second() -> Result<()> {
    let server = PostgresServer::with(&["max_connections=500"])?;
    let url = |address| server.url_at(address);
    check_pace(server.address(), url, &KINDS, PROMPT, async |waiters| {
        wait_for_entries(&server, waiters).await
    })
    .await?;
    check_renewals_beside_waiters(server.address(), url).await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_ask_an_absent_mariadb_once_a_second() -> Result<()> {
    check_pace_of_mysql(Product::MariaDb).await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_ask_an_absent_mysql_once_a_second() -> Result<()> {
    check_pace_of_mysql(Product::MySql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_ask_an_absent_zookeeper_once_a_second() -> Result<()> {
    let server = ZooKeeper::start()?;
    let url = |address| format!("zookeeper://{}/distlock", server.reached_at(&[address]));
    // An operation waits for the session until its own time limit, which is 3 s.
    let prompt = PROMPT + Duration::from_secs(3);
    // Each session is a lease of its own, so each connects again for itself while it lives: several
    // stores make as many attempts.
    let kinds = [(1, 1), (1, 5)];
    check_pace(server.address(0), url, &kinds, prompt, async |_| Ok(())).await
}

async fn check_pace_of_mysql(product: Product) -> Result<()> {
    let server = MySqlServer::with(product, &["max_connections=500"])?;
    let url = |address| server.url_at(address);
    check_pace(server.address(), url, &KINDS, PROMPT, async |waiters| {
        wait_for_entries(&server, waiters).await
    })
    .await?;
    check_renewals_beside_waiters(server.address(), url).await
}

/// Checks that a lease outlives an outage of half its length. The waiters have used up the short
/// pauses between two attempts by then, but a renewal does not wait for the long ones.
async fn check_renewals_beside_waiters(
    server: SocketAddr,
    url: impl Fn(SocketAddr) -> String,
) -> Result<()> {
    let ttl = Duration::from_secs(6);
    let proxy = FaultProxy::start(server).await?;
    let holding = distlock::open(&url(server)).await?.locker();
    let store = distlock::open(&url(proxy.address())).await?;
    store.ready().await?;
    let (mut held, mut waiting) = (Vec::new(), JoinSet::new());
    for number in 0..8 {
        let name = format!("waited for {number}");
        held.push(holding.lock(&name).ttl(LONG).acquire().await?);
        waiting.spawn(store.locker().lock(&name).wait(LONG).acquire());
    }
    let renewed = store.locker().lock("renewed").ttl(ttl).acquire().await?;
    SystemClock.sleep(ttl / 2).await;
    // The last renewal was sent at most a third of the lease ago.
    proxy.refuse();
    SystemClock.sleep(ttl / 2).await;
    proxy.pass();
    ensure!(
        timeout(ttl, renewed.lost()).await.is_err(),
        "the lease was lost"
    );
    ensure!(renewed.release().await.is_clean(), "it was not held");
    waiting.shutdown().await;
    for guard in held {
        ensure!(guard.release().await.is_clean(), "the holder lost it");
    }
    Ok(())
}

/// Checks the pace at which this process tries to connect to a server that is away: with one
/// waiter, with several, and with several stores. Afterwards all waiters are served. A caller that
/// does not wait gets its error within `prompt`.
async fn check_pace(
    server: SocketAddr,
    url: impl Fn(SocketAddr) -> String,
    kinds: &[(usize, usize)],
    prompt: Duration,
    wait_for_waiters: impl AsyncFn(usize) -> Result<()>,
) -> Result<()> {
    for &(stores, waiters) in kinds {
        let proxy = FaultProxy::start(server).await?;
        let holding = distlock::open(&url(server)).await?.locker();
        let (mut held, mut opened, mut waiting) = (Vec::new(), Vec::new(), JoinSet::new());
        for _ in 0..stores {
            let store = distlock::open(&url(proxy.address())).await?;
            store.ready().await?;
            for _ in 0..waiters {
                let name = format!("pace-{:x}", fastrand::u64(..));
                held.push(holding.lock(&name).ttl(LONG).acquire().await?);
                waiting.spawn(store.locker().lock(&name).wait(LONG).acquire());
            }
            opened.push(store);
        }
        wait_for_waiters(stores * waiters).await?;
        let begun = proxy.accepted();
        proxy.refuse();
        SystemClock.sleep(SETTLING).await;
        let settled = proxy.accepted();
        SystemClock.sleep(MEASURED).await;
        let ended = proxy.accepted();
        let asked = SystemClock.now();
        let attempt = opened[0].locker().lock("free").try_acquire().await;
        let took = SystemClock.now().since(asked);
        ensure!(attempt.is_err() && took < prompt, "{took:?}: {attempt:?}");
        for guard in held {
            ensure!(guard.release().await.is_clean(), "the holder lost it");
        }
        proxy.pass();
        let back = SystemClock.now();
        let mut served = Vec::new();
        while let Some(guard) = waiting.join_next().await {
            let guard = guard?.with_context(|| format!("{stores} stores"))?;
            served.push(SystemClock.now().since(back));
            ensure!(guard.release().await.is_clean(), "the waiter lost it");
        }
        let (first, later) = (settled - begun, ended - settled);
        let (soonest, last) = (served.first(), served.last());
        let what = format!(
            "{stores} stores with {waiters} waiters: {first} attempts in {SETTLING:?}, \
             {later} in {MEASURED:?}; served within {soonest:.1?} to {last:.1?}"
        );
        #[expect(
            clippy::print_stderr,
            reason = "the measured figures are the result that people ask for"
        )]
        {
            eprintln!("{what}");
        }
        // Each pause is a second, varied by a fifth. The pauses before it take a second and a half
        // with five attempts. A caller that was not told of the pause adds an attempt.
        ensure!((3..=15).contains(&later) && first <= 15, "{what}");
        for store in opened {
            store.close().await;
        }
        // The opening of several connections for each of many stores takes its time.
        let last = if stores == 1 { last } else { soonest };
        ensure!(last <= Some(&RETURNED), "{what}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_back_gives_a_dead_waiter_no_time_on_redis() -> Result<()> {
    let server = RedisServer::with_clock(&[])?;
    let url = server.url();
    check_clock_that_goes_back(&server, &url, |by| server.put_clock_back(by)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_back_gives_a_dead_waiter_no_time_on_postgres() -> Result<()> {
    let server = PostgresServer::with_clock()?;
    let url = server.url();
    check_clock_that_goes_back(&server, &url, |by| server.put_clock_back(by)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_back_gives_a_dead_waiter_no_time_on_mariadb() -> Result<()> {
    let server = MySqlServer::with_clock(Product::MariaDb)?;
    let url = server.url();
    check_clock_that_goes_back(&server, &url, |by| server.put_clock_back(by)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_back_gives_a_dead_waiter_no_time_on_mysql() -> Result<()> {
    let server = MySqlServer::with_clock(Product::MySql)?;
    let url = server.url();
    check_clock_that_goes_back(&server, &url, |by| server.put_clock_back(by)).await
}

/// Checks two waiting processes. The first is killed, and the server's clock goes back. The second
/// gets the free lock as soon as without the step of the clock.
async fn check_clock_that_goes_back(
    server: &impl KeepsQueue,
    url: &str,
    put_clock_back: impl Fn(Duration) -> Result<()>,
) -> Result<()> {
    let name = format!("back-{:x}", fastrand::u64(..));
    let holding = distlock::open(url).await?.locker();
    let held = holding.lock(&name).ttl(WAIT).acquire().await?;
    let mut first = start_waiting_run(url, &name).await?;
    wait_for_entries(server, 1).await?;
    let second = distlock::open(url).await?;
    let waiting = tokio::spawn(second.locker().lock(&name).wait(WAIT).acquire());
    wait_for_entries(server, 2).await?;
    first.kill().await?;
    let killed = SystemClock.now();
    put_clock_back(Duration::from_secs(40))?;
    ensure!(held.release().await.is_clean(), "the holder lost it");
    let guard = timeout(SOON * 2, waiting).await??;
    let guard = guard.context("the second waiter")?;
    let took = SystemClock.now().since(killed);
    ensure!(
        took <= DEAD_ENTRY,
        "the dead waiter blocked the queue for {took:.1?}"
    );
    ensure!(guard.release().await.is_clean(), "the second lost it");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_lost_in_an_outage_is_free_after_it_on_redis() -> Result<()> {
    let server = RedisServer::start()?;
    check_lost_lock(server.address(), |address| server.url_at(address)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_lost_in_an_outage_is_free_after_it_on_postgres() -> Result<()> {
    let server = PostgresServer::start()?;
    check_lost_lock(server.address(), |address| server.url_at(address)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_lost_in_an_outage_is_free_after_it_on_mariadb() -> Result<()> {
    let server = MySqlServer::start(Product::MariaDb)?;
    check_lost_lock(server.address(), |address| server.url_at(address)).await
}

/// Checks that a renewal that waits for a connection at the loss of its lock, and then reaches the
/// store, does not keep the lock for one more lease.
async fn check_lost_lock(server: SocketAddr, url: impl Fn(SocketAddr) -> String) -> Result<()> {
    let ttl = Duration::from_secs(6);
    let proxy = FaultProxy::start(server).await?;
    let (direct, far) = (url(server), url(proxy.address()));
    let (direct, far) = (distlock::open(&direct).await?, distlock::open(&far).await?);
    for more in [0, 100, 300].map(Duration::from_millis) {
        let guard = far.locker().lock("lost").ttl(ttl).acquire().await?;
        proxy.black_hole();
        guard.lost().await;
        let lost = SystemClock.now();
        drop(guard);
        SystemClock.sleep(more).await;
        proxy.pass();
        let next = direct.locker().lock("lost").wait(SOON).acquire().await?;
        let took = SystemClock.now().since(lost);
        // At the store, the lease lasts a tenth longer than in this process.
        ensure!(
            took <= more + ttl / 10 + RETURNED,
            "{took:?} after the loss, {more:?} after that the server was back"
        );
        ensure!(next.release().await.is_clean(), "the next one lost it");
    }
    far.close().await;
    direct.close().await;
    Ok(())
}
