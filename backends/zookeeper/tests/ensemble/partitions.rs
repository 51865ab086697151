//! Clients that cannot reach the servers although the servers run.

use std::time::Duration;

use distlock_core::{LossReason, Renew};
use distlock_harness::{
    Direction, FaultProxy,
    servers::zookeeper::{Setup, ZooKeeper},
};

use crate::{
    fixtures::{
        SESSION, container_path, contenders, enter_queue, enter_queue_behind, eventually, hold,
        locker, pause, raw_client, release_cleanly, within,
    },
    protocol_proxy::{ProtocolProxy, Request},
};

/// Starts a proxy in front of each server. Returns the proxies, and the servers' addresses through
/// the proxies.
pub(crate) async fn start_proxies(ensemble: &ZooKeeper) -> (Vec<FaultProxy>, String) {
    let mut proxies = Vec::new();
    for at in 0..ensemble.len() {
        proxies.push(FaultProxy::start(ensemble.address(at)).await.unwrap());
    }
    let addresses: Vec<_> = proxies.iter().map(FaultProxy::address).collect();
    (proxies, ensemble.reached_at(&addresses))
}

fn cut_all(proxies: &[FaultProxy]) {
    for proxy in proxies {
        proxy.stop(Direction::ToServer);
        proxy.stop(Direction::ToClient);
    }
}

