//! Servers that are killed, stopped and started again.

use distlock_core::{ErrorKind, Guard};
use distlock_harness::servers::zookeeper::ZooKeeper;
use tokio::task::JoinHandle;

use crate::{
    access::refused,
    rig::{
        config, contenders, eventually, give_back, hold, line_up_behind, locker, stranger, within,
    },
};

/// Whether the guard has outlived a fault or not: the next holder comes after it, with a larger token.
async fn passes_on(guard: Guard, next: JoinHandle<(Guard, distlock_core::Moment)>, fault: &str) {
    let token = guard.token();
    if guard.is_valid() {
        let _ = guard.release().await;
    } else {
        within("told", guard.lost()).await;
    }
    let (next, _) = within("granted", next).await.unwrap();
    assert!(next.token() > token, "{fault}");
    assert!(next.is_valid(), "{fault}");
    give_back(next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_stopped_or_killed_is_replaced() {
    let mut ensemble = ZooKeeper::start().unwrap();
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    for fault in ["stopped", "killed"] {
        let guard = hold(&ours, fault).await;
        let next = line_up_behind(&guard, &theirs).await;
        let leader = ensemble.leader().unwrap();
        if fault == "stopped" {
            ensemble.pause(leader).unwrap();
        } else {
            ensemble.kill(leader);
        }
        // Another one leads, and whoever was connected to the old one has found another server.
        for locker in [&ours, &theirs] {
            eventually("served", async || {
                let other = locker.lock("other").acquire().await.ok()?;
                other.release().await.is_clean().then_some(())
            })
            .await;
        }
        passes_on(guard, next, fault).await;
        if fault == "stopped" {
            ensemble.resume(leader).unwrap();
        } else {
            ensemble.restart(leader).unwrap();
        }
        ensemble.wait_until_serving().unwrap();
        let client = stranger(&ensemble.servers()).await;
        eventually("nothing is left", async || {
            contenders(&client, fault).await.is_empty().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_servers_restarted_with_their_data() {
    let mut ensemble = ZooKeeper::start().unwrap();
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    let guard = hold(&ours, "a").await;
    let epoch = guard.epoch();
    let next = line_up_behind(&guard, &theirs).await;
    for at in 0..ensemble.len() {
        ensemble.kill(at);
    }
    for at in 0..ensemble.len() {
        ensemble.restart(at).unwrap();
    }
    ensemble.wait_until_serving().unwrap();
    passes_on(guard, next, "restarted").await;
    let again = hold(&ours, "a").await;
    assert_eq!(again.epoch(), epoch, "the history goes on");
    give_back(again).await;
    let client = stranger(&ensemble.servers()).await;
    eventually("nothing is left", async || {
        contenders(&client, "a").await.is_empty().then_some(())
    })
    .await;
    without_a_quorum(&mut ensemble).await;
}

/// One server of three is left: whoever comes to it is told why it does not serve.
async fn without_a_quorum(ensemble: &mut ZooKeeper) {
    for at in [0, 1] {
        ensemble.kill(at);
    }
    let last = ensemble.server(2);
    eventually("the last one notices", async || {
        let answer = ensemble.ask(2, "srvr").ok()?;
        answer.contains("not currently serving").then_some(())
    })
    .await;
    for servers in [last, ensemble.servers()] {
        let error = refused(config(&servers)).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("no quorum"), "{error}");
    }
}
