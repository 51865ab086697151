//! Runs the process that holds locks for the conformance suite. Only the suite starts it.

use distlock::{Target, config::Config};

use crate::{
    drivers,
    exit::{Failure, Outcome, code},
};

/// The first and only argument of the process.
pub const NAME: &str = "conformance-worker";

/// Follows the commands on standard input until it ends. The records are in the store that the
/// environment names, if it names one.
pub(crate) async fn execute() -> Outcome {
    let records = std::env::var(Config::RECORDS_VARIABLE).unwrap_or_default();
    let open = |url: String| {
        let target = Target::new(url);
        drivers::open(match records.is_empty() {
            true => target,
            false => target.records_in(records.clone()),
        })
    };
    distlock_conformance::worker::run(open)
        .await
        .map_err(|failure| Failure::new(code::FAILED, failure.to_string()))?;
    Ok(code::OK)
}
