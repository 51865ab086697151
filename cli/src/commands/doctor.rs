//! `distlock doctor`: checks all settings of a store that a promise depends on.

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use distlock::{
    Capabilities, Health, Reach, Store, Target, Verdict,
    backend::{Driver, DriverOption, presentable},
};
use serde_json::{Value, json};

use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Failure, Outcome, code},
    output,
};

/// Check the store's health and settings, and say what to fix.
///
/// It looks at every setting that a promise rests on. If the records have a store of their own, it
/// looks at both stores.
/// Exit code 1 says that a promise does not hold as the store is configured now.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// List the backends of this tool and the options of their URLs instead
    #[arg(long)]
    backends: bool,
}

const EXAMPLES: &str = "\
Examples:
  distlock doctor
  distlock doctor --backend sqlite:/var/lib/distlock/distlock.db --json
  distlock doctor --backends";

impl Doctor {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        if self.backends {
            return list_backends(context.wants_json());
        }
        let target = context.target(Sharing::Optional)?;
        let store = drivers::open(&target).await?;
        let both = match store.records_store() {
            Some(records) => {
                let (locks, records) = tokio::join!(examine(&store), examine(&records));
                locks.and_then(|locks| Ok((locks, Some(records?))))
            }
            None => examine(&store).await.map(|locks| (locks, None)),
        };
        store.close().await;
        let (locks, mut records) = both?;
        if let Some(records) = &mut records {
            compare_reaches(&locks, records);
        }
        let records = target.records().zip(records);
        let verdict = locks.verdict();
        let verdict = records
            .as_ref()
            .map_or(verdict, |(_, records)| records.verdict().max(verdict));
        let printed = if context.wants_json() {
            let mut result = locks.as_json(&target);
            result["verdict"] = json!(verdict);
            if let Some((target, records)) = &records {
                result["records"] = records.as_json(target);
            }
            output::print_json(&result)
        } else {
            match &records {
                None => locks.print("", &target),
                Some((other, records)) => locks
                    .print("Locks: ", &target)
                    .and_then(|()| output::print_line(""))
                    .and_then(|()| records.print("Records: ", other)),
            }
        };
        printed.or_else(Failure::ignore_closed_pipe)?;
        Ok(if verdict == Verdict::Fail {
            code::FAILED
        } else {
            code::OK
        })
    }
}

/// What was found at one store.
struct Examined {
    health: Health,
    capabilities: Capabilities,
}

/// Checks the locks of a store. Their settings are those of its records too.
async fn examine(store: &Store) -> distlock::Result<Examined> {
    let locker = store.locker();
    Ok(Examined {
        health: locker.health().await?,
        capabilities: locker.capabilities().clone(),
    })
}

/// Warns if more processes can share the records than can share the locks.
fn compare_reaches(locks: &Examined, records: &mut Examined) {
    let (of_locks, of_records) = (locks.capabilities.reach, records.capabilities.reach);
    if of_locks < of_records {
        let who = match of_locks {
            Reach::Process => "one process",
            _ => "the processes of one host",
        };
        records.health.found(
            "shared locks",
            Verdict::Warn,
            format!(
                "the locks are those of {who}, and others can change these records without them: \
                 let nobody else use the records, or put the locks in a store that all share"
            ),
        );
    }
}

impl Examined {
    /// The worst verdict of all checks.
    fn verdict(&self) -> Verdict {
        let worst = self.health.findings.iter().map(|finding| finding.verdict);
        worst.max().unwrap_or(Verdict::Pass)
    }

    fn as_json(&self, target: &Target) -> Value {
        json!({
            "backend": target.masked_url(),
            "server": self.health.server,
            "epoch": self.health.epoch,
            "verdict": self.verdict(),
            "findings": self.health.findings,
            "capabilities": self.capabilities,
        })
    }

    /// Prints a line that names the store, after `what` it keeps, and the table of the checks.
    fn print(&self, what: &str, target: &Target) -> Outcome<()> {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(["VERDICT", "CHECK", "DETAIL"]);
        for finding in &self.health.findings {
            let detail = presentable(&finding.detail);
            table.add_row([verdict_word(finding.verdict), finding.check, &detail]);
        }
        let server = format!("{what}{} at {}", self.health.server, target.masked_url());
        output::print_line(presentable(&server))?;
        output::print_line(table.trim_fmt())
    }
}

/// Prints the descriptions that the drivers of this tool give.
fn list_backends(json: bool) -> Outcome {
    let known = drivers::registry().drivers();
    let printed = if json {
        known.iter().try_for_each(|driver| {
            let urls = driver.urls().iter();
            let options = all_options(driver);
            output::print_json(&json!({
                "name": driver.name(),
                "schemes": driver.schemes(),
                "urls": urls
                    .map(|url| json!({"form": url.form, "store": url.store}))
                    .collect::<Vec<_>>(),
                "options": options
                    .map(|it| json!({"name": it.name, "help": it.help, "default": it.default}))
                    .collect::<Vec<_>>(),
            }))
        })
    } else {
        known.iter().try_for_each(|driver| {
            output::print_line(driver.name())?;
            for url in driver.urls() {
                output::print_line(format!("  {}: {}", url.form, url.store))?;
            }
            let mut table = Table::new();
            table
                .load_style(presets::NOTHING)
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_header(["  OPTION", "VALUES", "DEFAULT"]);
            for option in all_options(driver) {
                table.add_row([&format!("  {}", option.name), option.help, option.default]);
            }
            output::print_line(table.trim_fmt())?;
            output::print_line("")
        })
    };
    printed.or_else(Failure::ignore_closed_pipe)?;
    Ok(code::OK)
}

/// The options of a driver and the option that all drivers have, each option once.
fn all_options(driver: &dyn Driver) -> impl Iterator<Item = &DriverOption> {
    const COMMON: DriverOption = DriverOption::CONNECT_TIMEOUT;
    let own = driver.options();
    let common = [&COMMON].into_iter().filter(|it| !own.contains(it));
    own.iter().chain(common)
}

/// A verdict in the table.
fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Unknown => "unknown",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    }
}
