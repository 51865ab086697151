//! `distlock-lab bench --workload takeover`: measures the kick-out flow.

use std::{fmt::Display, time::Duration};

use clap::Args;
use distlock_report::Options;
use serde::Serialize;

use crate::takeover::{self, Flood, Load, SharedStore, Soak};
use distlock_cli::program::{
    self, Context, Failure, Outcome, Progress, Sharing, Signals, code, code_of_signal,
};

/// The number of accounts at the same time, by default.
const CALLERS: u32 = 64;

/// The logins per second while strangers connect, by default.
const LOGINS_PER_SECOND: f64 = 50.0;

/// The options that this workload shares with the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakeoverRounds {
    pub(super) callers: Option<u32>,
    pub(super) time: Duration,
    pub(super) rounds: u32,
}

/// Options that only the workload takeover has.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options of --workload takeover")]
pub(super) struct Takeover {
    /// Logins per second in all; latencies count from when each was due. As many as there can be
    /// unless set
    #[arg(long, value_name = "LOGINS", value_parser = parse_rate)]
    rate: Option<f64>,
    /// How many gateway nodes [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    nodes: Option<u32>,
    /// Run each node as a process of its own; store operations cannot be counted then
    #[arg(long)]
    processes: bool,
    /// Instead: so many logins of few accounts, many devices of each at once, checked for
    /// duplicates and for contests without a winner while they run; ends with 1 when one is found
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["rate", "idle"],
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    logins: Option<u64>,
    /// Instead: the memory of one node, a process of its own, with so many sessions that do nothing
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["rate", "processes", "nodes"],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    idle: Option<u32>,
    /// Instead: the cost of presence with so many sessions on one node: 100 changes a second
    /// without readers of its events and with 16 of them (--seconds in all), and questions about
    /// 1,000 accounts
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["rate", "processes", "nodes", "logins", "idle"],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    presence: Option<u32>,
    /// Instead: so many connections of strangers that drop at once, the store's calls meanwhile,
    /// and the latency of others' logins (50 a second unless --rate is given, for --seconds) with
    /// them and without them
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["processes", "nodes", "logins", "idle", "presence"],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    flood: Option<u32>,
}

impl Takeover {
    /// The first flag that was given and belongs to this workload only.
    pub(super) fn first_given_flag(&self) -> Option<&'static str> {
        [
            (self.rate.is_some(), "--rate"),
            (self.nodes.is_some(), "--nodes"),
            (self.processes, "--processes"),
            (self.logins.is_some(), "--logins"),
            (self.idle.is_some(), "--idle"),
            (self.presence.is_some(), "--presence"),
            (self.flood.is_some(), "--flood"),
        ]
        .into_iter()
        .find_map(|(given, flag)| given.then_some(flag))
    }

    pub(super) async fn execute(self, common: TakeoverRounds, context: &Context) -> Outcome {
        let callers = common.callers.unwrap_or(CALLERS);
        if !(1..=Options::MAX_CONCURRENCY).contains(&callers) {
            return Err(Failure::usage(format!(
                "concurrency {callers} is outside 1 to {}",
                Options::MAX_CONCURRENCY
            )));
        }
        if common.rounds == 0 || (common.time / common.rounds).as_millis() < 20 {
            return Err(Failure::usage(format!(
                "{:?} in {} rounds leaves less than 20 ms for one",
                common.time, common.rounds
            )));
        }
        program::raise_open_files();
        let target = context.target(Sharing::Optional)?;
        let store = program::open(target.clone()).await?;
        let shared_store = SharedStore::new(target, &store);
        if self.processes && !shared_store.is_shared_by_processes() {
            return Err(Failure::usage(format!(
                "the nodes cannot share {} from processes of their own: leave --processes out",
                shared_store.backend()
            )));
        }
        let mut signals = Signals::catch()?;
        // Dropping the future ends the nodes and their processes, so a signal drops it.
        let outcome = tokio::select! {
            outcome = Box::pin(self.measure(callers, common, &shared_store, context)) => outcome,
            signal = signals.next_ending() => {
                program::print_message("interrupted: removing the accounts of this run");
                shared_store.remove_records_within_limit().await;
                Ok(code_of_signal(signal.as_raw()))
            }
        };
        store.close().await;
        outcome
    }

    /// Runs the measurement that the flags ask for.
    async fn measure(
        self,
        callers: u32,
        common: TakeoverRounds,
        shared_store: &SharedStore,
        context: &Context,
    ) -> Outcome {
        let nodes = self.nodes.unwrap_or(2);
        if let Some(logins) = self.logins {
            let soak = Soak {
                logins,
                devices: callers,
                nodes,
                processes: self.processes,
            };
            return run_soak(shared_store, &soak, context).await;
        }
        if let Some(sessions) = self.idle {
            let progress = Progress::start();
            let report = takeover::measure_idle(shared_store, sessions, &progress).await;
            progress.finish();
            let report = report.map_err(unavailable)?;
            print_report(&report, context)?;
            return Ok(code::OK);
        }
        if let Some(sessions) = self.presence {
            let progress = Progress::start();
            let time = common.time;
            let report = takeover::measure_presence(shared_store, sessions, time, &progress).await;
            progress.finish();
            print_report(&report.map_err(unavailable)?, context)?;
            return Ok(code::OK);
        }
        if let Some(connects) = self.flood {
            let flood = Flood {
                connects,
                callers,
                rate: self.rate.unwrap_or(LOGINS_PER_SECOND),
                time: common.time,
            };
            return run_flood(shared_store, &flood, context).await;
        }
        let load = Load {
            callers,
            nodes,
            processes: self.processes,
            rate: self.rate,
            time: common.time,
            rounds: common.rounds,
        };
        program::print_message(format_args!(
            "measuring takeover on {} for {:.1} s, {nodes} nodes {}: from a login until it is \
             confirmed, and until the old client on the same node (local) or another one (cross) \
             is told and gone; from a message to its outcome",
            shared_store.backend(),
            common.time.as_secs_f64(),
            if self.processes {
                "in processes of their own"
            } else {
                "in one process"
            },
        ));
        let report = takeover::measure(shared_store, &load)
            .await
            .map_err(unavailable)?;
        print_report(&report, context)?;
        if report.has_errors() {
            return Err(Failure::new(
                code::FAILED,
                "some takeovers or messages failed: the figures are of the others",
            ));
        }
        Ok(code::OK)
    }
}

