//! The comparison: everything that measures, in the order of the report.
//!
//! | file | what is in it |
//! |---|---|
//! | `stores.rs` | the stores, opened or started |
//! | `plan.rs` | how much is measured |
//! | `rounds.rs` | interleaved rounds, and what is said when a store dies |
//! | `properties.rs` | what the conformance suite says about that very server |
//! | `waiting.rs`, `competing.rs`, `idle.rs`, `kickout.rs`, `recipes.rs` | what is measured beside the workloads |
//! | `client.rs` | bytes and memory |
//! | `failures.rs` | what is broken on purpose |
//! | `peers.rs` | raw drivers and other libraries, through `distlock-peers` |
//! | `cpu.rs` | what others take of the machine meanwhile |
//! | `kept.rs` | finished rounds, so that an interrupted run goes on |
//! | `machine.rs` | as its name says |

mod client;
mod competing;
mod cpu;
mod failures;
mod idle;
mod kept;
mod kickout;
mod peers;
mod plan;
mod properties;
mod recipes;
mod rounds;
mod stores;
mod waiting;
mod wire;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use distlock::{Target, path_excerpt};
use distlock_report::{
    Comparison,
    compare::{About, Figure, PeerRun, Scenario, ScenarioKind},
    render,
};

use self::{
    cpu::Loads,
    kept::Kept,
    plan::Plan,
    stores::{Candidate, distinguish},
};
pub(crate) use self::{plan::Effort, rounds::count, stores::Spawn};
use crate::{
    exit::{Failure, Outcome, code},
    progress::Progress,
};

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) targets: Vec<Target>,
    pub(crate) spawn: Vec<Spawn>,
    pub(crate) effort: Effort,
    pub(crate) peers: bool,
    pub(crate) out: PathBuf,
}

/// A run under way.
struct Run {
    plan: Plan,
    stores: Vec<Candidate>,
    kept: Kept,
    progress: Progress,
    figures: Vec<Figure>,
    missing: Vec<rounds::Missing>,
    scenarios: Vec<Scenario>,
    peers: Vec<PeerRun>,
    loads: Loads,
}

/// Measures, writes the report, and gives what is in it. Dropping the future ends every server it started.
pub(crate) async fn run(wanted: Wanted) -> Outcome<Comparison> {
    // Before this run is what keeps the machine busy.
    let (machine, busy) = (distlock_report::machine(), distlock_report::too_busy());
    make_folder(&wanted.out)?;
    let folder = tempfile::Builder::new()
        .prefix("distlock-compare-")
        .tempdir()?;
    let other_ways = wanted.peers.then(peers::program).transpose()?;
    let plan = Plan::new(wanted.effort);
    let experiments = Plan::experiments();
    let progress = Progress::new();
    progress.part("starting and opening the stores");
    let stores = gather(&wanted, folder.path()).await?;
    let about_stores = stores
        .iter()
        .map(|it| (it.key().to_owned(), it.facts.server.clone()))
        .collect();
    let kept = Kept::open(&wanted.out, &plan, about_stores)?;
    let mut run = Run {
        kept,
        progress,
        figures: Vec::new(),
        missing: Vec::new(),
        scenarios: Vec::new(),
        peers: Vec::new(),
        loads: Loads::default(),
        stores,
        plan,
    };
    run.progress.expect(run.steps(experiments.len()));
    run.properties().await?;
    run.workloads(&experiments).await?;
    run.wake_ups().await?;
    run.waiting().await?;
    run.competing().await?;
    run.idle().await?;
    run.kick_out().await?;
    run.idle_sessions().await?;
    run.counters().await?;
    run.caches().await?;
    run.traffic().await?;
    run.memory().await?;
    if let Some(program) = other_ways {
        run.peers(&program).await?;
    }
    run.failures().await?;
    rounds::fill_gaps(&mut run.figures, &run.stores, &run.missing);
    run.progress.finish();
    let comparison = Comparison {
        about: about(&run.plan, machine, busy),
        stores: run.stores.iter().map(|it| it.facts.clone()).collect(),
        figures: run.figures,
        scenarios: run.scenarios,
        peers: run.peers,
        loads: run.loads.rounds(),
    };
    write(&wanted.out, &comparison)?;
    run.kept.finish()?;
    for candidate in run.stores {
        rounds::within(std::time::Duration::from_secs(10), candidate.store.close()).await;
    }
    Ok(comparison)
}

