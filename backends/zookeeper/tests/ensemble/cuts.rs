//! Clients that are cut off from servers that live.

use std::time::Duration;

use distlock_core::{LossReason, Renew};
use distlock_harness::{
    Direction, FaultProxy,
    servers::zookeeper::{Setup, ZooKeeper},
};

use crate::{
    deletions,
    rig::{
        SESSION, container, contenders, eventually, give_back, hold, line_up, line_up_behind,
        locker, pause, stranger, within,
    },
    tap::{Request, Tap},
};

/// A proxy before each server, and their addresses.
pub(crate) async fn behind_proxies(ensemble: &ZooKeeper) -> (Vec<FaultProxy>, String) {
    let mut proxies = Vec::new();
    for at in 0..ensemble.len() {
        proxies.push(FaultProxy::start(ensemble.address(at)).await.unwrap());
    }
    let addresses: Vec<_> = proxies.iter().map(FaultProxy::address).collect();
    (proxies, ensemble.reached_at(&addresses))
}

fn cut(proxies: &[FaultProxy]) {
    for proxy in proxies {
        proxy.stop(Direction::ToServer);
        proxy.stop(Direction::ToClient);
    }
}

pub(crate) fn mend(proxies: &[FaultProxy]) {
    for proxy in proxies {
        proxy.pass();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_off_from_one_server_from_all_and_for_longer_than_the_session() {
    let ensemble = ZooKeeper::start_with(&Setup {
        // Who is connected to a server is asked, too.
        settings: vec!["4lw.commands.whitelist=srvr,mntr,cons".into()],
        ..Setup::default()
    })
    .unwrap();
    let (proxies, servers) = behind_proxies(&ensemble).await;
    let (cut_off, direct) = (locker(&servers).await, locker(&ensemble.servers()).await);
    let client = stranger(&ensemble.servers()).await;

    cut_off_from_a_follower(&ensemble).await;

    // No server can be reached while one lock is held and another one waited for: the holder is told before the next one
    // gets the lock, and the one in the queue lines up again when the line is mended.
    let holder = hold(&cut_off, "held").await;
    let ahead = hold(&direct, "awaited").await;
    let queued = line_up(&cut_off, "awaited").await;
    let next = line_up_behind(&holder, &direct).await;
    cut(&proxies);
    let reason = within("told", holder.lost()).await;
    assert!(
        matches!(reason, LossReason::Unreachable | LossReason::SessionLost),
        "{reason}"
    );
    let (next, _) = within("the session has expired", next).await.unwrap();
    assert!(next.token() > holder.token());
    eventually("its place in the queue is gone too", async || {
        (contenders(&client, "awaited").await.len() == 1).then_some(())
    })
    .await;
    mend(&proxies);
    // What the old holder still does changes nothing.
    assert!(!holder.release().await.is_clean());
    eventually("in the queue again", async || {
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
    // A program that goes on after that has a new session for everything.
    give_back(hold(&cut_off, "held").await).await;
    for name in ["held", "awaited"] {
        assert!(contenders(&client, name).await.is_empty(), "{name}");
    }
}

/// The server that it talks to, a follower, is out of reach: it finds another one before it has to give the lock up.
async fn cut_off_from_a_follower(ensemble: &ZooKeeper) {
    let follower = ensemble.followers()[0];
    // Whichever it tries first, it comes to that one.
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
    let client = stranger(&ensemble.servers()).await;
    let node = &contenders(&client, "one").await[0];
    let path = format!("{}/{node}", container("one"));
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
    give_back(guard).await;
    assert_eq!(contenders(&client, "one").await, Vec::<String>::new());
    cut_off.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_whose_answer_was_lost_is_found_again() {
    let ensemble = ZooKeeper::start().unwrap();
    let proxy = FaultProxy::start(ensemble.address(0)).await.unwrap();
    let cut_off = locker(&ensemble.reached_at(&[proxy.address()])).await;
    let client = stranger(&ensemble.servers()).await;
    // The container is there, so that the answer that is lost is the creation's.
    give_back(hold(&cut_off, "a").await).await;
    for round in 0..8 {
        proxy.swallow_one_reply();
        let guard = hold(&cut_off, "a").await;
        let present = contenders(&client, "a").await;
        assert_eq!(present.len(), 1, "round {round}: {present:?}");
        assert!(guard.is_valid());
        give_back(guard).await;
    }
    // Nobody waits for it any more when the answer is lost.
    for round in 0..8 {
        proxy.swallow_one_reply();
        let acquiring = cut_off.lock("a").acquire();
        tokio::select! {
            acquired = acquiring => drop(acquired),
            () = pause(Duration::from_millis(round * 2)) => {}
        }
        eventually("nothing is left", async || {
            contenders(&client, "a").await.is_empty().then_some(())
        })
        .await;
    }
    give_back(hold(&cut_off, "a").await).await;
    a_watch_whose_answer_was_lost(&ensemble).await;
    deletions::whose_answer_was_lost(&ensemble).await;
    deletions::tried_until_done(&ensemble).await;
}

/// The line breaks while a watch is set on a node of ours: it is set again, and its removal by somebody else is told.
async fn a_watch_whose_answer_was_lost(ensemble: &ZooKeeper) {
    let tap = Tap::start(ensemble.address(0)).await;
    let cut_off = locker(&ensemble.reached_at(&[tap.address])).await;
    let client = stranger(&ensemble.servers()).await;
    for round in 0..4 {
        // The first lock of this name, so nothing else is watched, and nobody asks for it, so only its own watch tells.
        let name = format!("watched-{round}");
        let asked = cut_off.lock(&name).ttl(SESSION).renew(Renew::Manual);
        tap.lose_answer(Request::checks);
        let guard = asked.acquire().await.unwrap();
        within("lost", tap.has_lost_it()).await;
        tap.let_in();
        eventually("connected again", async || guard.extend(SESSION).await.ok()).await;
        let node = &contenders(&client, &name).await[0];
        let path = format!("{}/{node}", container(&name));
        client.delete(&path, None).await.unwrap();
        let reason = within("told", guard.lost()).await;
        assert_eq!(reason, LossReason::Removed, "round {round}");
    }
    cut_off.close().await;
}
