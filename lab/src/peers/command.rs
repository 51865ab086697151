//! Runs one measurement of `distlock-lab peers`.

use std::{fmt::Display, path::PathBuf, time::Duration};

use clap::Args;
use distlock_harness::servers::mysql::Product;
use distlock_report::{Options, Report, Workload};
use serde::Serialize;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::{
    echo, hand_over, idle, memory, modes,
    options::{HandOverArgs, HeldArgs, Measure, Peer},
    quorum, redis, ring, server, sql, sqlite,
    target::{self, Target},
    waiting, zookeeper,
};

/// Measure the plain way of a store beside distlock, in turns.
///
/// The plain way is the statements that a program would send without this library, or another
/// library. The first arm is the plain way, or a lower bound where no plain way runs the workload.
/// Each ratio is the result of another arm divided by the result of the first arm.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PeersOptions {
    #[command(subcommand)]
    peer: Peer,
}

const EXAMPLES: &str = "\
Examples:
  distlock-lab peers sqlite --workload independent --concurrency 64
  distlock-lab peers redis --workload independent --concurrency 256
  distlock-lab peers redis --link 0.00025
  distlock-lab peers postgres --processes 4
  distlock-lab peers redis --modes --workload contended --hold 0.005
  distlock-lab peers sqlite --processes 4 --tasks 16 --mode read --hold 0.005
  distlock-lab peers quorum --members 5
  distlock-lab peers moving --names 400
  distlock-lab peers server --workload independent --concurrency 256
  distlock-lab peers held --names 1000000
  distlock-lab peers idle --waiters 100000 --connections 1000
  distlock-lab peers zookeeper --workload contended --hold 0.001
  distlock-lab peers waiting --waiters 64
  distlock-lab peers rows --rows 1000000";

