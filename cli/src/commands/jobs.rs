//! `distlock jobs`: shows the jobs of `run --every`, and makes one of them due.

use std::{ffi::OsString, time::Duration};

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use distlock::{Error, FencingToken, LockName, Store, backend::quote_for_shell};
use distlock_recipes::{Job, Outcome as End, Periodic};
use serde::Serialize;
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    exit::{Failure, Outcome, code},
    output::{self, format_rfc3339, whole_millis},
    values,
};

/// Show the jobs of run --every, or make one of them due now.
///
/// For each job: its last start, who started it, how that ended, and when the next
/// start is due. A job is on record since its first start.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Jobs {
    /// Only names that start with this
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: OsString,
    /// Forget the last start of this job: the next run --every runs it, on any
    /// host, and that start counts for a new period. A run that goes on is not
    /// stopped, and none begins beside it. Exit code 64 if no such job is on record
    #[arg(long, value_name = "NAME", conflicts_with = "prefix")]
    reset: Option<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  distlock jobs
  distlock jobs --json | jq -r 'select(.outcome != \"succeeded\").name'
  distlock jobs --reset report && distlock run report --every 1h -- ./report.sh

Outcomes:
  succeeded; failed; running; unknown: no end is on record, and the lock is not
  held by who started it (its host died, the lock was lost, or the store was
  away at the end)

JSON fields:
  name, started_at (RFC 3339), started_by, token, every_ms, outcome, due_at
  (RFC 3339), due_in_ms (0: now), one object a line; of a job whose record
  cannot be read: name, error; with --reset: name, reset";

/// The number of jobs in one page.
const PAGE_SIZE: u32 = 200;

impl Jobs {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let reset = self
            .reset
            .as_ref()
            .map(|name| values::parse_lock_name(name));
        let reset = reset.transpose()?;
        let prefix = self.prefix.into_string().map_err(|_| {
            Failure::usage("the prefix is not UTF-8: no lock name can start with it")
        })?;
        let store = context.open(Sharing::Required).await?;
        let done = match reset {
            None => print_jobs(&store, &prefix, context.wants_json()).await,
            Some(name) => match Periodic::new(&store) {
                Ok(periodic) => periodic.reset(&name).await.map_err(Failure::from),
                Err(error) => Err(error.into()),
            }
            .and_then(|was_on_record| {
                if !was_on_record {
                    return Err(Failure::usage(format!(
                        "no start of {name:?} is on record in this store, so it is due already: \
                         nothing was changed"
                    )));
                }
                if context.wants_json() {
                    output::print_json(&json!({"name": name.as_str(), "reset": true}))?;
                } else {
                    output::print_message(format_args!(
                        "{name:?} is due: the next `distlock run --every` runs it"
                    ));
                }
                Ok(())
            }),
        };
        store.close().await;
        done?;
        Ok(code::OK)
    }
}

/// A job in the form of `--json`.
#[derive(Serialize)]
struct JobJson<'a> {
    name: &'a str,
    started_at: Option<String>,
    started_by: &'a str,
    token: FencingToken,
    every_ms: u64,
    outcome: &'static str,
    due_at: Option<String>,
    due_in_ms: u64,
}

/// Prints all jobs. As JSON, each page is printed when it is read.
async fn print_jobs(store: &Store, prefix: &str, as_json: bool) -> Outcome<()> {
    let periodic = Periodic::new(store)?;
    let mut table = Table::new();
    // A terminal gets a table of its width, and a pipe gets a line for each job.
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["NAME", "STARTED", "BY", "OUTCOME", "EVERY", "DUE"]);
    let mut after = None;
    loop {
        let page = periodic.jobs(prefix, after.as_ref(), PAGE_SIZE).await?;
        let now = store.clock().wall();
        for job in &page {
            let job = match job {
                Ok(job) => job,
                Err(error) => {
                    print_unreadable(error, as_json)?;
                    continue;
                }
            };
            let [started, due] = [now.checked_sub(job.started), now.checked_add(job.due_in)]
                .map(|at| at.and_then(format_rfc3339));
            if as_json {
                output::print_json(&JobJson {
                    name: job.name.as_str(),
                    started_at: started,
                    started_by: &job.started_by,
                    token: job.token,
                    every_ms: whole_millis(job.every),
                    outcome: outcome(job),
                    due_at: due,
                    due_in_ms: whole_millis(job.due_in),
                })?;
                continue;
            }
            let due = if job.due_in.is_zero() {
                Some("now".to_owned())
            } else {
                due
            };
            table.add_row([
                job.name.as_str().escape_debug().to_string(),
                started.unwrap_or_else(|| "-".to_owned()),
                job.started_by.escape_debug().to_string(),
                outcome(job).to_owned(),
                format_period(job.every),
                due.unwrap_or_else(|| "-".to_owned()),
            ]);
        }
        match page.last() {
            Some(last) if page.len() == PAGE_SIZE as usize => {
                let name = last
                    .as_ref()
                    .map_or_else(Error::name, |job| Some(&job.name));
                after = name.cloned();
            }
            _ => break,
        }
    }
    if as_json {
        return Ok(());
    }
    if table.is_empty() {
        // Scripts expect no output for an empty list. A person needs to see which store was asked.
        output::print_message("no job of `distlock run --every` is on record in this store");
        return Ok(());
    }
    output::print_line(table.trim_fmt())?;
    Ok(())
}

/// Names a job whose record cannot be read.
fn print_unreadable(error: &Error, as_json: bool) -> Outcome<()> {
    let name = error.name().map_or("", LockName::as_str);
    if as_json {
        output::print_json(&json!({"name": name, "error": error.to_string()}))?;
    } else {
        output::print_message(format_args!(
            "warning: {error}: no host starts this job, until `distlock jobs --reset {}` removes \
             the record and makes the job due",
            quote_for_shell(name)
        ));
    }
    Ok(())
}

const fn outcome(job: &Job) -> &'static str {
    match job.outcome {
        End::Running => "running",
        End::Succeeded => "succeeded",
        End::Failed => "failed",
        _ => "unknown",
    }
}

/// Formats a period as `--every` takes it: `90s`, `15m`, `1h`, `7d`.
fn format_period(every: Duration) -> String {
    let millis = every.as_millis();
    for (unit, length) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
    ] {
        if millis >= length && millis.is_multiple_of(length) {
            return format!("{}{unit}", millis / length);
        }
    }
    format!("{millis}ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_shown_as_it_is_given() {
        for given in ["250ms", "90s", "15m", "1h", "36h", "7d"] {
            let period = values::parse_duration(given).unwrap();
            assert_eq!(format_period(period), given);
        }
    }
}
