//! `distlock list`: prints the held locks.

use std::ffi::OsString;

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use distlock::{LockName, Store};
use distlock_recipes::shared::{self, SharedInfo};

use crate::{
    context::{Context, Sharing},
    exit::{Failure, Outcome, code},
    output::{self, LockJson, format_rfc3339, format_seconds},
    shared::{SharedJson, describe_shared, found_or_warned},
};

/// List the held locks, and then the shared locks, by name.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct List {
    /// Only names that start with this
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: OsString,
}

const EXAMPLES: &str = "\
Examples:
  distlock list
  distlock list order: --json     (one object a line, fields as in `inspect`)

The parts of shared locks, whose names begin with ~shared~/, are shown only
with that PREFIX";

/// The number of locks in one page. Locks are read in pages, so that a store with a million locks
/// prints its first ones at once.
const PAGE_SIZE: u32 = 500;

impl List {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let prefix = self.prefix.into_string().map_err(|_| {
            Failure::usage("the prefix is not UTF-8: no lock name can start with it")
        })?;
        let store = context.open_to_show(Sharing::Required).await?;
        let listed = print_locks(&store, &prefix, context.wants_json()).await;
        store.close().await;
        listed?;
        Ok(code::OK)
    }
}

/// Prints all locks. As JSON, each page is printed when it is read.
async fn print_locks(store: &Store, prefix: &str, as_json: bool) -> Outcome<()> {
    let locker = store.locker();
    let shows_parts = prefix.starts_with(LockName::RESERVED);
    let mut table = Table::new();
    // A terminal gets a table of its width, and a pipe gets a line for each lock.
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["NAME", "KIND", "HOLDER", "TOKEN", "SINCE", "EXPIRES IN"]);
    let mut after = None;
    loop {
        let page = locker.list_page(prefix, after.as_ref(), PAGE_SIZE).await?;
        for info in &page {
            if info.name.is_reserved() && !shows_parts {
                continue;
            }
            if as_json {
                output::print_json(&LockJson::from(info))?;
                continue;
            }
            let held = info.held.as_ref();
            let unknown = || "-".to_owned();
            table.add_row([
                info.name.as_str().escape_debug().to_string(),
                "lock".to_owned(),
                held.map_or_else(unknown, |held| held.holder.escape_debug().to_string()),
                held.and_then(|held| held.token)
                    .map_or_else(unknown, |token| token.to_string()),
                held.and_then(|held| held.acquired_at)
                    .and_then(format_rfc3339)
                    .unwrap_or_else(unknown),
                held.and_then(|held| held.expires_in)
                    .map_or_else(unknown, format_seconds),
            ]);
        }
        match page.last() {
            Some(last) if page.len() == PAGE_SIZE as usize => after = Some(last.name.clone()),
            _ => break,
        }
    }
    let found = if shows_parts {
        Vec::new()
    } else {
        found_or_warned(shared::list(store, prefix).await)
    };
    for info in &found {
        if as_json {
            output::print_json(&SharedJson::from(info))?;
        } else {
            table.add_row(row_of_shared(info));
        }
    }
    if as_json {
        return Ok(());
    }
    if table.is_empty() {
        // Scripts expect no output for an empty list. A person needs to see which store was asked.
        match prefix {
            "" => output::print_message("no lock is held"),
            prefix => output::print_message(format_args!(
                "no lock is held whose name starts with {prefix:?}"
            )),
        }
        return Ok(());
    }
    output::print_line(table.trim_fmt())?;
    Ok(())
}

/// The row of a shared lock. Each of its holders has a lease of its own.
fn row_of_shared(info: &SharedInfo) -> [String; 6] {
    let described = describe_shared(info);
    let unknown = || "-".to_owned();
    [
        info.name.as_str().escape_debug().to_string(),
        described.kind.to_owned(),
        described.holders,
        info.token.map_or_else(unknown, |token| token.to_string()),
        unknown(),
        unknown(),
    ]
}
