//! Waits for a condition with a time limit.
//!
//! A test must not sleep for a guessed time. A test waits here for the condition that it needs.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// The pause between two checks: short compared with the times that tests wait, and long compared
/// with the time of one check.
const PAUSE: Duration = Duration::from_millis(10);

/// Checks `condition` until it holds.
///
/// # Errors
/// Returns an error if the condition does not hold within `within`. The error names `what`.
pub fn eventually(what: &str, within: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    // The condition is checked once more after the time has passed. Otherwise a long pause of a
    // slow machine could end the wait although the condition holds.
    loop {
        let over = start.elapsed() >= within;
        if condition() {
            return Ok(());
        }
        if over {
            bail!("{what}: not within {within:?}");
        }
        std::thread::sleep(PAUSE);
    }
}

/// Works like [`eventually`], with an asynchronous condition that yields a value.
///
/// # Errors
/// Returns an error if the condition yields no value within `within`. The error names `what`.
///
/// # Cancel safety
/// The call is as cancel safe as the condition's own future.
pub async fn eventually_async<T, F: Future<Output = Option<T>>>(
    what: &str,
    within: Duration,
    mut condition: impl FnMut() -> F,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let over = start.elapsed() >= within;
        if let Some(value) = condition().await {
            return Ok(value);
        }
        if over {
            bail!("{what}: not within {within:?}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_checked_until_it_holds_and_a_failure_names_it() {
        let mut looks = 0;
        eventually("third look", Duration::from_secs(5), || {
            looks += 1;
            looks == 3
        })
        .unwrap();
        assert_eq!(looks, 3);

        let error = eventually("the impossible", Duration::from_millis(30), || false).unwrap_err();
        assert!(error.to_string().contains("the impossible"), "{error}");
    }
}
