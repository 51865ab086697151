//! The options of `distlock-lab bench`, and the workloads of locks.

use std::{ffi::OsString, time::Duration};

use clap::{Args, builder::PossibleValuesParser, builder::TypedValueParser as _};
use distlock_report::{Options, Workload, bench};

use super::{
    cache, counters,
    takeover::{Takeover, TakeoverRounds},
};
use distlock_cli::program::{
    self, Context, Failure, Global, Outcome, Sharing, code, parse_lock_name, parse_wait,
};

/// Measure a backend: cycles per second, latencies, fairness.
///
/// One cycle is one acquire and one release. It says how many store operations each takes. The
/// locks have names that start with bench: and are released. The workload counters measures the
/// unread counters of distlock-recipes, whose records for the user bench:counters remain; cache
/// measures its guarded cache. The workload takeover measures the kick-out flow instead: gateway
/// nodes over the backend, and WebSocket clients.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    /// Workload
    #[arg(
        long,
        value_name = "WORKLOAD",
        default_value = "uncontended",
        value_parser = workload_parser()
    )]
    workload: Choice,
    /// How many callers [default: uncontended 1, independent 64, contended 16, handoff 2, cache 64,
    /// counters 16, takeover 64]
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    seconds: Duration,
    /// In how many rounds, whose median and spread are shown
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// The lock that contended and handoff take, the user of counters or the key of cache: runs
    /// with the same name compete for it
    #[arg(long, value_name = "NAME")]
    name: Option<OsString>,
    /// How long each lock is kept, which is part of the cycle
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_wait)]
    hold: Duration,
    #[command(flatten)]
    takeover: Takeover,
    // The flags of the tool, which name the store.
    #[command(flatten)]
    pub(crate) global: Global,
}

/// A workload of the measuring engine, or the workload `takeover`, which needs gateways.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Locks(Workload),
    Cache,
    Counters,
    Takeover,
}

const EXAMPLES: &str = "\
Workloads:
  uncontended   one caller, one name
  independent   many callers, each with a name of its own
  contended     many callers, one name
  handoff       as contended; timed is one caller's release until the next
                one's grant
  cache         many callers want one value of a cache in the store, with the
                guard and without: it is fresh for 200 ms and takes 20 ms to
                load; a cycle is one look
  counters      many callers change one user's unread counters, by every way
                that the store knows; a cycle is an increment, and after every
                fourth a clear
  takeover      many accounts, each of whose devices logs in where another one
                is logged in, on gateway nodes; timed is the new login until the
                old device was told and gone

Examples:
  distlock-lab bench --backend sqlite:/tmp/bench.db --workload independent
  distlock-lab bench --backend memory: --seconds 10 --json
  distlock-lab bench --backend redis://127.0.0.1 --workload handoff --hold 10ms
  distlock-lab bench --backend redis://127.0.0.1 --workload counters
  distlock-lab bench --backend redis://127.0.0.1 --workload cache
  distlock-lab bench --backend memory: --workload takeover --rate 200
  distlock-lab bench --backend redis://127.0.0.1 --workload takeover --processes
  distlock-lab bench --backend memory: --workload takeover --logins 100000
  distlock-lab bench --backend memory: --workload takeover --idle 10000
  distlock-lab bench --backend memory: --workload takeover --presence 100000 --seconds 60
  distlock-lab bench --backend memory: --workload takeover --flood 10000";

impl Bench {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        if context.has_several_backends() {
            return Err(Failure::usage(
                "the argument '--backend <URL>' cannot be used multiple times, except in compare",
            ));
        }
        let workload = match self.workload {
            Choice::Locks(workload) => workload,
            Choice::Cache => Workload::Cache,
            Choice::Counters => Workload::Counters,
            Choice::Takeover => {
                let flags = [
                    (self.name.is_some(), "--name"),
                    (!self.hold.is_zero(), "--hold"),
                ];
                if let Some((_, flag)) = flags.iter().find(|(given, _)| *given) {
                    return Err(Failure::usage(format!(
                        "{flag} is not for --workload takeover"
                    )));
                }
                let rounds = TakeoverRounds {
                    callers: self.concurrency,
                    time: self.seconds,
                    rounds: self.rounds,
                };
                return Box::pin(self.takeover.execute(rounds, context)).await;
            }
        };
        if let Some(flag) = self.takeover.first_given_flag() {
            return Err(Failure::usage(format!(
                "{flag} is for --workload takeover, not for {workload}"
            )));
        }
        let name = self.name.as_deref().map(parse_lock_name).transpose()?;
        let options = Options {
            concurrency: self.concurrency,
            duration: self.seconds,
            rounds: self.rounds,
            hold: self.hold,
            name: name.map(|name| name.to_string()),
            ..Options::default()
        };
        if matches!(workload, Workload::Cache | Workload::Counters) && !self.hold.is_zero() {
            return Err(Failure::usage(format!(
                "--hold is not for --workload {workload}"
            )));
        }
        options.checked_callers(workload)?;
        let report = if workload == Workload::Counters {
            counters::measure_store(context, &options).await?
        } else if workload == Workload::Cache {
            cache::measure_store(context, &options).await?
        } else {
            let store = context.open(Sharing::Optional).await?;
            program::print_message(format_args!(
                "measuring {workload} for {:.1} s",
                self.seconds.as_secs_f64()
            ));
            let report = bench(store.backend(), workload, &options).await?;
            store.close().await;
            report
        };
        let printed = if context.wants_json() {
            program::print_json(&report)
        } else {
            program::print_bytes(report.to_string().as_bytes())
        };
        printed.or_else(Failure::ignore_closed_pipe)?;
        if report.has_errors() {
            return Err(Failure::new(
                code::FAILED,
                "some cycles failed: the figures are of the others",
            ));
        }
        Ok(code::OK)
    }
}

/// Parses a workload, for clap.
fn workload_parser() -> impl clap::builder::TypedValueParser<Value = Choice> {
    let names = Workload::LOCKS.map(Workload::as_str);
    PossibleValuesParser::new(names.into_iter().chain(["cache", "counters", "takeover"])).try_map(
        |name| match name.as_str() {
            "cache" => Ok::<_, distlock::Error>(Choice::Cache),
            "counters" => Ok(Choice::Counters),
            "takeover" => Ok(Choice::Takeover),
            name => name.parse().map(Choice::Locks),
        },
    )
}

/// Parses a number of seconds, for clap.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| *seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| *time <= Duration::from_secs(24 * 3600))
        .ok_or_else(|| "a number of seconds above 0, up to a day, is needed".into())
}
