//! Runs the process that holds locks for the conformance suite. Only the suite starts it.

use crate::{
    drivers,
    exit::{Failure, Outcome, code},
};

/// The first and only argument of the process.
pub const NAME: &str = "conformance-worker";

/// Follows the commands on standard input until it ends.
pub(crate) async fn execute() -> Outcome {
    distlock_conformance::worker::run(|url: String| drivers::open(url))
        .await
        .map_err(|failure| Failure::new(code::FAILED, failure.to_string()))?;
    Ok(code::OK)
}
