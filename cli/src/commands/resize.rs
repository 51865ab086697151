//! `distlock resize`: changes how many permits a semaphore has.

use std::ffi::OsString;

use clap::Args;
use distlock::{LockName, Store};
use distlock_recipes::shared::{self, Semaphore};
use serde_json::json;

use crate::{
    context::{Context, Sharing},
    exit::{Outcome, code},
    output,
    shared::describe_shared,
    values,
};

/// Change how many permits a semaphore has.
///
/// Holders keep their permits. After a smaller number nobody gets a permit until those that are
/// held fit it. Then start all callers with the new number: one that names the old number gets an
/// error, also one that waits. While nobody holds or waits, the number of the next caller counts,
/// and there is nothing to change.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Resize {
    /// The semaphore
    #[arg(value_name = "NAME")]
    name: OsString,
    /// The new number of permits
    #[arg(long, value_name = "N")]
    permits: u32,
}

const EXAMPLES: &str = "\
Examples:
  distlock inspect renderers
  distlock resize renderers --permits 12
  distlock run --permits 1/12 renderers -- ./render.sh";

impl Resize {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let name = values::parse_lock_name(&self.name)?;
        let store = context.open(Sharing::Required).await?;
        let resized = self.resize(&store, &name).await;
        store.close().await;
        let on_record = resized?;
        if context.wants_json() {
            output::print_json(&json!({
                "name": name.as_str(),
                "capacity": self.permits,
                "on_record": on_record.is_some(),
            }))?;
            return Ok(code::OK);
        }
        match on_record {
            Some(holders) => output::print_message(format_args!("{name:?}: {holders}")),
            None => output::print_message(format_args!(
                "nobody holds a permit of {name:?} or waits for one, so no number is on record: \
                 the number of the next caller counts"
            )),
        }
        Ok(code::OK)
    }

    /// Changes the number on record. Returns who holds permits then; `None` if nothing is on
    /// record.
    async fn resize(&self, store: &Store, name: &LockName) -> distlock::Result<Option<String>> {
        let semaphore = Semaphore::new(store, name.as_str(), self.permits)?;
        semaphore.resize(self.permits).await?;
        let found = shared::inspect(store, name.as_str()).await?;
        let described = found.iter().map(describe_shared);
        let mut semaphores = described.filter(|it| it.is_semaphore);
        Ok(semaphores.next().map(|it| it.holders))
    }
}
