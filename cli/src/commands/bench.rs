//! `distlock bench`: measure one backend.

use std::time::Duration;

use clap::{Args, builder::PossibleValuesParser, builder::TypedValueParser as _};
use distlock_report::{Options, Workload, bench};

use crate::{
    context::{Context, Sharing},
    exit::{Failure, Outcome, code},
    output,
};

/// Measure a backend: cycles per second, latencies, store operations per cycle, fairness.
///
/// One cycle is one acquire and one release. The locks it takes have names that start with bench: and are released.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    /// What is done
    #[arg(long, value_name = "WORKLOAD", default_value = "uncontended", value_parser = workloads())]
    workload: Workload,
    /// How many callers [default: uncontended 1, independent 64, contended 16, handoff 2]
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    seconds: Duration,
    /// In how many rounds, whose median and spread are shown
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
}

const EXAMPLES: &str = "\
Workloads:
  uncontended   one caller, one name
  independent   many callers, each with a name of its own
  contended     many callers, one name
  handoff       as contended; timed is one caller's release until the next one's grant

Examples:
  distlock bench --backend sqlite:/tmp/bench.db --workload independent --concurrency 64
  distlock bench --backend memory: --seconds 10 --json";

impl Bench {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let mut options = Options::default()
            .duration(self.seconds)
            .rounds(self.rounds);
        if let Some(callers) = self.concurrency {
            options = options.concurrency(callers);
        }
        options.callers(self.workload)?;
        let store = context.open(Sharing::Optional).await?;
        output::tell(format_args!(
            "measuring {} for {:.1} s",
            self.workload,
            self.seconds.as_secs_f64()
        ));
        let report = bench(store.lock(), self.workload, &options).await?;
        store.close().await;
        if context.json() {
            output::json(&report)?;
        } else {
            output::bytes(report.to_string().as_bytes())?;
        }
        if report.has_errors() {
            return Err(Failure::new(
                code::FAILED,
                "some cycles failed: the figures are of the others",
            ));
        }
        Ok(code::OK)
    }
}

fn workloads() -> impl clap::builder::TypedValueParser<Value = Workload> {
    PossibleValuesParser::new(Workload::ALL.map(Workload::as_str))
        .try_map(|name| name.parse::<Workload>())
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| *seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| *time <= Duration::from_secs(24 * 3600))
        .ok_or_else(|| "a number of seconds above 0, up to a day, is needed".into())
}
