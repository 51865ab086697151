//! Passes one lock on between processes. It measures the time from a release to the next grant,
//! beside one round trip to the server. Where a grant is a durable change, it also measures one
//! such change; except on Postgres, a release is one as well.

use std::{fmt, path::Path, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use distlock_core::{Clock as _, DistLock, ErrorKind, Locker, Moment, Released, SystemClock};
use distlock_report::{Latencies, keep};
use distlock_sql::{MySql, Postgres, Product, ServerConfig};
use sqlx::{Connection as _, MySqlConnection, PgConnection, SqliteConnection};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, Stdin},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::JoinSet,
};
use zookeeper_client::Client;

use crate::{
    floor::{self, Database as _},
    raw_redis::RawRedis,
    redis, sqlite, zookeeper,
};

const NAME: &str = "bench:passed-on";

/// Time for measuring round trips, one after another, while nothing else uses the server.
const TRIPS: Duration = Duration::from_secs(1);

/// Time that the processes run before anything is counted: until all of them wait.
const SETTLING: Duration = Duration::from_secs(2);

/// Time that the processes go on after the count, because the end of a wait has a cost that does
/// not belong to waiting.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// The results of one run.
#[derive(Debug)]
pub(crate) struct Passing {
    /// One round trip to the server.
    trips: Latencies,
    /// One changed row that is on the disk; empty where the store keeps no rows.
    changes: Latencies,
    /// Time from the start of a release to the grant to another process.
    passed: Latencies,
    /// Grants of each process.
    grants: Vec<u64>,
    /// Requests of all processes together.
    requests: u64,
    seconds: f64,
}

/// The processes and tasks that want the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) processes: u32,
    /// Tasks of each process.
    pub(crate) tasks: u32,
    /// Time that each task holds the lock.
    pub(crate) hold: Duration,
}

/// One time that the lock was held, counted from boot.
#[derive(Clone, Copy, Debug)]
struct Hold {
    process: usize,
    granted: Duration,
    released: Duration,
}

/// Lets all processes want one lock all the time.
pub(crate) async fn run(url: &str, crowd: Crowd, time: Duration) -> anyhow::Result<Passing> {
    // The tables of the store must exist before many processes want to create them.
    open(url).await?.close().await;
    let mut raw = Raw::connect(url).await.context("connect")?;
    let mut trips = Latencies::new();
    let until = SystemClock.now() + TRIPS;
    while SystemClock.now() < until {
        let start = SystemClock.now();
        raw.ping().await?;
        trips.record(SystemClock.now().since(start));
    }
    let mut changes = Latencies::new();
    if raw.prepare_changes().await? {
        let until = SystemClock.now() + TRIPS;
        while SystemClock.now() < until {
            let start = SystemClock.now();
            raw.change().await?;
            changes.record(SystemClock.now().since(start));
        }
    }
    let mut starting = JoinSet::new();
    for _ in 0..crowd.processes {
        let url = url.to_owned();
        starting.spawn(async move { Other::start(&url).await });
    }
    let mut all = Vec::new();
    while let Some(started) = starting.join_next().await {
        all.push(started??);
    }
    for process in &mut all {
        let hold = crowd.hold.min(Duration::from_secs(3600)).as_micros();
        let tasks = crowd.tasks;
        let order = format!("{} {tasks} {hold}", time.as_millis());
        process.say(&order).await?;
    }
    let mut holds = Vec::new();
    let mut grants = Vec::new();
    let mut requests = 0;
    for (at, process) in all.into_iter().enumerate() {
        let (own, sent) = process.holds(at).await?;
        requests += sent;
        grants.push(u64::try_from(own.len())?);
        holds.extend(own);
    }
    holds.sort_unstable_by_key(|hold| hold.granted);
    let mut passed = Latencies::new();
    for pair in holds.windows(2) {
        ensure!(pair[0].released <= pair[1].granted, "two at once: {pair:?}");
        if pair[0].process != pair[1].process {
            passed.record(pair[1].granted.saturating_sub(pair[0].released));
        }
    }
    Ok(Passing {
        trips,
        changes,
        passed,
        grants,
        requests,
        seconds: time.as_secs_f64(),
    })
}