pub(crate) fn mend_all(proxies: &[FaultProxy]) {
    for proxy in proxies {
        proxy.pass();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_survive_one_unreachable_server_and_are_lost_without_any() {
    let ensemble = ZooKeeper::start_with(&Setup {
        // `cons` lists the sessions that are connected to a server.
        settings: vec!["4lw.commands.whitelist=srvr,mntr,cons".into()],
        ..Setup::default()
    })
    .unwrap();
    let (proxies, servers) = start_proxies(&ensemble).await;
    let (cut_off, direct) = (locker(&servers).await, locker(&ensemble.servers()).await);
    let client = raw_client(&ensemble.servers()).await;

    a_lock_survives_a_cut_from_its_follower(&ensemble).await;

    // No server can be reached while one lock is held and another lock is waited for. The loss is
    // reported to the holder before the next holder gets the lock. The contender enters the queue
    // again when the servers can be reached again.
    let holder = hold(&cut_off, "held").await;
    let ahead = hold(&direct, "awaited").await;
    let queued = enter_queue(&cut_off, "awaited").await;
    let next = enter_queue_behind(&holder, &direct).await;
    cut_all(&proxies);
    let reason = within("the loss is reported", holder.lost()).await;
    assert!(
        matches!(reason, LossReason::Unreachable | LossReason::SessionLost),
        "{reason}"
    );
    let (next, _) = within("the session has expired", next).await.unwrap();
    assert!(next.token() > holder.token());
    eventually("its queue entry is gone too", async || {
        (contenders(&client, "awaited").await.len() == 1).then_some(())
    })
    .await;
    mend_all(&proxies);
    // `next` holds the lock now, so the release of the lost guard frees nothing and is not clean.
    assert!(!holder.release().await.is_clean());
    eventually("the contender is in the queue again", async || {
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
    // After that the same locker works with a new session.
    release_cleanly(hold(&cut_off, "held").await).await;
    for name in ["held", "awaited"] {
        assert!(contenders(&client, name).await.is_empty(), "{name}");
    }
}

/// The client cannot reach its server, a follower. The client finds another server in time to keep
/// the lock.
async fn a_lock_survives_a_cut_from_its_follower(ensemble: &ZooKeeper) {
    let follower = ensemble.followers()[0];
    // Every address leads to that follower, so the client uses it whatever address it tries first.
    let mut proxies = Vec::new();
    for _ in 0..ensemble.len() {
        let proxy = FaultProxy::start(ensemble.address(follower)).await;
        proxies.push(proxy.unwrap());
    }
    let addresses: Vec<_> = proxies.iter().map(FaultProxy::address).collect();
    let cut_off = locker(&ensemble.reached_at(&addresses)).await;
    let guard = hold(&cut_off, "one").await;
    let (used, unused): (Vec<_>, Vec<_>) =
        proxies.iter().partition(|proxy| proxy.connections() > 0);
    let others = (0..ensemble.len()).filter(|at| *at != follower);
    for (proxy, other) in unused.iter().zip(others) {
        proxy.redirect(ensemble.address(other));
    }
    let client = raw_client(&ensemble.servers()).await;
    let node = &contenders(&client, "one").await[0];
    let path = format!("{}/{node}", container_path("one"));
    let stat = client.check_stat(&path).await.unwrap().unwrap();
    let sessions = ensemble.ask(follower, "cons").unwrap();
    let session = format!("sid={:#x},", stat.ephemeral_owner);
    assert!(sessions.contains(&session), "{session} {sessions}");
    assert!(ensemble.followers().contains(&follower));

    for proxy in used {
        proxy.black_hole();
    }
    eventually("another server", async || {
        let found = unused.iter().any(|proxy| proxy.connections() > 0);
        found.then_some(())
    })
    .await;
    pause(SESSION).await;
    assert!(guard.is_valid());
    release_cleanly(guard).await;
    assert_eq!(contenders(&client, "one").await, Vec::<String>::new());
    cut_off.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_whose_answer_was_lost_is_found_again() {
    let ensemble = ZooKeeper::start().unwrap();
    let proxy = FaultProxy::start(ensemble.address(0)).await.unwrap();
    let cut_off = locker(&ensemble.reached_at(&[proxy.address()])).await;
    let client = raw_client(&ensemble.servers()).await;
    // The container exists after this cycle. So the answer that is lost later belongs to the
    // creation of the node.
    release_cleanly(hold(&cut_off, "a").await).await;
    for round in 0..8 {
        proxy.swallow_one_reply();
        let guard = hold(&cut_off, "a").await;
        let present = contenders(&client, "a").await;
        assert_eq!(present.len(), 1, "round {round}: {present:?}");
        assert!(guard.is_valid());
        release_cleanly(guard).await;
    }
    // In these rounds the caller has given up when the answer is lost.
    for round in 0..8 {
        proxy.swallow_one_reply();
        let acquiring = cut_off.lock("a").acquire();
        tokio::select! {
            acquired = acquiring => drop(acquired),
            () = pause(Duration::from_millis(round * 2)) => {}
        }
        eventually("no node is left", async || {
            contenders(&client, "a").await.is_empty().then_some(())
        })
        .await;
    }
    release_cleanly(hold(&cut_off, "a").await).await;
    a_watch_with_a_lost_answer_is_set_again(&ensemble).await;
    a_release_with_a_lost_answer_is_clean(&ensemble).await;
    an_entry_given_up_while_cut_off_is_deleted(&ensemble).await;
}

/// The answer to the request that sets a watch on the holder's node is lost. The watch is set
/// again, so the removal of the node by another client is reported.
async fn a_watch_with_a_lost_answer_is_set_again(ensemble: &ZooKeeper) {
    let proxy = ProtocolProxy::start(ensemble.address(0)).await;
    let cut_off = locker(&ensemble.reached_at(&[proxy.address])).await;
    let client = raw_client(&ensemble.servers()).await;
    for round in 0..4 {
        // The name is new, so its container has no watch. Renewal is manual, so only the watch on
        // the node can report the removal.
        let name = format!("watched-{round}");
        let asked = cut_off.lock(&name).ttl(SESSION).renew(Renew::Manual);
        proxy.lose_next_answer(Request::is_existence_check);
        let guard = asked.acquire().await.unwrap();
        within("the answer is lost", proxy.wait_for_lost_answer()).await;
        proxy.accept_again();
        eventually("connected again", async || guard.extend(SESSION).await.ok()).await;
        let node = &contenders(&client, &name).await[0];
        let path = format!("{}/{node}", container_path(&name));
        client.delete(&path, None).await.unwrap();
        let reason = within("the loss is reported", guard.lost()).await;
        assert_eq!(reason, LossReason::Removed, "round {round}");
    }
    cut_off.close().await;
}

/// A waiter gives up while it can reach no server. The servers become reachable again before the
/// session is lost.
async fn an_entry_given_up_while_cut_off_is_deleted(ensemble: &ZooKeeper) {
    let (proxies, servers) = start_proxies(ensemble).await;
    let (cut_off, direct) = (locker(&servers).await, locker(&ensemble.servers()).await);
    let client = raw_client(&ensemble.servers()).await;
    let kept = hold(&cut_off, "kept").await;
    let ahead = hold(&direct, "given up").await;
    let waiting = enter_queue(&cut_off, "given up").await;
    assert_eq!(contenders(&client, "given up").await.len(), 2);
    kept.extend(SESSION).await.unwrap();
    for proxy in &proxies {
        proxy.black_hole();
    }
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    // The first deletion request is lost in this time.
    pause(Duration::from_millis(500)).await;
    mend_all(&proxies);
    eventually("its entry is gone", async || {
        (contenders(&client, "given up").await.len() == 1).then_some(())
    })
    .await;
    assert!(kept.is_valid(), "and not because its session ended");
    release_cleanly(ahead).await;
    release_cleanly(kept).await;
    cut_off.close().await;
    direct.close().await;
}

/// The server releases the lock, and the answer is lost.
async fn a_release_with_a_lost_answer_is_clean(ensemble: &ZooKeeper) {
    let proxy = FaultProxy::start(ensemble.address(0)).await.unwrap();
    let cut_off = locker(&ensemble.reached_at(&[proxy.address()])).await;
    let client = raw_client(&ensemble.servers()).await;
    for round in 0..8 {
        let guard = hold(&cut_off, "released").await;
        proxy.swallow_one_reply();
        release_cleanly(guard).await;
        let present = contenders(&client, "released").await;
        assert!(present.is_empty(), "round {round}: {present:?}");
    }
    cut_off.close().await;
}
