//! Sessions that end, or are swapped for another one, without our doing.

use std::{
    future::{Future as _, poll_fn},
    task::Poll,
    time::Duration,
};

use distlock_core::{Clock as _, LossReason, Renew, SystemClock};
use distlock_harness::servers::zookeeper::ZooKeeper;

use crate::{
    rig::{
        SESSION, contenders, eventually, give_back, hold, line_up, line_up_behind, locker, now,
        stranger, within,
    },
    tap::Tap,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_servers_end_or_swap() {
    let ensemble = ZooKeeper::start().unwrap();
    kept_while_somebody_stops_half_way(&ensemble).await;
    ended_while_holding_and_waiting(&ensemble).await;
    ended_with_every_lock_on_it(&ensemble).await;
    swapped_while_holding_and_waiting(&ensemble).await;
}

/// Somebody begins to ask whether the session lives, and is not polled any more: locks are renewed all the same.
async fn kept_while_somebody_stops_half_way(ensemble: &ZooKeeper) {
    let locker = locker(&ensemble.servers()).await;
    let ttl = Duration::from_secs(3);
    let guard = locker.lock("kept").ttl(ttl).acquire().await.unwrap();
    let mut asking = std::pin::pin!(locker.health());
    poll_fn(|context| {
        assert!(asking.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    // Not renewed, it would be over by then.
    SystemClock.sleep(ttl).await;
    assert!(guard.is_valid());
    // It may be too late for it now.
    let _ = asking.await;
    give_back(guard).await;
    locker.close().await;
}

/// The servers end the session while one lock hangs on it and another one is waited for: the holder is told, and the one in
/// the queue lines up again in the next session.
async fn ended_while_holding_and_waiting(ensemble: &ZooKeeper) {
    let tap = Tap::start(ensemble.address(0)).await;
    let (ours, theirs) = (
        locker(&ensemble.reached_at(&[tap.address])).await,
        locker(&ensemble.servers()).await,
    );
    let client = stranger(&ensemble.servers()).await;
    let holder = hold(&ours, "held").await;
    let ahead = hold(&theirs, "awaited").await;
    let queued = line_up(&ours, "awaited").await;
    // Nobody can keep the next one out: the servers themselves have given the lock away.
    let next = line_up(&theirs, "held").await;
    let session = tap.session();
    eventually("ended", async || tap.end_session(&session).await.ok()).await;
    let start = now();
    let reason = within("told", holder.lost()).await;
    assert!(
        matches!(reason, LossReason::SessionLost | LossReason::Removed),
        "{reason}"
    );
    assert!(now().since(start) < SESSION, "not only by its deadline");
    let (next, _) = within("free at once", next).await.unwrap();
    assert!(next.token() > holder.token());
    assert!(!holder.release().await.is_clean());
    eventually("in the queue again", async || {
        (contenders(&client, "awaited").await.len() == 2).then_some(())
    })
    .await;
    assert_ne!(tap.session(), session, "in another session");
    let token = ahead.token();
    give_back(ahead).await;
    let (queued, _) = within("its turn", queued).await.unwrap();
    assert!(queued.token() > token);
    give_back(queued).await;
    assert!(next.is_valid());
    give_back(next).await;
    give_back(hold(&ours, "held").await).await;
    ours.close().await;
    theirs.close().await;
}

/// All locks hang on one session: none of them outlives it.
async fn ended_with_every_lock_on_it(ensemble: &ZooKeeper) {
    let tap = Tap::start(ensemble.address(0)).await;
    let ours = locker(&ensemble.reached_at(&[tap.address])).await;
    let mut guards = Vec::new();
    for name in ["first", "second", "third"] {
        // Nobody asks for it, so only the end of the session tells.
        let asked = ours.lock(name).ttl(SESSION).renew(Renew::Manual);
        guards.push(asked.acquire().await.unwrap());
    }
    for guard in &guards {
        guard.extend(SESSION).await.unwrap();
    }
    let session = tap.session();
    eventually("ended", async || tap.end_session(&session).await.ok()).await;
    let start = now();
    for guard in &guards {
        let reason = within("told", guard.lost()).await;
        assert!(
            matches!(reason, LossReason::SessionLost | LossReason::Removed),
            "{}: {reason}",
            guard.name()
        );
        assert!(now().since(start) < SESSION, "{}", guard.name());
    }
    // The next session serves them all, and none of the old guards spoils it.
    for guard in guards {
        let name = guard.name().clone();
        let token = guard.token();
        assert!(!guard.release().await.is_clean());
        let again = hold(&ours, name.as_str()).await;
        assert!(again.token() > token);
        give_back(again).await;
    }
    assert_ne!(tap.session(), session, "in another session");
    ours.close().await;
}

/// The client comes back after its line was cut, and a server gives it another session without saying so: that must not
/// pass for the old one.
async fn swapped_while_holding_and_waiting(ensemble: &ZooKeeper) {
    let tap = Tap::start(ensemble.address(0)).await;
    let (ours, theirs) = (
        locker(&ensemble.reached_at(&[tap.address])).await,
        locker(&ensemble.servers()).await,
    );
    let client = stranger(&ensemble.servers()).await;
    let holder = hold(&ours, "held").await;
    let ahead = hold(&theirs, "awaited").await;
    let queued = line_up(&ours, "awaited").await;
    let next = line_up_behind(&holder, &theirs).await;
    tap.swap_session();
    let reason = within("told", holder.lost()).await;
    assert_eq!(reason, LossReason::SessionLost);
    // The old session ends by itself: nobody is heard of it any more.
    let (next, _) = within("the session has expired", next).await.unwrap();
    assert!(next.token() > holder.token());
    assert!(!holder.release().await.is_clean());
    eventually("in the queue again, and once", async || {
        (contenders(&client, "awaited").await.len() == 2).then_some(())
    })
    .await;
    let token = ahead.token();
    give_back(ahead).await;
    let (queued, _) = within("its turn", queued).await.unwrap();
    assert!(queued.token() > token);
    give_back(queued).await;
    assert!(next.is_valid());
    give_back(next).await;
    give_back(hold(&ours, "held").await).await;
    ours.close().await;
    theirs.close().await;
}
