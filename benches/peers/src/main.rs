//! Compares distlock with the plain way of each store: the statements that a program would send
//! without this library. Both arms run the same workloads and alternate in one run, so that both
//! arms run on the same machine in the same minute.
//!
//! ```sh
//! alias peers='cargo run --release -p distlock-peers --'
//! peers sqlite --workload independent --concurrency 64 --seconds 5
//! peers memory --workload uncontended
//! peers mysql --workload independent --concurrency 256
//! peers postgres --workload independent --concurrency 256
//! peers redis --workload independent --concurrency 256
//! peers redis --processes 4
//! peers redis --link 0.00025
//! peers postgres --processes 4
//! peers zookeeper --workload contended --hold 0.001
//! peers zookeeper --processes 2 --tasks 16 --hold 0.001
//! peers waiting --waiters 64
//! peers rows --rows 1000000
//! ```
//!
//! The first arm is the plain way, or a lower bound where no plain way runs the workload. Each
//! ratio is the result of another arm divided by the result of the first arm. `--json` prints the
//! samples in the format of `distlock bench --json`.
#![expect(
    clippy::print_stdout,
    reason = "a command-line tool: its results go to stdout"
)]

mod floor;
mod hand_over;
mod link;
mod memory;
mod mysql;
mod plain;
mod plain_mysql;
mod plain_postgres;
mod plain_sqlite;
mod postgres;
mod raw_redis;
mod redis;
mod rows;
mod rslock;
mod scripts_redis;
mod sqlite;
mod target;
mod waiting;
mod zookeeper;

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Args, Parser};
use distlock_harness::servers::mysql::Product;
use distlock_report::{Options, Report, Workload};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::target::Target;

/// The environment variable for the server's URL. An argument would show the password in a process
/// list.
const SERVER: &str = "DISTLOCK_PEERS_SERVER";

/// Runs the bench workloads on the plain way and on distlock, interleaved in one run.
#[derive(Debug, Parser)]
enum Command {
    /// One INSERT and one DELETE per cycle, beside distlock on SQLite.
    Sqlite(SqliteArgs),
    /// The raw lock table, beside a locker and its guards over it.
    Memory(Measure),
    /// The cost of waiting: statements that reach SQLite while many tasks wait for one lock.
    Waiting(WaitingArgs),
    /// One INSERT and one DELETE per cycle, and named locks, beside distlock on MySQL or MariaDB.
    #[command(name = "mysql")]
    MySql(MySqlArgs),
    /// One INSERT and one DELETE per cycle, and advisory locks, beside distlock on Postgres.
    Postgres(PostgresArgs),
    /// Raw `SET NX PX` and `DEL`, bare scripts, and the `rslock` crate, beside distlock on Redis.
    Redis(RedisArgs),
    /// Creation, listing and deletion one by one, and the `zookeeper-client` crate's recipe, beside
    /// distlock on ZooKeeper.
    #[command(name = "zookeeper")]
    ZooKeeper(ZooKeeperArgs),
    /// Resident memory of many held rows in the lock table.
    Rows {
        /// Number of held locks, with names of 32 bytes.
        #[arg(long, default_value_t = 1_000_000)]
        rows: u32,
    },
    /// The process behind `--link`.
    #[command(hide = true)]
    Link {
        /// The server's address.
        server: SocketAddr,
        /// The delay each way, in microseconds.
        delay: u64,
    },
    /// One of the processes of `--processes`.
    #[command(hide = true)]
    PassOn,
    /// Holds the lock that `waiting` waits for, until its input ends.
    #[command(hide = true)]
    Hold {
        /// The database.
        file: PathBuf,
    },
}

/// The workload, and how long it is measured.
#[derive(Debug, Args)]
struct Measure {
    /// uncontended, independent, contended or handoff.
    #[arg(long, default_value_t = Workload::Uncontended)]
    workload: Workload,
    /// Concurrent callers [default: 1, 64, 16, 2, by workload].
    #[arg(long)]
    concurrency: Option<u32>,
    /// Measured time of each arm, over all rounds together.
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    seconds: Duration,
    /// Number of rounds in which the arms take turns.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Time that each arm runs uncounted before each of its rounds. Many short rounds with a short
    /// one compare best on a machine whose disk is shared.
    #[arg(long, default_value = "0.2", value_parser = parse_seconds)]
    warmup: Duration,
    /// Threads of the runtime [default: 1 for uncontended, else one per core].
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Prints figures and samples as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct SqliteArgs {
    #[command(flatten)]
    measure: Measure,
    /// Connections of a further plain arm that uses a pool; SQLite still has one writer at a time.
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=64))]
    pool: Option<u32>,
    /// Folder of the databases [default: the system's folder for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    between: HandOverArgs,
}

