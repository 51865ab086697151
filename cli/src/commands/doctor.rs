//! `distlock doctor`: checks all settings of a store that a promise depends on.

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use distlock::{
    Verdict,
    backend::{Driver, DriverOption, presentable},
};
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Failure, Outcome, code},
    output,
};

/// Check the store's health and settings, and say what to fix.
///
/// It looks at every setting that a promise rests on.
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
        let health = store.locker().health().await;
        let capabilities = store.locker().capabilities().clone();
        store.close().await;
        let health = health?;
        let worst = health.findings.iter().map(|finding| finding.verdict).max();
        let verdict = worst.unwrap_or(Verdict::Pass);
        let printed = if context.wants_json() {
            output::print_json(&json!({
                "backend": target.masked_url(),
                "server": health.server,
                "epoch": health.epoch,
                "verdict": verdict,
                "findings": health.findings,
                "capabilities": capabilities,
            }))
        } else {
            let mut table = Table::new();
            table
                .load_style(presets::NOTHING)
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_header(["VERDICT", "CHECK", "DETAIL"]);
            for finding in &health.findings {
                let detail = presentable(&finding.detail);
                table.add_row([verdict_word(finding.verdict), finding.check, &detail]);
            }
            let server = format!("{} at {}", health.server, target.masked_url());
            output::print_line(presentable(&server))
                .and_then(|()| output::print_line(table.trim_fmt()))
        };
        printed.or_else(Failure::ignore_closed_pipe)?;
        Ok(if verdict == Verdict::Fail {
            code::FAILED
        } else {
            code::OK
        })
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
