//! Lost replies, lost kicks and late grants.

use std::time::Duration;

use distlock_core::{ErrorKind, ManualClock, Store, Written};
use distlock_kickout::{
    Boot, Code, ConfirmedBy, Delivery, KickOut, KickRequest, KickResult, LoggedOut, LoginOutcome,
    Message, NodeId, NodeState, OnExceed, PeerError, Phase, Policy, PolicyName, SessionKey,
    Transition,
};

use crate::{
    cluster::{Cluster, TEST_TIMEOUT, eventually, in_time, login, notice_of, pause, timers, uid},
    link::Link,
};

#[tokio::test]
async fn reconciliation_ends_a_session_whose_kick_was_lost() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    cluster.mesh.silence("n1");
    let pc = n2.admit(&anna, "pc").await;
    assert_eq!(pc.old_confirmed(), ConfirmedBy::Nobody);
    assert_eq!(cluster.record(&anna).await.unwrap().revocations.len(), 1);
    let notice = notice_of(&phone).await;
    assert_eq!(notice.code, Code::Superseded);
    assert_eq!(notice.by_device.unwrap().as_str(), "pc");
    eventually("revocation to be settled", || async {
        cluster.record(&anna).await.unwrap().revocations.is_empty()
    })
    .await;
    assert!(pc.check().is_ok());
}

#[tokio::test]
async fn a_kick_never_ends_another_session() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let old = n1.admit(&anna, "phone").await;
    let _pc = n2.admit(&anna, "pc").await;
    let kick = cluster.mesh.kicks().remove(0);
    let new = n1.admit(&anna, "phone").await;
    // The phone has logged in again on the same node, and the same kick arrives again.
    let again = n1.kick.handle_kick(&kick);
    assert_eq!(again, Ok(KickResult::AlreadyGone), "it was told before");
    let old_key = old.key().clone();
    old.logout().await;
    assert_eq!(
        n1.kick.handle_kick(&kick),
        Ok(KickResult::Newer(new.generation()))
    );
    assert!(new.check().is_ok());
    // This kick has the new session's id, but its generation is too low.
    let mut forged = kick.clone();
    forged.key = new.key().clone();
    assert_eq!(
        n1.kick.handle_kick(&forged),
        Ok(KickResult::Newer(new.generation()))
    );
    assert!(new.check().is_ok());
    // This kick names another account, so it finds no session.
    let mut foreign = forged.clone();
    foreign.gen_max = new.generation();
    foreign.uid = uid("otto");
    assert_eq!(n1.kick.handle_kick(&foreign), Ok(KickResult::AlreadyGone));
    assert!(new.check().is_ok());

    let with_boot = |boot| {
        KickRequest::new(
            anna.clone(),
            SessionKey {
                boot: Boot::new(boot),
                ..old_key.clone()
            },
            new.generation(),
            Code::Superseded,
            kick.kick_id,
            kick.from.clone(),
        )
    };
    let boot = n1.kick.boot().unwrap().get();
    assert_eq!(
        n1.kick.handle_kick(&with_boot(boot - 1)),
        Ok(KickResult::BootMismatch)
    );
    // A kick for a later incarnation reached the wrong process. The answer "gone" would lose the
    // kick.
    assert!(matches!(
        n1.kick.handle_kick(&with_boot(boot + 1)),
        Err(PeerError::NotSent(_))
    ));
    let mut elsewhere = kick.clone();
    elsewhere.key.node = NodeId::new("n9").unwrap();
    assert!(matches!(
        n1.kick.handle_kick(&elsewhere),
        Err(PeerError::NotSent(_))
    ));
    assert!(new.check().is_ok());
}

#[tokio::test]
async fn the_outcome_of_a_write_with_a_lost_reply_is_looked_up() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    // The next write is stored, and its reply is lost.
    n1.faults.lose_replies(1);
    let phone = n1.admit(&anna, "phone").await;
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slot_of(phone.key()).is_some());
    // The requests of the next two writes get lost.
    n1.faults.lose_requests(2);
    let pc = n1.admit(&anna, "pc").await;
    assert_eq!(notice_of(&phone).await.code, Code::Superseded);
    assert!(
        cluster
            .record(&anna)
            .await
            .unwrap()
            .slot_of(pc.key())
            .is_some()
    );
    // A logout handles the same faults.
    n1.faults.lose_replies(1);
    assert_eq!(pc.logout().await, LoggedOut::Deleted);
    assert!(cluster.record(&anna).await.unwrap().slots.is_empty());
}