#[derive(Debug, Args)]
struct MySqlArgs {
    #[command(flatten)]
    measure: Measure,
    /// The server [default: a private MariaDB that syncs its disk].
    #[arg(long, env = SERVER, hide_env_values = true, conflicts_with = "link")]
    url: Option<String>,
    /// Starts a private MySQL instead.
    #[arg(long, conflicts_with = "url")]
    mysql: bool,
    #[command(flatten)]
    way: LinkArgs,
    #[command(flatten)]
    between: HandOverArgs,
}

#[derive(Debug, Args)]
struct PostgresArgs {
    #[command(flatten)]
    measure: Measure,
    /// The server [default: a private one that syncs its disk].
    #[arg(long, env = SERVER, hide_env_values = true, conflicts_with = "link")]
    url: Option<String>,
    #[command(flatten)]
    way: LinkArgs,
    #[command(flatten)]
    between: HandOverArgs,
}

#[derive(Debug, Args)]
struct RedisArgs {
    #[command(flatten)]
    measure: Measure,
    /// The server [default: a private redis-server without persistence].
    #[arg(long, env = SERVER, hide_env_values = true, conflicts_with = "link")]
    url: Option<String>,
    #[command(flatten)]
    way: LinkArgs,
    #[command(flatten)]
    between: HandOverArgs,
}

#[derive(Debug, Args)]
struct ZooKeeperArgs {
    #[command(flatten)]
    measure: Measure,
    /// The ensemble, `host:port,host:port`, with `user:password@` before it if it needs one; every
    /// arm connects to its first server [default: three private servers, and every arm connects to
    /// their leader].
    #[arg(long, env = SERVER, hide_env_values = true, conflicts_with = "link")]
    servers: Option<String>,
    /// Folder for the data of private servers [default: the system's folder for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    way: LinkArgs,
    #[command(flatten)]
    between: HandOverArgs,
}

#[derive(Debug, Args)]
struct HandOverArgs {
    /// Instead of a workload, passes one lock on between this many processes. Prints the time of
    /// each hand-over beside one round trip, and the grants of each process.
    #[arg(
        long,
        conflicts_with_all = ["workload", "concurrency", "threads"],
        value_parser = clap::value_parser!(u32).range(2..=64)
    )]
    processes: Option<u32>,
    /// Tasks of each process that want the lock.
    #[arg(
        long,
        default_value_t = 1,
        requires = "processes",
        value_parser = clap::value_parser!(u32).range(1..=1_000)
    )]
    tasks: u32,
    /// Time that each lock is held, in seconds: between processes, and by every workload.
    #[arg(long, default_value = "0", value_parser = parse_hold)]
    hold: Duration,
    /// One of the processes holds the lock all the time: shows the cost of waiting while nothing
    /// changes.
    #[arg(long, requires = "processes", conflicts_with = "hold")]
    idle: bool,
}

#[derive(Debug, Args)]
struct LinkArgs {
    /// Delays everything on the way to the private server by this many seconds, each way: 0.00025
    /// adds half a millisecond to a round trip.
    #[arg(long, value_parser = parse_delay)]
    link: Option<Duration>,
}

#[derive(Debug, Args)]
struct WaitingArgs {
    /// Tasks that wait.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    waiters: u32,
    /// Time that they wait.
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    seconds: Duration,
    /// Folder of the database [default: the system's folder for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Prints the figures as JSON.
    #[arg(long)]
    json: bool,
}

impl Measure {
    /// Returns the options of the measurement. Each lock is held for `hold`.
    fn options(&self, hold: Duration) -> Options {
        let mut options = Options::default()
            .hold(hold)
            .duration(self.seconds)
            .rounds(self.rounds)
            .warmup(self.warmup);
        options.concurrency = self.concurrency;
        options
    }

    /// Returns the runtime for the workload, with the requested number of threads.
    fn runtime(&self) -> std::io::Result<Runtime> {
        let threads = match self.threads {
            Some(threads) => threads.get(),
            None if self.workload == Workload::Uncontended => 1,
            None => std::thread::available_parallelism()?.get(),
        };
        Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
    }

