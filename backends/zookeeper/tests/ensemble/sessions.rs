//! Sessions that the servers end or replace by another session, and minimum holds that last longer
//! than a session.

use std::{
    future::{Future as _, poll_fn},
    task::Poll,
    time::Duration,
};

use distlock_core::{Clock as _, Locker, LossReason, Renew, SystemClock};
use distlock_harness::servers::zookeeper::ZooKeeper;

use crate::{
    fixtures::{
        SESSION, contenders, enter_queue, enter_queue_behind, eventually, hold, locker, now,
        raw_client, release_cleanly, within,
    },
    protocol_proxy::ProtocolProxy,
};

#[tokio::test(flavor = "multi_thread")]
async fn holders_and_waiters_notice_an_ended_or_swapped_session() {
    let ensemble = ZooKeeper::start().unwrap();
    locks_are_renewed_while_another_caller_stops_polling(&ensemble).await;
    an_ended_session_is_reported_to_holder_and_waiter(&ensemble).await;
    an_ended_session_loses_all_its_locks(&ensemble).await;
    a_swapped_session_is_noticed_by_holder_and_waiter(&ensemble).await;
}

/// A caller begins a check of the session, and then nobody polls its future. Locks are still
/// renewed.
async fn locks_are_renewed_while_another_caller_stops_polling(ensemble: &ZooKeeper) {
    let locker = locker(&ensemble.servers()).await;
    let ttl = Duration::from_secs(3);
    let guard = locker.lock("kept").ttl(ttl).acquire().await.unwrap();
    let mut asking = std::pin::pin!(locker.health());
    poll_fn(|context| {
        assert!(asking.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    // Without renewals the lease would have ended now.
    SystemClock.sleep(ttl).await;
    assert!(guard.is_valid());
    // The operation may time out now.
    let _ = asking.await;
    release_cleanly(guard).await;
    locker.close().await;
}

/// The servers end the session while one lock is held on it and another lock is waited for. The
/// loss is reported to the holder, and the contender enters the queue again in the next session.
async fn an_ended_session_is_reported_to_holder_and_waiter(ensemble: &ZooKeeper) {
    let proxy = ProtocolProxy::start(ensemble.address(0)).await;
    let (ours, theirs) = (
        locker(&ensemble.reached_at(&[proxy.address])).await,
        locker(&ensemble.servers()).await,
    );
    let client = raw_client(&ensemble.servers()).await;
    let holder = hold(&ours, "held").await;
    let ahead = hold(&theirs, "awaited").await;
    let queued = enter_queue(&ours, "awaited").await;
    // The servers themselves end the session, so the next holder may get the lock before the loss
    // is reported. This test therefore does not check that the two holders do not overlap.
    let next = enter_queue(&theirs, "held").await;
    let session = proxy.newest_session();
    eventually("the session has ended", async || {
        proxy.end_session(&session).await.ok()
    })
    .await;
    let start = now();
    let reason = within("the loss is reported", holder.lost()).await;
    assert!(
        matches!(reason, LossReason::SessionLost | LossReason::Removed),
        "{reason}"
    );
    assert!(now().since(start) < SESSION, "not only by its deadline");
    let (next, _) = within("the lock is free at once", next).await.unwrap();
    assert!(next.token() > holder.token());
    assert!(!holder.release().await.is_clean());
    eventually("the contender is in the queue again", async || {
        (contenders(&client, "awaited").await.len() == 2).then_some(())
    })
    .await;
    assert_ne!(proxy.newest_session(), session, "in another session");
    let token = ahead.token();
    release_cleanly(ahead).await;
    let (queued, _) = within("the waiter gets the lock", queued).await.unwrap();
    assert!(queued.token() > token);
    release_cleanly(queued).await;
    assert!(next.is_valid());
    release_cleanly(next).await;
    release_cleanly(hold(&ours, "held").await).await;
    ours.close().await;
    theirs.close().await;
}

/// All locks of one store depend on one session. The servers end this session, and all locks are
/// lost.
async fn an_ended_session_loses_all_its_locks(ensemble: &ZooKeeper) {
    let proxy = ProtocolProxy::start(ensemble.address(0)).await;
    let ours = locker(&ensemble.reached_at(&[proxy.address])).await;
    let mut guards = Vec::new();
    for name in ["first", "second", "third"] {
        // Renewal is manual, so only the end of the session can report the loss.
        let asked = ours.lock(name).ttl(SESSION).renew(Renew::Manual);
        guards.push(asked.acquire().await.unwrap());
    }
    for guard in &guards {
        guard.extend(SESSION).await.unwrap();
    }
    let session = proxy.newest_session();
    eventually("the session has ended", async || {
        proxy.end_session(&session).await.ok()
    })
    .await;
    let start = now();
    for guard in &guards {
        let reason = within("the loss is reported", guard.lost()).await;
        assert!(
            matches!(reason, LossReason::SessionLost | LossReason::Removed),
            "{}: {reason}",
            guard.name()
        );
        assert!(now().since(start) < SESSION, "{}", guard.name());
    }
    // The same locker acquires all locks again in its next session. The release of an old guard
    // does not disturb the new guards.
    for guard in guards {
        let name = guard.name().clone();
        let token = guard.token();
        assert!(!guard.release().await.is_clean());
        let again = hold(&ours, name.as_str()).await;
        assert!(again.token() > token);
        release_cleanly(again).await;
    }
    assert_ne!(proxy.newest_session(), session, "in another session");
    ours.close().await;
}

/// The client reconnects after its connection was cut, and a server gives it another session
/// without reporting that. The backend must not take the new session for the old one.
async fn a_swapped_session_is_noticed_by_holder_and_waiter(ensemble: &ZooKeeper) {
    let proxy = ProtocolProxy::start(ensemble.address(0)).await;
    let (ours, theirs) = (
        locker(&ensemble.reached_at(&[proxy.address])).await,
        locker(&ensemble.servers()).await,
    );
    let client = raw_client(&ensemble.servers()).await;
    let holder = hold(&ours, "held").await;
    let ahead = hold(&theirs, "awaited").await;
    let queued = enter_queue(&ours, "awaited").await;
    let next = enter_queue_behind(&holder, &theirs).await;
    proxy.swap_session();
    let reason = within("the loss is reported", holder.lost()).await;
    assert_eq!(reason, LossReason::SessionLost);
    // The old session expires, because no client sends requests for it any more.
    let (next, _) = within("the session has expired", next).await.unwrap();
    assert!(next.token() > holder.token());
    assert!(!holder.release().await.is_clean());
    eventually("in the queue again, and once", async || {
        (contenders(&client, "awaited").await.len() == 2).then_some(())
    })
    .await;
    let token = ahead.token();
    release_cleanly(ahead).await;
    let (queued, _) = within("the waiter gets the lock", queued).await.unwrap();
    assert!(queued.token() > token);
    release_cleanly(queued).await;
    assert!(next.is_valid());
    release_cleanly(next).await;
    release_cleanly(hold(&ours, "held").await).await;
    ours.close().await;
    theirs.close().await;
}

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