impl Run {
    fn steps(&self, experiments: usize) -> usize {
        // Beside the workloads: wake-ups, processes that compete, the kick-out flow, counters, a cache and each number of idle
        // locks are rounds of their own.
        let rounds = (experiments + 5 + self.plan.idle.len()) * self.plan.rounds as usize;
        // Properties, waiting, idle sessions, bytes and memory: once each.
        (rounds + 5) * self.stores.len() + ScenarioKind::ALL.len()
    }
}

/// All stores, the given ones first, servers started side by side.
async fn gather(wanted: &Wanted, folder: &Path) -> Outcome<Vec<Candidate>> {
    let mut all = Vec::new();
    for target in &wanted.targets {
        let setup = format!("given as {}", target.masked_url());
        all.push(
            stores::open(target.clone(), setup)
                .await
                .map_err(|error| unavailable(&error))?,
        );
    }
    let starting = wanted.spawn.iter().map(|what| stores::spawn(*what, folder));
    let started = futures_util::future::try_join_all(starting).await;
    all.extend(started.map_err(|error| unavailable(&error))?);
    distinguish(&mut all);
    Ok(all)
}

fn unavailable(error: &anyhow::Error) -> Failure {
    Failure::new(code::UNAVAILABLE, format!("{error:#}"))
}

fn about(plan: &Plan, machine: Vec<(String, String)>, busy: Option<String>) -> About {
    let mut remarks: Vec<String> = busy.into_iter().collect();
    if plan.effort != Effort::Full {
        remarks.push(
            "A quick run: short rounds and fewer cases. Good for orders of magnitude, not for a tenth more or less.".to_owned(),
        );
    }
    if cfg!(debug_assertions) {
        remarks.push(
            "Measured with a development build, whose client side is slower than a release build's.".to_owned(),
        );
    }
    let words: Vec<String> = std::env::args()
        .skip(1)
        .map(|word| distlock::config::mask(&word))
        .collect();
    About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: format!("distlock {}", words.join(" ")),
        date: format!("{:.0}", jiff::Timestamp::now()),
        quick: plan.effort != Effort::Full,
        rounds: plan.rounds,
        machine,
        remarks,
    }
}

/// Makes the pages again from a report's data.
pub(crate) fn render_again(json: &Path, out: &Path) -> Outcome<Comparison> {
    let data = fs::read(json)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path_excerpt(json))))?;
    let comparison: Comparison = serde_json::from_slice(&data).map_err(|error| {
        Failure::usage(format!(
            "{} is not the report.json of a comparison: {error}",
            json.display()
        ))
    })?;
    make_folder(out)?;
    write(out, &comparison)?;
    Ok(comparison)
}

/// The folder for the report, before anything else is done.
fn make_folder(out: &Path) -> Outcome<()> {
    fs::create_dir_all(out).map_err(|error| {
        Failure::usage(format!(
            "cannot make the folder {}: {error}: choose another --out",
            out.display()
        ))
    })
}

/// Writes a file whole, and names it when that fails.
fn write_file(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    fs::write(path, content).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot write {}: {error}", path.display()),
        )
    })
}

/// The three forms of the report.
fn write(out: &Path, comparison: &Comparison) -> io::Result<()> {
    let mut json = serde_json::to_vec_pretty(comparison)?;
    json.push(b'\n');
    // What is rendered is what the file says, to the last digit.
    let comparison: &Comparison = &serde_json::from_slice(&json)?;
    write_file(&out.join("report.json"), json)?;
    write_file(&out.join("report.html"), render::html(comparison))?;
    write_file(&out.join("report.md"), render::markdown(comparison))?;
    write_file(
        &out.join("throughput.svg"),
        render::throughput_svg(comparison),
    )
}
