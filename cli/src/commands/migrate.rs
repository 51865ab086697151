//! `distlock migrate`: creates the missing tables of a store.

use clap::Args;
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Outcome, code},
    output,
};

/// Create the missing tables of the store.
///
/// Connecting creates the tables where none is there (unless the backend option `migrate=false`
/// says otherwise), so this is for stores whose everyday credentials may not create tables, and for
/// stores that lack some of them.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Migrate {}

const EXAMPLES: &str = "\
Examples:
  distlock migrate --backend sqlite:/var/lib/distlock/distlock.db";

impl Migrate {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let target = context.target(Sharing::Optional)?;
        let migrated = drivers::migrate(&target).await?;
        if context.wants_json() {
            output::print_json(&json!({
                "backend": target.masked_url(),
                "version": migrated.version,
                "applied": migrated.applied,
            }))?;
        } else {
            let at = target.masked_url();
            let at = at.trim_end_matches(':');
            output::print_line(match migrated.version {
                None => format!("{at}: this backend has no tables"),
                Some(version) if migrated.applied.is_empty() => {
                    format!("{at}: the tables are up to date (version {version})")
                }
                Some(version) => format!(
                    "{at}: applied {}; the tables have version {version} now",
                    migrated.applied.join(", ")
                ),
            })?;
        }
        Ok(code::OK)
    }
}
