//! Measures raw drivers and other libraries on the same stores, as `distlock-lab peers` does.

use std::time::Duration;

use anyhow::{Context as _, Result};
use distlock_cli::program::Outcome;
use distlock_report::{Report, Workload, compare::PeerRun};

use super::{
    competing::report_of_process,
    plan::{ComparisonRun, within},
    stores::{Server, StoreUnderTest},
};

/// The environment variable that gives the URL of the server to the program.
const SERVER_VARIABLE: &str = "DISTLOCK_PEERS_SERVER";

/// The workloads, each with its number of callers.
const RUNS: [(Workload, u32); 3] = [
    (Workload::Uncontended, 1),
    (Workload::Independent, 32),
    (Workload::Independent, 256),
];

impl ComparisonRun {
    /// Measures raw drivers and other libraries, store by store.
    pub(super) async fn measure_peers(&mut self) -> Outcome<()> {
        for candidate in self.stores.iter().filter(|store| store.is_alive()) {
            let Some(part) = part_for(candidate) else {
                continue;
            };
            for (workload, callers) in RUNS {
                let what = format!("{workload} with {callers}");
                self.progress.begin_part(&format!(
                    "measuring other ways: {}, {what}",
                    candidate.key()
                ));
                let name = format!("peers.{}.{workload}-{callers}.json", candidate.key());
                let report = match self.kept.load::<Report>(&name) {
                    Some(kept) => Ok(kept),
                    None => run_part(&part, workload, callers, &self.plan).await,
                };
                let mut measured = PeerRun {
                    store: candidate.key().to_owned(),
                    workload: Some(workload),
                    callers: u64::from(callers),
                    figures: Vec::new(),
                    ratios: Vec::new(),
                    missing: None,
                };
                match report {
                    Ok(report) => {
                        self.kept.save(&name, &report)?;
                        measured.figures = report.figures;
                        measured.ratios = report.ratios;
                    }
                    Err(error) => {
                        let why = format!("{error:#}");
                        self.progress.print_note(&format!(
                            "no other ways on {} for {what}: {why}",
                            candidate.facts.name
                        ));
                        measured.missing = Some(why);
                    }
                }
                self.peers.push(measured);
            }
        }
        Ok(())
    }
}

/// The part of `distlock-lab peers` for one product, and the server of that product.
struct Part {
    name: &'static str,
    /// The URL or the addresses of the server. A URL may hold a password, and every user of the
    /// machine can read arguments, so this value is passed in an environment variable.
    server: Option<String>,
}

/// The part of `distlock-lab peers` that measures a store; `None` if there is none.
fn part_for(store: &StoreUnderTest) -> Option<Part> {
    let part = |name, server| Some(Part { name, server });
    match &store.server {
        Some(Server::Redis(it)) => part("redis", Some(it.url())),
        Some(Server::MySql(it)) => part("mysql", Some(it.url())),
        Some(Server::Postgres(it)) => part("postgres", Some(it.url())),
        Some(Server::ZooKeeper(it)) => part("zookeeper", Some(it.servers())),
        None if store.is_ours && store.facts.product == "sqlite" => part("sqlite", None),
        None if store.is_ours && store.facts.product == "memory" => part("memory", None),
        // The program knows single servers only, and it must not touch a server that this run did
        // not start.
        Some(
            Server::RedisSentinels(_)
            | Server::RedisCluster(_)
            | Server::Quorum(..)
            | Server::Ring(_)
            | Server::Served(_),
        )
        | None => None,
    }
}

/// Runs one part of `distlock-lab peers` as a process of this very program, and reads the report.
async fn run_part(
    part: &Part,
    workload: Workload,
    callers: u32,
    plan: &super::plan::Plan,
) -> Result<Report> {
    let seconds = (plan.time * plan.rounds).as_secs_f64().to_string();
    let (callers, rounds) = (callers.to_string(), plan.rounds.to_string());
    let arguments = [
        "peers",
        part.name,
        "--workload",
        workload.as_str(),
        "--concurrency",
        &callers,
        "--seconds",
        &seconds,
        "--rounds",
        &rounds,
        "--warmup",
        "0.05",
    ];
    let server = part.server.as_deref();
    let variable = server.map(|server| (SERVER_VARIABLE, server));
    within(
        Duration::from_secs(120),
        report_of_process(&arguments, variable),
    )
    .await
    .context("distlock-lab peers took longer than 120 s")?
}
