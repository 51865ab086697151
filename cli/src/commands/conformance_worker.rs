//! The process that holds locks on the conformance suite's behalf. Started by the suite, never by hand.

use crate::exit::{Failure, Outcome, code};

/// The first and only argument.
pub(crate) const NAME: &str = "conformance-worker";

/// Does what standard input says, until it ends.
pub(crate) async fn execute() -> Outcome {
    distlock_conformance::worker::run(|url: String| distlock::open(url))
        .await
        .map_err(|failure| Failure::new(code::FAILED, failure.to_string()))?;
    Ok(code::OK)
}
