//! Elections over real servers: eight processes are candidates in each election. The processes are
//! killed or stopped one after the other. No step of a stale leader may be accepted, and two
//! candidates must never lead at the same time.
//!
//! Run `scripts/soak election` for a long run.

mod verdict;
mod worker;

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use distlock::{Clock as _, SystemClock};
use distlock_harness::{
    Process, Signal,
    servers::{postgres::PostgresServer, redis::RedisServer, zookeeper::ZooKeeper},
};
use fastrand::Rng;
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

use crate::{
    verdict::{Paused, Verdict},
    worker::{TTL, Work, now_us},
};

/// The number of processes. Each process is a candidate in every election.
const PROCESSES: usize = 8;
/// The time between two faults.
const PAUSE: Duration = Duration::from_millis(150);

/// The size of a run: small, unless the environment asks for more.
struct Play {
    elections: usize,
    kills: usize,
    stops: usize,
    restarts: usize,
    changes: usize,
    seed: u64,
}

impl Play {
    fn new() -> Result<Self> {
        let number = |name: &str, default: u64| match env::var(name) {
            Ok(text) => text.parse().with_context(|| format!("{name} is {text:?}")),
            Err(_) => Ok(default),
        };
        let count = |name: &str, default: u64| {
            Ok::<_, anyhow::Error>(usize::try_from(number(name, default)?)?)
        };
        Ok(Self {
            elections: count("DISTLOCK_ELECTIONS", 10)?,
            kills: count("DISTLOCK_ELECTION_KILLS", 15)?,
            stops: count("DISTLOCK_ELECTION_STOPS", 15)?,
            restarts: count("DISTLOCK_ELECTION_RESTARTS", 1)?,
            changes: count("DISTLOCK_ELECTION_CHANGES", 100)?,
            seed: number("DISTLOCK_SEED", fastrand::u64(..))?,
        })
    }
}

fn main() -> Result<ExitCode> {
    if let Some(work) = Work::from_environment()? {
        return worker::run(&work).map(|()| ExitCode::SUCCESS);
    }
    let trials = vec![
        trial("one_candidate_leads_despite_kills_on_sqlite", || {
            let folder = tempfile::tempdir()?;
            let url = format!("sqlite:{}", folder.path().join("seats.db").display());
            play(&url, || Ok(()))
        }),
        trial("one_candidate_leads_despite_kills_on_redis", || {
            let mut server = RedisServer::start()?;
            play(&server.url(), || server.restart())
        }),
        trial("one_candidate_leads_despite_kills_on_postgres", || {
            let mut server = PostgresServer::start()?;
            play(&server.url(), || server.restart())
        }),
        trial("one_candidate_leads_despite_kills_on_zookeeper", || {
            let mut server = ZooKeeper::start()?;
            let url = format!("zookeeper://{}?session_timeout=2s", server.servers());
            play(&url, || {
                let leader = server.leader()?;
                server.kill(leader);
                server.restart(leader)
            })
        }),
    ];
    Ok(libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}

fn trial(name: &str, play: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, || play().map_err(|error| format!("{error:#}").into()))
}

/// Runs the elections over one store, and checks the log. `restart` kills the store and starts it
/// again.
fn play(url: &str, restart: impl FnMut() -> Result<()>) -> Result<()> {
    let play = Play::new()?;
    let folder = tempfile::tempdir()?;
    let paused = Runtime::new()?.block_on(inject_faults(url, &play, folder.path(), restart))?;
    let log = fs::read_to_string(folder.path().join("log"))?;
    let verdict = Verdict::of(&log, &paused)?;
    print_result(&format!("seed {}: {verdict}", play.seed));
    verdict.check()?;
    ensure!(
        verdict.changes >= play.changes,
        "seed {}: too few changes: {verdict}",
        play.seed
    );
    Ok(())
}

/// Kills and stops candidates. Returns the start and the end of each pause.
async fn inject_faults(
    url: &str,
    play: &Play,
    folder: &Path,
    mut restart: impl FnMut() -> Result<()>,
) -> Result<Vec<Paused>> {
    let mut rng = Rng::with_seed(play.seed);
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(start(url, play, folder)?);
    }
    let mut paused = Vec::new();
    let (mut kills, mut stops) = (play.kills, play.stops);
    let between_restarts = (kills + stops) / (play.restarts + 1) + 1;
    let mut restarted = 0;
    // The stopped processes, each with the end of its pause in microseconds.
    let mut still: Vec<(usize, u64)> = Vec::new();
    while kills + stops > 0 || !still.is_empty() {
        SystemClock.sleep(PAUSE).await;
        for (victim, until_us) in std::mem::take(&mut still) {
            if now_us() < until_us {
                still.push((victim, until_us));
                continue;
            }
            processes[victim].signal(Signal::CONT)?;
            paused.push(Paused::goes_on(processes[victim].id(), now_us()));
        }
        let done = play.kills + play.stops - kills - stops;
        if done > 0 && done.is_multiple_of(between_restarts) && restarted < done {
            restarted = done;
            paused.push(Paused::from(verdict::SERVER, now_us()));
            tokio::task::block_in_place(&mut restart).context("restart the server")?;
            paused.push(Paused::goes_on(verdict::SERVER, now_us()));
        }
        let victim = rng.usize(..PROCESSES);
        if still.iter().any(|(still, _)| *still == victim) || kills + stops == 0 {
            continue;
        }
        let running = processes[victim].is_running()?;
        ensure!(
            running,
            "a process ended by itself: {}",
            processes[victim].output()
        );
        let id = processes[victim].id();
        paused.push(Paused::from(id, now_us()));
        if rng.usize(..kills + stops) < kills {
            kills -= 1;
            processes[victim].signal(Signal::KILL)?;
            processes[victim] = start(url, play, folder)?;
        } else {
            stops -= 1;
            processes[victim].signal(Signal::STOP)?;
            // Most pauses are longer than the lease, and some are shorter.
            let time = TTL.mul_f64(rng.f64() * 2.0 + 0.5);
            still.push((victim, now_us() + u64::try_from(time.as_micros())?));
        }
    }
    // Waits until the effects of the last fault have ended and the wanted number of terms has
    // begun.
    let log = folder.join("log");
    loop {
        SystemClock.sleep(TTL * 2).await;
        let begun = fs::read_to_string(&log)?
            .lines()
            .filter(|it| it.starts_with("begins"))
            .count();
        if begun >= play.changes {
            return Ok(paused);
        }
    }
}

fn start(url: &str, play: &Play, folder: &Path) -> Result<Process> {
    let work = Work {
        url: url.to_owned(),
        folder: folder.to_owned(),
        elections: play.elections,
    };
    let mut command = Command::new(env::current_exe()?);
    Process::spawn(work.into_environment(&mut command)).context("start a worker")
}

/// Prints a result into the output of a test that passes.
#[expect(clippy::print_stdout, reason = "the test runner shows it")]
fn print_result(result: &str) {
    println!("{result}");
}
