//! Servers that are killed, paused and started again.

use distlock_core::{ErrorKind, Guard};
use distlock_harness::servers::zookeeper::ZooKeeper;
use tokio::task::JoinHandle;

use crate::{
    access::open_refused,
    fixtures::{
        config, contenders, enter_queue_behind, eventually, hold, locker, raw_client,
        release_cleanly, within,
    },
};

/// Checks the next holder after a fault. The guard may have survived the fault or not. In both
/// cases the next holder gets the lock after the guard has ended, with a higher token.
async fn check_next_holder(
    guard: Guard,
    next: JoinHandle<(Guard, distlock_core::Moment)>,
    fault: &str,
) {
    let token = guard.token();
    if guard.is_valid() {
        let _ = guard.release().await;
    } else {
        within("the loss is reported", guard.lost()).await;
    }
    let (next, _) = within("granted", next).await.unwrap();
    assert!(next.token() > token, "{fault}");
    assert!(next.is_valid(), "{fault}");
    release_cleanly(next).await;
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
        let next = enter_queue_behind(&guard, &theirs).await;
        let leader = ensemble.leader().unwrap();
        if fault == "stopped" {
            ensemble.pause(leader).unwrap();
        } else {
            ensemble.kill(leader);
        }
        // After these calls another server leads, and every client of the old leader uses another
        // server.
        for locker in [&ours, &theirs] {
            eventually("the ensemble serves", async || {
                let other = locker.lock("other").acquire().await.ok()?;
                other.release().await.is_clean().then_some(())
            })
            .await;
        }
        check_next_holder(guard, next, fault).await;
        if fault == "stopped" {
            ensemble.resume(leader).unwrap();
        } else {
            ensemble.restart(leader).unwrap();
        }
        ensemble.wait_until_serving().unwrap();
        let client = raw_client(&ensemble.servers()).await;
        eventually("no node is left", async || {
            contenders(&client, fault).await.is_empty().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_work_again_when_all_servers_restart_with_their_data() {
    let mut ensemble = ZooKeeper::start().unwrap();
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    let guard = hold(&ours, "a").await;
    let epoch = guard.epoch();
    let next = enter_queue_behind(&guard, &theirs).await;
    for at in 0..ensemble.len() {
        ensemble.kill(at);
    }
    for at in 0..ensemble.len() {
        ensemble.restart(at).unwrap();
    }
    ensemble.wait_until_serving().unwrap();
    check_next_holder(guard, next, "restarted").await;
    let again = hold(&ours, "a").await;
    assert_eq!(again.epoch(), epoch, "the history goes on");
    release_cleanly(again).await;
    let client = raw_client(&ensemble.servers()).await;
    eventually("no node is left", async || {
        contenders(&client, "a").await.is_empty().then_some(())
    })
    .await;
    the_error_explains_a_missing_quorum(&mut ensemble).await;
}

/// One server of three remains. A client that connects gets an error with the reason why that
/// server does not serve.
async fn the_error_explains_a_missing_quorum(ensemble: &mut ZooKeeper) {
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
        let error = open_refused(config(&servers)).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("no quorum"), "{error}");
    }
}