    /// Runs the workload on a server and prints the report. If `--processes` was given, measures
    /// hand-overs between processes instead.
    fn run_on_server(
        &self,
        between: &HandOverArgs,
        target: &Target,
        run: impl AsyncFnOnce(Workload, Options, &str) -> anyhow::Result<Report>,
    ) -> anyhow::Result<()> {
        if let Some(contention) = between.contention() {
            return self.print_hand_overs(target.url(), contention);
        }
        let run = run(self.workload, self.options(between.hold), target.url());
        Ok(self.print(&self.runtime()?.block_on(run)?)?)
    }

    /// Passes one lock on between processes, and prints the time of each hand-over.
    fn print_hand_overs(&self, url: &str, contention: hand_over::Contention) -> anyhow::Result<()> {
        let run = hand_over::run(url, contention, self.seconds);
        let passing = self.runtime()?.block_on(run)?;
        if self.json {
            println!("{}", passing.json());
        } else {
            print!("{passing}");
        }
        Ok(())
    }

    fn print(&self, report: &Report) -> serde_json::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(report)?);
        } else {
            print!("{report}");
        }
        Ok(())
    }
}

impl HandOverArgs {
    /// Returns the processes and tasks that compete for the lock, if `--processes` was given.
    fn contention(&self) -> Option<hand_over::Contention> {
        let tasks = self.tasks;
        self.processes.map(|processes| hand_over::Contention {
            processes,
            tasks,
            hold: if self.idle { Duration::MAX } else { self.hold },
        })
    }
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Sqlite(args) => {
            let dir = temporary_folder(args.dir.as_ref())?;
            let (measure, path) = (&args.measure, dir.path());
            let (workload, options) = (measure.workload, measure.options(args.between.hold));
            if let Some(contention) = args.between.contention() {
                let url = format!("sqlite:{}", path.join("passed-on.db").display());
                return measure.print_hand_overs(&url, contention);
            }
            let run = sqlite::run(workload, options, args.pool, path);
            measure.print(&measure.runtime()?.block_on(run)?)?;
        }
        Command::Memory(measure) => {
            let run = memory::run(measure.workload, measure.options(Duration::ZERO));
            measure.print(&measure.runtime()?.block_on(run)?)?;
        }
        Command::MySql(args) => {
            let product = if args.mysql {
                Product::MySql
            } else {
                Product::MariaDb
            };
            let target = match args.url {
                Some(url) => Target::existing_server(url),
                None => mysql::start_private(product, args.way.link)?,
            };
            args.measure
                .run_on_server(&args.between, &target, mysql::run)?;
        }
        Command::Postgres(args) => {
            let target = match args.url {
                Some(url) => Target::existing_server(url),
                None => postgres::start_private(args.way.link)?,
            };
            args.measure
                .run_on_server(&args.between, &target, postgres::run)?;
        }
        Command::Redis(args) => {
            let target = match args.url {
                Some(url) => Target::existing_server(url),
                None => redis::start_private(args.way.link)?,
            };
            args.measure
                .run_on_server(&args.between, &target, redis::run)?;
        }
        Command::ZooKeeper(args) => {
            let target = match args.servers {
                Some(servers) => zookeeper::existing_server(&servers),
                None => zookeeper::start_private(args.dir, args.way.link)?,
            };
            args.measure
                .run_on_server(&args.between, &target, zookeeper::run)?;
        }
        Command::Waiting(args) => {
            let dir = temporary_folder(args.dir.as_ref())?;
            let run = waiting::run(args.waiters, args.seconds, dir.path());
            let cost = Runtime::new()?.block_on(run)?;
            if args.json {
                println!("{}", cost.json());
            } else {
                print!("{cost}");
            }
        }
        Command::Link { server, delay } => link::run_process(server, Duration::from_micros(delay))?,
        Command::PassOn => Runtime::new()?.block_on(hand_over::run_worker())?,
        Command::Hold { file } => Runtime::new()?.block_on(waiting::run_holder(&file))?,
        Command::Rows { rows } => print!("{}", rows::run(rows)?),
    }
    Ok(())
}

/// Creates a folder that is removed after the run.
fn temporary_folder(parent: Option<&PathBuf>) -> std::io::Result<TempDir> {
    parent.map_or_else(tempfile::tempdir, tempfile::tempdir_in)
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| (Duration::from_micros(50)..=Duration::from_secs(1)).contains(time))
        .ok_or_else(|| "not a number of seconds from 0.00005 to 1".into())
}

fn parse_hold(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        text => parse_seconds(text),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| *time >= Duration::from_millis(1))
        .ok_or_else(|| "not a number of seconds of at least 0.001".into())
}
