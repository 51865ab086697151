//! `distlock conformance`: runs the conformance suite against the user's own store.

use std::{future::Future, pin::Pin, time::Duration};

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use distlock::{Reach, Store, Target, config::Config};
use distlock_conformance::{CaseResult, Options, Status, Subject, Workers, cases, run_with};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Failure, Outcome, code},
    output::{self, whole_millis},
};

/// Run the conformance suite against a store.
///
/// It may run on a store in use: every case takes locks and records with names of its own that
/// start with conformance-, and removes what it left. Exit code 1 says that a promise was broken.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Conformance {
    /// Only cases whose names contain this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Test locks over the store's records instead of the store's own, as kv+URL does
    #[arg(long)]
    over_records: bool,
    /// Only name the cases
    #[arg(long)]
    list: bool,
}

const EXAMPLES: &str = "\
Examples:
  distlock conformance --backend sqlite:/var/lib/distlock/distlock.db
  distlock conformance --backend memory: --filter fencing::
  distlock conformance --json | jq -c 'select(.status == \"failed\")'";

impl Conformance {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let target = context.target(Sharing::Optional)?;
        let subject = self.connect_subject(&target).await?;
        let filter = self.filter.as_deref();
        let chosen: Vec<_> = cases(&subject)
            .into_iter()
            .filter(|case| filter.is_none_or(|text| case.name.contains(text)))
            .collect();
        if chosen.is_empty() {
            return Err(Failure::usage(format!(
                "no case has \"{}\" in its name: --list names them all",
                filter.unwrap_or_default().escape_debug()
            )));
        }
        if self.list {
            for case in chosen {
                if context.wants_json() {
                    output::print_json(&json!({
                        "name": case.name,
                        "property": case.property,
                        "promise": case.promise,
                    }))?;
                } else {
                    output::print_line(format!("{}: {}", case.name, case.promise))?;
                }
            }
            return Ok(code::OK);
        }
        let bar = progress_bar(chosen.len());
        let options = Options::default().filter(filter);
        let results = run_with(&subject, &options, |result| {
            bar.inc(1);
            bar.set_message(result.name);
        })
        .await;
        bar.finish_and_clear();
        let printed = if context.wants_json() {
            results.iter().try_for_each(|result| {
                output::print_json(&json!({
                    "name": result.name,
                    "property": result.property,
                    "promise": result.promise,
                    "status": result.status,
                    "duration_ms": whole_millis(result.duration),
                    "detail": result.detail,
                }))
            })
        } else {
            output::print_line(result_table(&results).trim_fmt())
        };
        printed.or_else(Failure::ignore_closed_pipe)?;
        let count = |status| {
            results
                .iter()
                .filter(|result| result.status == status)
                .count()
        };
        let failed = count(Status::Failed);
        output::print_message(format_args!(
            "{} on {}: {} passed, {failed} failed, {} not applicable",
            subject.name(),
            target.masked_url(),
            count(Status::Passed),
            count(Status::NotApplicable)
        ));
        // A case that did not run must not look like one that passed.
        if failed > 0 || results.len() != chosen.len() {
            return Ok(code::FAILED);
        }
        Ok(code::OK)
    }

    /// Connects the suite to the store.
    async fn connect_subject(&self, target: &Target) -> Outcome<Subject> {
        let target = match self.over_records {
            true => target.clone().wrapped_by("kv+"),
            false => target.clone(),
        };
        let first = drivers::open(&target).await?;
        let capabilities = first.backend().capabilities().clone();
        let within_process = capabilities.reach == Reach::Process;
        // A private store (`memory:?private=true`) cannot be opened twice: a second `open` would
        // give an empty store.
        let shared = if within_process {
            Some(first)
        } else {
            first.close().await;
            None
        };
        let workers = workers(&target)?;
        let client = move || open_client(target.clone(), shared.clone());
        let subject = Subject::connect(capabilities.backend, client).await?;
        Ok(if within_process {
            subject
        } else {
            subject.with_workers(workers)
        })
    }
}

/// The way to start processes of this program that open this target.
pub fn workers(target: &Target) -> std::io::Result<Workers> {
    let program = std::env::current_exe()?;
    let args = [super::conformance_worker::NAME];
    // Empty means unset: a variable of the user's environment must not reach the workers.
    let records = target.records().map(Target::reveal_url).unwrap_or_default();
    Ok(Workers::new(program, args, target.reveal_url())
        .with_variable(Config::RECORDS_VARIABLE, records))
}

/// One more client that is being opened.
pub type OpeningClient = Pin<Box<dyn Future<Output = distlock::Result<Store>> + Send>>;

/// Opens one more independent client of the store.
pub fn open_client(target: Target, shared: Option<Store>) -> OpeningClient {
    Box::pin(async move {
        match shared {
            Some(store) => Ok(Store::new(
                store.backend().reopen().await?,
                store.records().reopen().await?,
            )),
            None => drivers::open(target).await,
        }
    })
}

/// A progress bar on standard error. It is shown only on a terminal.
fn progress_bar(cases: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(cases).unwrap_or(u64::MAX));
    if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {wide_bar} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

/// The results as a table.
fn result_table(results: &[CaseResult]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["CASE", "RESULT", "TIME", "DETAIL"]);
    for result in results {
        let status = match result.status {
            Status::Passed => "passed",
            Status::NotApplicable => "n/a",
            // This arm covers `Failed`, and any variant that is added later: an unknown result must
            // never count as passed.
            _ => "FAILED",
        };
        table.add_row([
            result.name,
            status,
            &format!("{:.2}s", result.duration.as_secs_f64()),
            result.detail.as_deref().unwrap_or_default(),
        ]);
    }
    table
}
