//! Measures everything, in the order of the report.

use std::{path::Path, time::Duration};

use distlock::Target;
use distlock_cli::program::{Failure, Outcome, Progress, code};
use distlock_report::{Comparison, compare::About};

use super::{
    command::Compare,
    cpu::Loads,
    files::{SampleFolder, make_folder, write_report},
    plan::{ComparisonRun, Effort, Plan, within},
    stores::{self, StoreToSpawn, StoreUnderTest, make_keys_unique},
};

/// Measures, writes the report, and returns the data of the report. Dropping the future ends every
/// server that it started.
pub(crate) async fn measure(wanted: &Compare, targets: &[Target]) -> Outcome<Comparison> {
    // The load is read before this run itself keeps the machine busy.
    let (machine, busy) = (distlock_report::machine(), distlock_report::load_warning());
    make_folder(&wanted.out)?;
    let folder = tempfile::Builder::new()
        .prefix("distlock-compare-")
        .tempdir()?;
    let plan = Plan::new(wanted.effort());
    let experiments = Plan::experiments();
    let progress = Progress::start();
    progress.begin_part("starting and opening the stores");
    let stores = open_stores(targets, &wanted.spawn, folder.path()).await?;
    let about_stores = stores
        .iter()
        .map(|it| (it.key().to_owned(), it.facts.server.clone()))
        .collect();
    let kept = SampleFolder::open(&wanted.out, &plan, about_stores)?;
    let mut run = ComparisonRun {
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
    run.progress
        .set_expected(run.count_steps(experiments.len()));
    run.check_properties().await?;
    run.measure_workloads(&experiments).await?;
    run.measure_wake_ups().await?;
    run.measure_waiting().await?;
    run.measure_competition().await?;
    run.measure_idle().await?;
    run.measure_kick_out().await?;
    run.measure_idle_sessions().await?;
    run.measure_counters().await?;
    run.measure_caches().await?;
    run.measure_traffic().await?;
    run.measure_memory().await?;
    if wanted.peers {
        run.measure_peers().await?;
    }
    run.run_scenarios().await?;
    run.progress.finish();
    let comparison = Comparison {
        about: describe_run(&run.plan, machine, busy),
        stores: run.stores.iter().map(|it| it.facts.clone()).collect(),
        figures: run.figures,
        missing: run.missing,
        scenarios: run.scenarios,
        peers: run.peers,
        loads: run.loads.into_rounds(),
    };
    write_report(&wanted.out, &comparison)?;
    run.kept.finish()?;
    for candidate in run.stores {
        within(Duration::from_secs(10), candidate.store.close()).await;
    }
    Ok(comparison)
}

/// Opens the stores that were given by URL, and starts the others. Servers start side by side.
async fn open_stores(
    targets: &[Target],
    spawn: &[StoreToSpawn],
    folder: &Path,
) -> Outcome<Vec<StoreUnderTest>> {
    let mut all = Vec::new();
    for target in targets {
        let setup = format!("given as {}", target.masked_url());
        all.push(
            stores::open_store(target.clone(), setup)
                .await
                .map_err(|error| unavailable(&error))?,
        );
    }
    let starting = spawn.iter().map(|what| stores::spawn_store(*what, folder));
    let started = futures_util::future::try_join_all(starting).await;
    all.extend(started.map_err(|error| unavailable(&error))?);
    make_keys_unique(&mut all);
    Ok(all)
}

/// The failure for a store that cannot be opened.
fn unavailable(error: &anyhow::Error) -> Failure {
    Failure::new(code::UNAVAILABLE, format!("{error:#}"))
}

/// Describes the run for the report.
fn describe_run(plan: &Plan, machine: Vec<(String, String)>, busy: Option<String>) -> About {
    let mut remarks: Vec<String> = busy.into_iter().collect();
    if plan.effort != Effort::Full {
        remarks.push(
            "A quick run: short rounds and fewer cases. Good for orders of magnitude, not for a \
            tenth more or less."
                .to_owned(),
        );
    }
    if cfg!(debug_assertions) {
        remarks.push(
            "Measured with a development build, whose client side is slower than a release \
            build's."
                .to_owned(),
        );
    }
    let words: Vec<String> = std::env::args()
        .skip(1)
        .map(|word| distlock::config::mask(&word))
        .collect();
    About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: format!("distlock-lab {}", words.join(" ")),
        date: format!("{:.0}", jiff::Timestamp::now()),
        quick: plan.effort != Effort::Full,
        rounds: plan.rounds,
        machine,
        remarks,
    }
}
