//! The command line of `distlock-lab peers`.

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use distlock_report::{Options, Workload};

use super::hand_over;

/// The environment variable for the server's URL. An argument would show the password in a process
/// list.
const SERVER: &str = "DISTLOCK_PEERS_SERVER";

/// The stores, and the internal processes of a run.
#[derive(Debug, Subcommand)]
pub(super) enum Peer {
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
    /// Quorums of Redis servers, with all members, with a dead one and with a silent one, beside
    /// one server.
    Quorum(QuorumArgs),
    /// A ring of four Redis servers, beside one of them.
    Ring(RingArgs),
    /// A ring to which a member is added: how long names that move are blocked, and the cycles of
    /// the others.
    Moving(MovingArgs),
    /// Rings of one and of four Redis servers: cycles over many names, and the processor time of
    /// the servers.
    Capacity(CapacityArgs),
    /// The lock server by its stream and by unary calls, and an agent of Redis, beside raw Redis
    /// and empty calls by gRPC.
    Server(ServerArgs),
    /// A lock server that holds many idle locks: its memory, and the cycles beside them.
    Held(HeldArgs),
    /// A lock server with many waiters and nothing to do: its processor time, and its memory for
    /// each waiter.
    Idle(IdleArgs),
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
    /// Answers empty calls, until it is killed.
    #[command(hide = true)]
    Echo,
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
pub(super) struct Measure {
    /// uncontended, independent, contended or handoff.
    #[arg(long, default_value_t = Workload::Uncontended)]
    pub(super) workload: Workload,
    /// Concurrent callers [default: 1, 64, 16, 2, by workload].
    #[arg(long)]
    pub(super) concurrency: Option<u32>,
    /// Measured time of each arm, over all rounds together.
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    pub(super) seconds: Duration,
    /// Number of rounds in which the arms take turns.
    #[arg(long, default_value_t = 5)]
    pub(super) rounds: u32,
    /// Time that each arm runs uncounted before each of its rounds. Many short rounds with a short
    /// one compare best on a machine whose disk is shared.
    #[arg(long, default_value = "0.2", value_parser = parse_seconds)]
    pub(super) warmup: Duration,
    /// Threads of the runtime [default: 1 for uncontended, else one per core].
    #[arg(long)]
    pub(super) threads: Option<NonZeroUsize>,
    /// Prints figures and samples as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct SqliteArgs {
    #[command(flatten)]
    pub(super) measure: Measure,
    /// Connections of a further plain arm that uses a pool; SQLite still has one writer at a time.
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(super) pool: Option<u32>,
    /// Folder of the databases [default: the system's folder for temporary files].
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) between: HandOverArgs,
}

#[derive(Debug, Args)]
pub(super) struct MySqlArgs {
    #[command(flatten)]
    pub(super) measure: Measure,
    /// The server [default: a private MariaDB that syncs its disk].
    #[arg(long, env = SERVER, hide_env_values = true, conflicts_with = "link")]
    pub(super) url: Option<String>,
    /// Starts a private MySQL instead.
    #[arg(long, conflicts_with = "url")]
    pub(super) mysql: bool,
    #[command(flatten)]
    pub(super) way: LinkArgs,
    #[command(flatten)]
    pub(super) between: HandOverArgs,
}

#[derive(Debug, Args)]
pub(super) struct PostgresArgs {
    #[command(flatten)]
    pub(super) measure: Measure,
    /// The server [default: a private one that syncs its disk].
    #[arg(long, env = SERVER, hide_env_values = true, conflicts_with = "link")]
    pub(super) url: Option<String>,
    #[command(flatten)]
    pub(super) way: LinkArgs,
    #[command(flatten)]
    pub(super) between: HandOverArgs,
}

#[derive(Debug, Args)]
pub(super) struct RedisArgs {
    #[command(flatten)]
    pub(super) measure: Measure,
    /// The server [default: a private redis-server without persistence].
    #[arg(long, env = SERVER, hide_env_values = true, conflicts_with = "link")]
    pub(super) url: Option<String>,
    #[command(flatten)]
    pub(super) way: LinkArgs,
    #[command(flatten)]
    pub(super) between: HandOverArgs,
}

#[derive(Debug, Args)]
pub(super) struct ZooKeeperArgs {
    #[command(flatten)]
    pub(super) measure: Measure,
    /// The ensemble, `host:port,host:port`, with `user:password@` before it if it needs one; every
    /// arm connects to its first server [default: three private servers, and every arm connects to
    /// their leader].
    #[arg(long, env = SERVER, hide_env_values = true, conflicts_with = "link")]
    pub(super) servers: Option<String>,
    /// Folder for the data of private servers [default: the system's folder for temporary files].
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) way: LinkArgs,
    #[command(flatten)]
    pub(super) between: HandOverArgs,
}