#[tokio::test]
async fn a_login_is_tried_again_once_after_a_conflict() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    n1.faults.cause_conflicts(1);
    let phone = n1.admit(&anna, "phone").await;
    assert!(phone.check().is_ok());
    n1.faults.cause_conflicts(100);
    assert!(matches!(
        n1.login(&anna, "pc").await,
        LoginOutcome::Busy { .. }
    ));
    n1.faults.cause_conflicts(0);
    assert!(
        phone.check().is_ok(),
        "a login that failed ends nobody's session"
    );
    assert_eq!(n1.kick.sessions(), 1);
    assert_eq!(n1.kick.logins_under_way(), 0);
}

#[tokio::test]
async fn the_lock_is_not_held_during_kicks() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    cluster.mesh.silence("n1");
    let first = tokio::spawn({
        let kick = n2.kick.clone();
        let login = login(&anna, "pc");
        async move { kick.login(login).await.unwrap() }
    });
    eventually("the first kick", || async {
        !cluster.mesh.kicks().is_empty()
    })
    .await;
    // The account's lock is free while the kick is still unanswered.
    let store = Store::new(cluster.memory.lock(), cluster.memory.records());
    let guard = store
        .locker()
        .lock("user/anna")
        .wait(Duration::from_millis(500))
        .acquire()
        .await
        .unwrap();
    assert!(!first.is_finished(), "the kick is still being tried");
    let _ = guard.release().await;
    let LoginOutcome::Admitted(pc) = first.await.unwrap() else {
        panic!("the pc was not admitted");
    };
    assert!(pc.check().is_ok());
    assert_eq!(notice_of(&phone).await.code, Code::Superseded);
    assert_eq!(phone.phase(), Phase::Superseded);
}

#[tokio::test]
async fn a_grant_that_arrives_after_its_login_was_given_up_changes_nothing() {
    let cluster = Cluster::new();
    let mut timers = timers();
    timers.node_lease = Duration::from_secs(12);
    let mut n1 = cluster
        .start_node_with("n1", |builder| builder.timers(timers))
        .await;
    let anna = uid("anna");
    n1.faults.hold_next_put();
    let error = in_time("the login", n1.kick.login(login(&anna, "phone"))).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    n1.faults.heal();
    // The logout found nothing to delete.
    n1.next_event(Transition::StaleDeleteRefused).await;
    let (key, value, expect) = n1.faults.take_held_put().unwrap();
    let late = cluster.memory.records().put(&key, &value, expect).await;
    assert_eq!(late.unwrap(), Written::Conflict);
    assert!(cluster.record(&anna).await.unwrap().slots.is_empty());
    assert!(n1.admit(&anna, "phone").await.check().is_ok());
}

#[tokio::test]
async fn a_login_that_is_admitted_during_a_shutdown_gets_a_notice() {
    let cluster = Cluster::new();
    let n1 = cluster
        .start_node_with("n1", |builder| {
            let mut timers = timers();
            timers.node_lease = Duration::from_secs(15);
            timers.grace = Duration::from_secs(15);
            timers.lock_wait = Duration::from_secs(15);
            builder.timers(timers)
        })
        .await;
    let anna = uid("anna");
    // The shutdown has to wait until the client of this session leaves.
    let slow = n1.admit(&uid("otto"), "phone").await;
    let locker = Store::new(cluster.memory.lock(), cluster.memory.records()).locker();
    let guard = locker.lock("user/anna").acquire().await.unwrap();
    let kick = n1.kick.clone();
    let waiting = tokio::spawn(async move { kick.login(login(&uid("anna"), "phone")).await });
    eventually("the login to wait", || async {
        n1.kick.logins_under_way() == 1
    })
    .await;
    let shutdown = n1.kick.shutdown();
    let meanwhile = async {
        eventually("the shutdown", || async {
            n1.kick.state() == NodeState::Draining
        })
        .await;
        let _ = guard.release().await;
        let outcome = in_time("the login", waiting).await.unwrap().unwrap();
        match outcome {
            LoginOutcome::Admitted(session) => {
                assert_eq!(notice_of(&session).await.code, Code::Draining);
                session.logout().await;
            }
            LoginOutcome::Denied(denied) => assert_eq!(denied.code, Code::Draining),
            other => panic!("{other:?}"),
        }
        assert_eq!(notice_of(&slow).await.code, Code::Draining);
        slow.logout().await;
    };
    tokio::join!(shutdown, meanwhile);
    assert!(cluster.record(&anna).await.unwrap().slots.is_empty());
}

