//! `distlock migrate`: creates the missing tables of a store.

use clap::Args;
use distlock::{Migrated, Target};
use serde_json::{Value, json};

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
/// stores that lack some of them. Records that have a store of their own get their tables there.
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
        let records = target.records().zip(migrated.records.as_deref());
        if context.wants_json() {
            let mut result = as_json(&target, &migrated);
            if let Some((target, migrated)) = records {
                result["records"] = as_json(target, migrated);
            }
            output::print_json(&result)?;
        } else {
            output::print_line(as_text(&target, &migrated))?;
            if let Some((target, migrated)) = records {
                output::print_line(as_text(target, migrated))?;
            }
        }
        Ok(code::OK)
    }
}

/// The result for one store.
fn as_json(target: &Target, migrated: &Migrated) -> Value {
    json!({
        "backend": target.masked_url(),
        "version": migrated.version,
        "applied": migrated.applied,
    })
}

/// The line about one store.
fn as_text(target: &Target, migrated: &Migrated) -> String {
    let at = target.masked_url();
    let at = at.trim_end_matches(':');
    match migrated.version {
        None => format!("{at}: this backend has no tables"),
        Some(version) if migrated.applied.is_empty() => {
            format!("{at}: the tables are up to date (version {version})")
        }
        Some(version) => format!(
            "{at}: applied {}; the tables have version {version} now",
            migrated.applied.join(", ")
        ),
    }
}