#[derive(Debug, Args)]
pub(super) struct QuorumArgs {
    #[command(flatten)]
    pub(super) measure: Measure,
    /// Members of each quorum: 3, 5 or 7.
    #[arg(long, default_value_t = 3)]
    pub(super) members: usize,
    #[command(flatten)]
    pub(super) way: LinkArgs,
}

#[derive(Debug, Args)]
pub(super) struct RingArgs {
    #[command(flatten)]
    pub(super) measure: Measure,
    #[command(flatten)]
    pub(super) way: LinkArgs,
}

#[derive(Debug, Args)]
pub(super) struct MovingArgs {
    /// Names, about a quarter of which move.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(16..=4_000))]
    pub(super) names: u32,
    /// Measured time before the change; the quarantine of 7 s comes after it.
    #[arg(long, default_value = "7", value_parser = parse_seconds)]
    pub(super) seconds: Duration,
    /// Changes, each of another ring.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Prints the figures as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct CapacityArgs {
    /// Number of locks, with names of 32 bytes.
    #[arg(
        long,
        default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u32).range(1_000..)
    )]
    pub(super) names: u32,
    /// Measured time of each ring, over all rounds together.
    #[arg(long, default_value = "15", value_parser = parse_seconds)]
    pub(super) seconds: Duration,
    /// Number of rounds in which the rings take turns.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Prints the figures as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    #[command(flatten)]
    pub(super) measure: Measure,
    #[command(flatten)]
    pub(super) between: HandOverArgs,
}

#[derive(Debug, Args)]
pub(super) struct HeldArgs {
    /// Number of held locks, with names of 32 bytes.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(10..))]
    pub(super) names: u32,
    /// Concurrent callers beside them.
    #[arg(long, default_value_t = 64)]
    pub(super) concurrency: u32,
    /// Measured time of each server: one with 10 held locks, and one with all of them.
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    pub(super) seconds: Duration,
    /// Prints the figures as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct IdleArgs {
    /// Waiters on all connections together.
    #[arg(
        long,
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub(super) waiters: u32,
    /// Connections, each an open file of this process and of the server.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=4_500))]
    pub(super) connections: u32,
    /// Measured time.
    #[arg(long, default_value = "30", value_parser = parse_seconds)]
    pub(super) seconds: Duration,
    /// Prints the figures as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct HandOverArgs {
    /// Instead of a workload, passes one lock on between this many processes. Prints the time of
    /// each hand-over beside one round trip, and the grants of each process.
    #[arg(
        long,
        conflicts_with_all = ["workload", "concurrency", "threads"],
        value_parser = clap::value_parser!(u32).range(2..=64)
    )]
    pub(super) processes: Option<u32>,
    /// Tasks of each process that want the lock.
    #[arg(
        long,
        default_value_t = 1,
        requires = "processes",
        value_parser = clap::value_parser!(u32).range(1..=1_000)
    )]
    pub(super) tasks: u32,
    /// Time that each lock is held, in seconds: between processes, and by every workload.
    #[arg(long, default_value = "0", value_parser = parse_hold)]
    pub(super) hold: Duration,
    /// One of the processes holds the lock all the time: shows the cost of waiting while nothing
    /// changes.
    #[arg(long, requires = "processes", conflicts_with = "hold")]
    pub(super) idle: bool,
    /// How the processes take the lock.
    #[arg(long, requires = "processes", value_enum, default_value_t = hand_over::Mode::Exclusive)]
    pub(super) mode: hand_over::Mode,
    /// Instead of the plain way, measures writers, readers and permits beside the exclusive lock.
    #[arg(long, conflicts_with = "processes")]
    pub(super) modes: bool,
}

#[derive(Debug, Args)]
pub(super) struct LinkArgs {
    /// Delays everything on the way to the private server by this many seconds, each way: 0.00025
    /// adds half a millisecond to a round trip.
    #[arg(long, value_parser = parse_delay)]
    pub(super) link: Option<Duration>,
}

#[derive(Debug, Args)]
pub(super) struct WaitingArgs {
    /// Tasks that wait.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) waiters: u32,
    /// Time that they wait.
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    pub(super) seconds: Duration,
    /// Folder of the database [default: the system's folder for temporary files].
    #[arg(long)]
    pub(super) dir: Option<PathBuf>,
    /// Prints the figures as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Measure {
    /// Returns the options of the measurement. Each lock is held for `hold`.
    pub(super) fn options(&self, hold: Duration) -> Options {
        Options {
            concurrency: self.concurrency,
            duration: self.seconds,
            rounds: self.rounds,
            warmup: self.warmup,
            hold,
            ..Options::default()
        }
    }
}

impl HandOverArgs {
    /// Returns the processes and tasks that compete for the lock, if `--processes` was given.
    pub(super) fn contention(&self) -> Option<hand_over::Contention> {
        let tasks = self.tasks;
        self.processes.map(|processes| hand_over::Contention {
            processes,
            tasks,
            hold: if self.idle { Duration::MAX } else { self.hold },
            mode: self.mode,
        })
    }
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