/// The store answers every request, except inspections of the leases of some nodes.
#[tokio::test]
async fn leases_that_cannot_be_inspected_delay_a_login_for_a_bounded_time() {
    let cluster = Cluster::new();
    let policy = Policy::named(PolicyName::NTotal(2)).on_exceed(OnExceed::EvictIdle);
    let (n1, n2) = (
        cluster.start_node_with("n1", |builder| builder.policy(policy)),
        cluster.start_node_with("n2", |builder| builder.policy(policy)),
    );
    let (n1, n2) = (n1.await, n2.await);
    let anna = uid("anna");
    let (_phone, _pc) = (n1.admit(&anna, "phone").await, n2.admit(&anna, "pc").await);

    let link = Link::new(cluster.memory.lock(), cluster.memory.records());
    for mute in ["node/n1", "node/n2"] {
        link.faults().ignore_inspections_of(mute);
    }
    let clock = ManualClock::new();
    let store = link.store(clock.clone());
    let mut timers = timers();
    timers.node_lease = Duration::from_secs(60);
    let bound = timers.peer_deadline * 2 + timers.kick_budget;
    let builder = KickOut::builder(store, NodeId::new("n3").unwrap());
    let n3 = builder.policy(policy).timers(timers).start().await.unwrap();
    let tablet = login(&anna, "tablet");
    let tablet = tokio::spawn(async move { n3.login(tablet).await.unwrap() });
    // The login inspects the leases before it takes the lock, while it holds the lock, and for the
    // kick. Only the clock of this node advances, so the other nodes do not reconcile meanwhile.
    let step = Duration::from_millis(50);
    let mut took = Duration::ZERO;
    while !tablet.is_finished() {
        assert!(took <= bound * 2, "still waiting after {took:?}");
        clock.advance(step);
        took += step;
        pause(Duration::from_millis(5)).await;
    }
    let outcome = tablet.await.unwrap();
    assert!(matches!(outcome, LoginOutcome::Admitted(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_kick_reaches_a_restored_node_behind_an_open_circuit() {
    let cluster = Cluster::new();
    let mut timers = timers();
    // The node lease is so long that no node reconciles within this test. The kick budget is longer
    // than the test.
    timers.node_lease = Duration::from_secs(600);
    timers.kick_budget = TEST_TIMEOUT;
    let n1 = cluster.start_node_with("n1", |builder| builder.timers(timers.clone()));
    let n2 = cluster.start_node_with("n2", |builder| builder.timers(timers.clone()));
    let (n1, n2) = (n1.await, n2.await);
    let (anna, otto) = (uid("anna"), uid("otto"));
    let phone = n1.admit(&anna, "phone").await;
    let _otto = n1.admit(&otto, "phone").await;
    cluster.mesh.silence("n1");
    let send = async || {
        let message = Message::new(anna.clone(), "hello");
        n2.kick.deliver(&otto, message).await.unwrap()
    };
    eventually("n1 to be left alone", || async {
        matches!(&send().await[..], [only] if only.delivery == Delivery::Missed)
    })
    .await;
    cluster.mesh.restore("n1");
    match in_time("the login", n2.kick.login(login(&anna, "pc")))
        .await
        .unwrap()
    {
        LoginOutcome::Admitted(pc) => assert_eq!(pc.old_confirmed(), ConfirmedBy::Node),
        other => panic!("{other:?}"),
    }
    assert_eq!(notice_of(&phone).await.code, Code::Superseded);
}