/// Runs contended logins and prints the report. Fails on a violation, and on a login that got no
/// valid answer.
async fn run_soak(shared_store: &SharedStore, soak: &Soak, context: &Context) -> Outcome {
    let report = takeover::run_soak(shared_store, soak)
        .await
        .map_err(unavailable)?;
    print_report(&report, context)?;
    if let Some(violation) = report.violations.first() {
        return Err(Failure::new(
            code::FAILED,
            format!("after {} logins: {violation}", report.logins),
        ));
    }
    if report.failed > 0 {
        return Err(Failure::new(
            code::FAILED,
            format!("{} logins had no answer that counts", report.failed),
        ));
    }
    Ok(code::OK)
}

/// Opens many connections of strangers, measures logins without and with the strangers, and prints
/// the report. Fails if the strangers caused a call to the store, or if a login failed.
async fn run_flood(shared_store: &SharedStore, flood: &Flood, context: &Context) -> Outcome {
    let report = takeover::measure_flood(shared_store, flood)
        .await
        .map_err(unavailable)?;
    print_report(&report, context)?;
    if report.store_calls > 0 {
        return Err(Failure::new(
            code::FAILED,
            format!("strangers caused {} calls to the store", report.store_calls),
        ));
    }
    if report.failed > 0 {
        return Err(Failure::new(
            code::FAILED,
            format!("{} logins failed beside the strangers", report.failed),
        ));
    }
    Ok(code::OK)
}

/// Prints a report as JSON or as text.
fn print_report(report: &(impl Serialize + Display), context: &Context) -> Outcome<()> {
    let printed = if context.wants_json() {
        program::print_json(report)
    } else {
        program::print_bytes(report.to_string().as_bytes())
    };
    printed.or_else(Failure::ignore_closed_pipe)
}

/// The failure for a measurement that could not be run.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unavailable(error: anyhow::Error) -> Failure {
    Failure::new(code::UNAVAILABLE, format!("{error:#}"))
}

/// Parses a rate of logins, for clap.
fn parse_rate(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|rate| (0.01..=1e6).contains(rate))
        .ok_or_else(|| "a number of logins per second, 0.01 to 1000000, is needed".into())
}
