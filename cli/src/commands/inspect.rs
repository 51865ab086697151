//! `distlock inspect`: who holds one lock.

use std::ffi::OsString;

use clap::Args;

use crate::{
    context::{Context, Sharing},
    exit::{Outcome, code},
    output::{self, LockJson, holder_line},
    values,
};

/// Show who holds a lock.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Inspect {
    /// The lock
    #[arg(value_name = "NAME")]
    name: OsString,
}

const EXAMPLES: &str = "\
Examples:
  distlock inspect nightly
  distlock inspect nightly --json | jq -r .holder

JSON fields:
  name, state (held or free), holder, meta, token, epoch, acquired_at (RFC 3339), expires_in_ms, waiters;
  what the store cannot tell is null";

impl Inspect {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let name = values::lock_name(&self.name)?;
        let store = context.open(Sharing::Required).await?;
        let info = store.locker().inspect(&name).await?;
        store.close().await;
        if context.json() {
            output::json(&LockJson::from(&info))?;
            return Ok(code::OK);
        }
        match &info.held {
            Some(held) => output::line(format!("{name}: {}", holder_line(held)))?,
            None => output::line(format!("{name}: free"))?,
        }
        if let Some(meta) = info.held.as_ref().and_then(|held| held.meta.as_deref()) {
            output::line(format!("  meta: {}", meta.escape_debug()))?;
        }
        Ok(code::OK)
    }
}
