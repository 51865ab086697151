//! A TTL that is longer than the longest lease of the store: the guard shows the granted TTL, and
//! the locker logs one warning.

use std::{sync::Arc, time::Duration};

use crate::support::Script;
use distlock_core::{Locker, SystemClock};
use distlock_harness::LogCapture;
use tracing::Level;

const MOST: Duration = Duration::from_secs(4);
const LONGER: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_ttl_beyond_the_longest_lease_is_logged_once_per_locker() {
    let warnings = LogCapture::new(Level::WARN);
    let _watched = warnings.watch();
    let store = Script::with_capabilities(Arc::new(SystemClock), |capabilities| {
        capabilities.max_lease = Some(MOST);
        capabilities.session_timeout = Some(MOST * 2);
    });
    let locker = Locker::new(Arc::new(store.clone()));
    // The requested TTL equals the longest lease of the store, so nothing is logged.
    drop(locker.lock("a").ttl(MOST).acquire().await.unwrap());
    assert_eq!(warnings.lines(), Vec::<String>::new());
    // A clone shares the "was warned" flag of its locker, and an extension checks its TTL in the
    // same way as an acquire.
    let guard = locker
        .clone()
        .lock("b")
        .ttl(LONGER)
        .acquire()
        .await
        .unwrap();
    drop(locker.lock("c").ttl(LONGER).acquire().await.unwrap());
    guard.extend(LONGER * 2).await.unwrap();
    let warned = warnings.lines();
    assert_eq!(warned.len(), 1, "{warned:?}");
    for part in ["60s", "4s", "session_timeout=8s"] {
        assert!(warned[0].contains(part), "{part}: {warned:?}");
    }
    assert!(guard.release().await.is_clean());
    // Another locker logs its own warning.
    let other = Locker::new(Arc::new(store));
    drop(other.lock("d").ttl(LONGER).try_acquire().await.unwrap());
    assert_eq!(warnings.lines().len(), 2);
    let whole = Locker::new(Arc::new(Script::open(Arc::new(SystemClock))));
    drop(whole.lock("a").ttl(LONGER).acquire().await.unwrap());
    assert_eq!(warnings.lines().len(), 2);
}
