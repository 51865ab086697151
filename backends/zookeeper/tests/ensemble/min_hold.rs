//! Minimum holds: the lock stays held until the end of the hold, also beyond its lease and its
//! session, and is free then.

use std::time::Duration;

use distlock_core::Locker;
use distlock_harness::servers::zookeeper::ZooKeeper;

use crate::fixtures::{SESSION, enter_queue, locker, now, release_cleanly, within};

/// The time that a busy machine may add to a release and to a grant.
const SLACK: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_minimum_hold_is_kept_beyond_the_session_and_ends_on_time() {
    let ensemble = ZooKeeper::start().unwrap();
    let theirs = locker(&ensemble.servers()).await;
    // The first hold is shorter than a lease, and the second longer than a session.
    for hold in [Duration::from_secs(1), SESSION + Duration::from_secs(2)] {
        for close in [false, true] {
            a_hold_ends_on_time(&ensemble, &theirs, hold, close).await;
        }
    }
    theirs.close().await;
}

/// A waiter of another process gets the lock at the end of the hold.
async fn a_hold_ends_on_time(ensemble: &ZooKeeper, theirs: &Locker, hold: Duration, close: bool) {
    let ours = locker(&ensemble.servers()).await;
    let asked = now();
    let lock = ours.lock("kept").min_hold(hold);
    let guard = within("acquired", lock.acquire()).await.expect("acquires");
    let waiting = enter_queue(theirs, "kept").await;
    release_cleanly(guard).await;
    let released = now().since(asked);
    assert!(released < hold, "the release returned after {released:?}");
    if close {
        // The close waits for the end of the hold, and not for the end of the session.
        within("closed", ours.close()).await;
        let closed = now().since(asked);
        assert!(
            closed >= hold && closed < hold + SLACK,
            "{hold:?}: {closed:?}"
        );
    }
    let (next, granted) = within("the waiter gets the lock", waiting).await.unwrap();
    let granted = granted.since(asked);
    assert!(granted >= hold, "{hold:?}: granted after {granted:?}");
    assert!(
        granted < hold + SLACK,
        "{hold:?}: granted after {granted:?}"
    );
    release_cleanly(next).await;
    ours.close().await;
}