/// One of the processes. It reads the server's URL from its input. Then it reads three numbers: the
/// time in milliseconds, its tasks, and the microseconds of each hold. It prints the times at which
/// it held the lock.
pub(crate) async fn pass_on() -> anyhow::Result<()> {
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let url = next(&mut input).await?;
    let backend = open(&url).await?;
    let locker = Locker::new(Arc::clone(&backend));
    locker.ready().await?;
    let sent = || {
        let sent = backend.requests_sent();
        sent.context("the store does not count its requests")
    };
    println!("ready");
    let order = next(&mut input).await?;
    let order: Vec<u64> = order
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .context("three numbers")?;
    let &[time, tasks, hold] = order.as_slice() else {
        bail!("not three numbers: {order:?}");
    };
    let settled = SystemClock.now() + SETTLING;
    let until = settled + Duration::from_millis(time);
    let mut wanting = JoinSet::new();
    for _ in 0..tasks {
        let hold = Duration::from_micros(hold);
        wanting.spawn(want(locker.clone(), until + AFTERWARDS, hold));
    }
    SystemClock.sleep(SETTLING).await;
    let before = sent()?;
    SystemClock.sleep(until.since(SystemClock.now())).await;
    let counted = sent()? - before;
    let mut holds = Vec::new();
    while let Some(own) = wanting.join_next().await {
        holds.extend(own??);
    }
    holds.retain(|(granted, _)| (settled..until).contains(granted));
    println!("{counted}");
    locker.close().await;
    let nanos = |moment: &Moment| moment.since_boot().as_nanos();
    for (granted, released) in &holds {
        println!("{} {}", nanos(granted), nanos(released));
    }
    Ok(())
}

/// Takes the lock again and again. Returns the begin and the end of each hold.
async fn want(
    locker: Locker,
    until: Moment,
    hold: Duration,
) -> anyhow::Result<Vec<(Moment, Moment)>> {
    let mut holds = Vec::new();
    while SystemClock.now() < until {
        let left = until.since(SystemClock.now());
        let guard = match locker.lock(NAME).wait(left).acquire().await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Timeout => break,
            Err(error) => return Err(error.into()),
        };
        let granted = SystemClock.now();
        keep(hold.min(until.since(granted))).await;
        // The next holder may have the lock before the answer to the release arrives.
        let releasing = SystemClock.now();
        let released = guard.release().await;
        ensure!(matches!(released, Released::Clean), "{released:?}");
        holds.push((granted, releasing));
    }
    Ok(holds)
}

async fn open(url: &str) -> anyhow::Result<Arc<dyn DistLock>> {
    if let Some(servers) = zookeeper::servers(url) {
        return Ok(zookeeper::open(servers).await?.lock());
    }
    let clock = Arc::new(SystemClock);
    if let Some(file) = url.strip_prefix("sqlite:") {
        return Ok(sqlite::open(Path::new(file)).await?.lock());
    }
    Ok(match Product::of(scheme(url)) {
        None => redis::open(url).await?.lock(),
        Some(Product::Postgres) => Postgres::open(ServerConfig::from_url(url)?, clock)
            .await?
            .lock(),
        Some(_) => MySql::open(ServerConfig::from_url(url)?, clock)
            .await?
            .lock(),
    })
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or(url)
}

/// A connection for the smallest request.
enum Raw {
    Sqlite(SqliteConnection),
    ZooKeeper(&'static Client),
    Redis(RawRedis),
    MySql(MySqlConnection),
    Postgres(PgConnection),
}

impl Raw {
    async fn connect(url: &str) -> anyhow::Result<Self> {
        if let Some(servers) = zookeeper::servers(url) {
            return Ok(Self::ZooKeeper(zookeeper::client(servers).await?));
        }
        if url.starts_with("sqlite:") {
            return Ok(Self::Sqlite(SqliteConnection::connect(url).await?));
        }
        Ok(match Product::of(scheme(url)) {
            None => Self::Redis(RawRedis::connect(url).await?),
            Some(Product::Postgres) => Self::Postgres(PgConnection::connect(url).await?),
            Some(_) => Self::MySql(MySqlConnection::connect(url).await?),
        })
    }

    async fn ping(&mut self) -> anyhow::Result<()> {
        const SMALLEST: &str = "SELECT 1";
        match self {
            Self::Redis(redis) => redis.ping().await?,
            Self::ZooKeeper(client) => drop(client.check_stat("/").await?),
            Self::Sqlite(sqlite) => {
                sqlx::query(SMALLEST).execute(sqlite).await?;
            }
            Self::MySql(mysql) => mysql.run(SMALLEST).await?,
            Self::Postgres(postgres) => postgres.run(SMALLEST).await?,
        }
        Ok(())
    }

    /// Creates the row. Returns whether the store keeps rows.
    async fn prepare_changes(&mut self) -> anyhow::Result<bool> {
        match self {
            Self::Redis(_) | Self::ZooKeeper(_) | Self::Sqlite(_) => return Ok(false),
            Self::MySql(mysql) => floor::prepare(mysql).await?,
            Self::Postgres(postgres) => floor::prepare(postgres).await?,
        }
        Ok(true)
    }

    async fn change(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Redis(_) | Self::ZooKeeper(_) | Self::Sqlite(_) => {}
            Self::MySql(mysql) => floor::step(mysql).await?,
            Self::Postgres(postgres) => floor::step(postgres).await?,
        }
        Ok(())
    }
}

