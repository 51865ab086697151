//! Locks that the store still shows after all workers have ended.

use std::time::Duration;

use distlock::{Clock as _, Locker, SystemClock};

use super::settings::{EXTRA_WAIT, RETRY_PAUSE};

/// Returns the names and holders of locks that are still held long after the last worker has ended.
/// The function waits longer than the longest TTL of the run, and than the store's default TTL,
/// which recipes use.
pub(crate) async fn leftovers(locker: &Locker, longest_ttl: Duration) -> Vec<(String, String)> {
    let longest = longest_ttl.max(locker.capabilities().default_ttl);
    let until = SystemClock.now() + longest + EXTRA_WAIT;
    loop {
        let left = match locker.list("").await {
            Ok(held) => held
                .into_iter()
                .filter_map(|it| Some((it.name.to_string(), it.held?.holder)))
                .collect(),
            Err(error) => vec![("the store".to_owned(), error.to_string())],
        };
        if left.is_empty() || SystemClock.now() >= until {
            return left;
        }
        SystemClock.sleep(RETRY_PAUSE).await;
    }
}
