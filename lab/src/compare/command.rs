//! `distlock-lab compare`: measures stores side by side and writes the report.

use std::path::{Path, PathBuf};

use clap::Args;
use distlock_cli::program::{
    self, Context, Failure, Global, Outcome, Signals, code, code_of_signal,
};
use distlock_report::Comparison;

use super::{files::render_again, measure::measure, plan::Effort, stores::StoreToSpawn};

/// Measure stores side by side and write the report.
///
/// Writes report.html (one file, nothing fetched), report.md, report.json and the raw samples into
/// a folder. Stores are given with --backend, which may be repeated, or started by the command.
/// Only started ones are broken on purpose. Interrupted, the same command goes on where it stopped.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Compare {
    /// Start private stores of these kinds: their servers must be installed
    #[arg(long, value_name = "STORE,..", value_delimiter = ',')]
    pub(super) spawn: Vec<StoreToSpawn>,
    /// Short rounds and fewer cases: a few minutes for all stores
    #[arg(long)]
    quick: bool,
    /// Measure raw drivers and other libraries too, as distlock-lab peers does
    #[arg(long)]
    pub(super) peers: bool,
    /// Too short to mean anything: for tests
    #[arg(long, hide = true, conflicts_with = "quick")]
    tiny: bool,
    /// Make the pages again from a report.json, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["spawn", "quick", "peers", "tiny"])]
    render: Option<PathBuf>,
    /// Folder for the report, made if absent
    #[arg(long, value_name = "DIR", default_value = "distlock-report")]
    pub(super) out: PathBuf,
    // The flags of the tool, which name the stores.
    #[command(flatten)]
    pub(crate) global: Global,
}

const EXAMPLES: &str = "\
Stores for --spawn:
  memory, sqlite, redis, redis-sentinel, redis-cluster, mariadb, mysql,
  postgres, zookeeper; quorum, of three Redis servers, quorum-dead and
  quorum-silent, with one member lost; ring, of three Redis servers;
  lock-server, with locks in its memory, and agents, two before one Redis
  server; kv+sqlite, kv+redis and so on measure locks over records

Examples:
  distlock-lab compare --quick --spawn sqlite,redis --out report
  distlock-lab compare --spawn memory,sqlite,postgres,zookeeper --out report
  distlock-lab compare --render report/report.json --out elsewhere
  distlock-lab compare --backend redis://10.0.0.5 \\
      --backend postgres://app@10.0.0.6/locks --out report";

impl Compare {
    pub(super) const fn effort(&self) -> Effort {
        match (self.tiny, self.quick) {
            (true, _) => Effort::Tiny,
            (_, true) => Effort::Quick,
            _ => Effort::Full,
        }
    }

    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        if let Some(json) = &self.render {
            let comparison = render_again(json, &self.out)?;
            print_report(&comparison, &self.out, context)?;
            return Ok(code::OK);
        }
        let targets = if self.spawn.is_empty() || context.has_backend_flag() {
            context.targets()?
        } else {
            Vec::new()
        };
        if targets.is_empty() && self.spawn.is_empty() {
            return Err(Failure::usage(
                "there is nothing to compare: name stores with --backend or start some with \
                --spawn",
            ));
        }
        let mut signals = Signals::catch()?;
        // Dropping the future removes servers and temporary files, so a signal drops it.
        let written = tokio::select! {
            written = Box::pin(measure(&self, &targets)) => written?,
            signal = signals.next_ending() => {
                program::print_message(
                    "interrupted: what was measured is kept, the same command goes on with it",
                );
                return Ok(code_of_signal(signal.as_raw()));
            }
        };
        print_report(&written, &self.out, context).or_else(Failure::ignore_closed_pipe)?;
        let died: Vec<_> = written
            .stores
            .iter()
            .filter(|store| store.stopped.is_some())
            .map(|store| store.name.as_str())
            .collect();
        if !died.is_empty() {
            return Err(Failure::new(
                code::FAILED,
                format!("{} died half-way: the report says so", died.join(", ")),
            ));
        }
        Ok(code::OK)
    }
}

/// Prints the report as JSON, or the path of its page.
fn print_report(comparison: &Comparison, out: &Path, context: &Context) -> Outcome<()> {
    if context.wants_json() {
        program::print_json(comparison)
    } else {
        program::print_line(out.join("report.html").display())
    }
}
