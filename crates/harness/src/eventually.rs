//! Waiting on a condition, never on a hoped-for sleep.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// How long to sleep between two looks: short against everything that is waited for, long against the cost of a look.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks at `condition` until it holds.
///
/// # Errors
/// When it does not hold within `within`; `what` is named.
pub fn eventually(what: &str, within: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    // One look after the time is over: a slow machine must not turn a fulfilled condition into a failure.
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

/// As [`eventually`], with a condition that is asked asynchronously and yields a value.
///
/// # Errors
/// When it yields nothing within `within`; `what` is named.
///
/// # Cancel safety
/// As safe as the condition's own future.
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
    fn sees_the_change_and_names_what_never_came() {
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