async fn next(input: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<String> {
    input.next_line().await?.context("the input ended early")
}

/// A started process, seen from the process that started it.
struct Other {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Starts a process. The URL goes over its input, so that the list of processes shows no
    /// password.
    async fn start(url: &str) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("pass-on")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting a process")?;
        let input = process.stdin.take().context("its input")?;
        let output = process.stdout.take().context("its output")?;
        let mut other = Self {
            process,
            input,
            output: BufReader::new(output).lines(),
        };
        other.say(url).await?;
        let line = other.output.next_line().await?;
        ensure!(line.as_deref() == Some("ready"), "a process is not ready");
        Ok(other)
    }

    async fn say(&mut self, line: &str) -> anyhow::Result<()> {
        self.input.write_all(line.as_bytes()).await?;
        self.input.write_all(b"\n").await?;
        Ok(self.input.flush().await?)
    }

    /// The times at which the process held the lock, and the number of requests that it sent.
    async fn holds(mut self, process: usize) -> anyhow::Result<(Vec<Hold>, u64)> {
        let sent = self.output.next_line().await?;
        let sent = sent.context("a process ended early")?.parse()?;
        let mut holds = Vec::new();
        while let Some(line) = self.output.next_line().await? {
            let (granted, released) = line.split_once(' ').context("two moments")?;
            holds.push(Hold {
                process,
                granted: Duration::from_nanos(granted.parse()?),
                released: Duration::from_nanos(released.parse()?),
            });
        }
        let status = self.process.wait().await?;
        ensure!(status.success(), "a process failed: {status}");
        Ok((holds, sent))
    }
}

impl Passing {
    fn micros(latencies: &Latencies, share: f64) -> f64 {
        latencies.quantile(share).as_secs_f64() * 1e6
    }

    fn ratio(&self) -> f64 {
        Self::micros(&self.passed, 0.5) / Self::micros(&self.trips, 0.5)
    }

    fn over_changes(&self) -> Option<f64> {
        let change = Self::micros(&self.changes, 0.5);
        (self.changes.count() > 0).then(|| Self::micros(&self.passed, 0.5) / change)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn unfairness(&self) -> f64 {
        let most = self.grants.iter().max().copied().unwrap_or(0);
        let least = self.grants.iter().min().copied().unwrap_or(0);
        most as f64 / least as f64
    }

    /// The largest share of all grants that one process had.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn largest_share(&self) -> f64 {
        let most = self.grants.iter().max().copied().unwrap_or(0);
        most as f64 / self.grants.iter().sum::<u64>() as f64
    }

    /// Requests of all processes together, for each time that the lock passed from one process to
    /// another.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn requests_a_pass(&self) -> f64 {
        self.requests as f64 / self.passed.count() as f64
    }

    /// Requests of all processes together, for each grant.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn requests_a_grant(&self) -> f64 {
        self.requests as f64 / self.grants.iter().sum::<u64>() as f64
    }

    /// Requests a second, of each process on average.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn requests_a_second(&self) -> f64 {
        self.requests as f64 / self.seconds / self.grants.len() as f64
    }

    /// The results as one JSON object.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "processes": self.grants.len(),
            "seconds": self.seconds,
            "passed": self.passed.count(),
            "trip_p50_us": Self::micros(&self.trips, 0.5),
            "passed_p50_us": Self::micros(&self.passed, 0.5),
            "passed_p99_us": Self::micros(&self.passed, 0.99),
            "passed_over_trip": self.ratio(),
            "change_p50_us": self.over_changes().map(|_| Self::micros(&self.changes, 0.5)),
            "passed_over_change": self.over_changes(),
            "requests": self.requests,
            "requests_a_pass": self.requests_a_pass(),
            "requests_a_grant": self.requests_a_grant(),
            "requests_a_second": self.requests_a_second(),
            "grants": self.grants,
            "unfairness": self.unfairness(),
            "largest_share": self.largest_share(),
        })
    }
}

impl fmt::Display for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.passed.count() == 0 {
            return writeln!(
                f,
                "{} processes for {:.1} s: one of them keeps the lock; {} requests, {:.2} a second of each process",
                self.grants.len(),
                self.seconds,
                self.requests,
                self.requests_a_second(),
            );
        }
        writeln!(
            f,
            "{} processes for {:.1} s: passed on {} times, from release to grant p50 {:.0} us, p99 {:.0} us",
            self.grants.len(),
            self.seconds,
            self.passed.count(),
            Self::micros(&self.passed, 0.5),
            Self::micros(&self.passed, 0.99),
        )?;
        writeln!(
            f,
            "one trip p50 {:.0} us: {:.2} times",
            Self::micros(&self.trips, 0.5),
            self.ratio(),
        )?;
        writeln!(
            f,
            "{} requests: {:.1} for each time it passed on, {:.1} for each grant",
            self.requests,
            self.requests_a_pass(),
            self.requests_a_grant(),
        )?;
        if let Some(ratio) = self.over_changes() {
            let change = Self::micros(&self.changes, 0.5);
            writeln!(f, "one durable change p50 {change:.0} us: {ratio:.2} times")?;
        }
        writeln!(
            f,
            "grants {:?}: {:.2} times as many for the luckiest as for the unluckiest, {:.0} % of all",
            self.grants,
            self.unfairness(),
            self.largest_share() * 100.0,
        )
    }
}
