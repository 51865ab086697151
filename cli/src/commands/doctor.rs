//! `distlock doctor`: checks each setting of a store that a promise rests on.

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use distlock::{Verdict, presentable};
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    exit::{Failure, Outcome, code},
    output,
};

/// Check the store's health and settings, and say what to fix.
///
/// It looks at every setting that a promise rests on.
/// Exit code 1 says that a promise does not hold as the store is configured now.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {}

const EXAMPLES: &str = "\
Examples:
  distlock doctor
  distlock doctor --backend sqlite:/var/lib/distlock/distlock.db --json";

impl Doctor {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let target = context.target(Sharing::Optional)?;
        let store = distlock::open(&target).await?;
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

fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Unknown => "unknown",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    }
}