/// Runs the workload on the plain way and on distlock.
pub(crate) fn run(options: PeersOptions) -> anyhow::Result<()> {
    match options.peer {
        Peer::Sqlite(args) => {
            let dir = temporary_folder(args.dir.as_ref())?;
            let (measure, path) = (&args.measure, dir.path());
            let (workload, options) = (measure.workload, measure.options(args.between.hold));
            if let Some(contention) = args.between.contention() {
                let url = format!("sqlite:{}", path.join("passed-on.db").display());
                return measure.print_hand_overs(&url, contention);
            }
            if args.between.modes {
                let url = format!("sqlite:{}", path.join("modes.db").display());
                return measure.print_modes(&args.between, &url);
            }
            let run = sqlite::run(workload, options, args.pool, path);
            measure.print(&measure.runtime()?.block_on(run)?)?;
        }
        Peer::Memory(measure) => {
            let run = memory::run(measure.workload, measure.options(Duration::ZERO));
            measure.print(&measure.runtime()?.block_on(run)?)?;
        }
        Peer::MySql(args) => {
            let product = if args.mysql {
                Product::MySql
            } else {
                Product::MariaDb
            };
            let target = match args.url {
                Some(url) => Target::existing_server(url),
                None => sql::start_mysql(product, args.way.link)?,
            };
            args.measure
                .run_on_server(&args.between, &target, sql::run_mysql)?;
        }
        Peer::Postgres(args) => {
            let target = match args.url {
                Some(url) => Target::existing_server(url),
                None => sql::start_postgres(args.way.link)?,
            };
            args.measure
                .run_on_server(&args.between, &target, sql::run_postgres)?;
        }
        Peer::Redis(args) => {
            let target = match args.url {
                Some(url) => Target::existing_server(url),
                None => redis::start_private(args.way.link)?,
            };
            args.measure
                .run_on_server(&args.between, &target, redis::run)?;
        }
        Peer::ZooKeeper(args) => {
            let target = match args.servers {
                Some(servers) => zookeeper::existing_server(&servers),
                None => zookeeper::start_private(args.dir, args.way.link)?,
            };
            args.measure
                .run_on_server(&args.between, &target, zookeeper::run)?;
        }
        Peer::Quorum(args) => {
            let (measure, delay) = (&args.measure, args.way.link);
            let options = measure.options(Duration::ZERO);
            let run = quorum::run(measure.workload, options, args.members, delay);
            measure.print(&measure.runtime()?.block_on(run)?)?;
        }
        Peer::Ring(args) => {
            let (measure, delay) = (&args.measure, args.way.link);
            let run = ring::run(measure.workload, measure.options(Duration::ZERO), delay);
            measure.print(&measure.runtime()?.block_on(run)?)?;
        }
        Peer::Moving(args) => {
            let run = ring::run_moves(args.names, args.seconds, args.rounds);
            print_figures(&Runtime::new()?.block_on(run)?, args.json)?;
        }
        Peer::Capacity(args) => {
            let run = ring::run_capacity(args.names, args.seconds, args.rounds);
            print_figures(&Runtime::new()?.block_on(run)?, args.json)?;
        }
        Peer::Server(args) => {
            let measure = &args.measure;
            if let Some(contention) = args.between.contention() {
                let server = server::start()?;
                return measure.print_hand_overs(&server.url(), contention);
            }
            if args.between.modes {
                let server = server::start()?;
                return measure.print_modes(&args.between, &server.url());
            }
            let run = server::run(measure.workload, measure.options(args.between.hold));
            measure.print(&measure.runtime()?.block_on(run)?)?;
        }
        Peer::Held(args) => print_held(&args)?,
        Peer::Idle(args) => {
            let run = idle::run(args.waiters, args.connections, args.seconds);
            let cost = Runtime::new()?.block_on(run)?;
            if args.json {
                println!("{}", cost.json());
            } else {
                print!("{cost}");
            }
        }
        Peer::Echo => Runtime::new()?.block_on(echo::serve())?,
        Peer::Waiting(args) => {
            let dir = temporary_folder(args.dir.as_ref())?;
            let run = waiting::run(args.waiters, args.seconds, dir.path());
            let cost = Runtime::new()?.block_on(run)?;
            if args.json {
                println!("{}", cost.json());
            } else {
                print!("{cost}");
            }
        }
        Peer::Link { server, delay } => target::run_process(server, Duration::from_micros(delay))?,
        Peer::PassOn => Runtime::new()?.block_on(hand_over::run_worker())?,
        Peer::Hold { file } => Runtime::new()?.block_on(waiting::run_holder(&file))?,
        Peer::Rows { rows } => print!("{}", memory::run_rows(rows)?),
    }
    Ok(())
}

impl Measure {
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
        if between.modes {
            return self.print_modes(between, target.url());
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

    /// Runs the workload in all modes of one store, and prints the report.
    fn print_modes(&self, between: &HandOverArgs, url: &str) -> anyhow::Result<()> {
        let run = modes::run(self.workload, self.options(between.hold), url);
        Ok(self.print(&self.runtime()?.block_on(run)?)?)
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

/// Prints figures as JSON or as text.
fn print_figures(figures: &(impl Serialize + Display), json: bool) -> serde_json::Result<()> {
    if json {
        println!("{}", serde_json::to_string(figures)?);
    } else {
        print!("{figures}");
    }
    Ok(())
}

/// Measures a server with few and one with many held locks, and prints the figures.
fn print_held(args: &HeldArgs) -> anyhow::Result<()> {
    let options = Options {
        concurrency: Some(args.concurrency),
        duration: args.seconds,
        rounds: 12,
        warmup: Duration::from_millis(50),
        ..Options::default()
    };
    let counts = [10, args.names];
    let (resident, report) = Runtime::new()?.block_on(server::run_held(counts, &options))?;
    if args.json {
        let figures = serde_json::json!({"held": counts, "resident": resident, "report": report});
        println!("{figures}");
    } else {
        for (held, bytes) in counts.into_iter().zip(resident) {
            println!("{held} held locks: {} MB", bytes / 1_000_000);
        }
        print!("{report}");
    }
    Ok(())
}

/// Creates a folder that is removed after the run.
fn temporary_folder(parent: Option<&PathBuf>) -> std::io::Result<TempDir> {
    parent.map_or_else(tempfile::tempdir, tempfile::tempdir_in)
}
