//! Logins that wait until the program of the older session has saved.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, SystemClock};
use distlock_kickout::{
    Builder, Code, Confirm, ConfirmedBy, KickRequest, KickResult, LoggedOut, LoginOutcome, Session,
    Uid,
};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::cluster::{
    Cluster, Node, TEST_TIMEOUT, eventually, in_time, login, notice_of, pause, timers, uid,
};

/// Time that the program of these tests takes to save.
const SAVING: Duration = Duration::from_millis(400);

/// Starts a node with this mode, on which programs have this time to save.
async fn node(cluster: &Cluster, name: &str, confirm: Confirm, save_budget: Duration) -> Node {
    let mut timers = timers();
    timers.save_budget = save_budget;
    cluster
        .start_node_with(name, |builder| builder.timers(timers).confirm(confirm))
        .await
}

/// Logs in a device whose program says when it has saved.
async fn admit(node: &Node, uid: &Uid, device: &str) -> Session {
    match node
        .kick
        .login(login(uid, device).saves(true))
        .await
        .unwrap()
    {
        LoginOutcome::Admitted(session) => session,
        other => panic!("{device} was not admitted: {other:?}"),
    }
}

/// A program that saves after its session got the notice.
struct Program {
    has_saved: Arc<AtomicBool>,
    running: JoinHandle<LoggedOut>,
}

impl Program {
    fn start(session: Session) -> Self {
        let has_saved = Arc::new(AtomicBool::new(false));
        let saved = Arc::clone(&has_saved);
        let running = tokio::spawn(async move {
            session.superseded().await;
            pause(SAVING).await;
            saved.store(true, Ordering::SeqCst);
            session.saved();
            session.logout().await
        });
        Self { has_saved, running }
    }

    fn has_saved(&self) -> bool {
        self.has_saved.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_login_waits_until_the_program_of_the_older_session_has_saved() {
    for confirm in [Confirm::Available, Confirm::Strict] {
        for newcomer in ["n1", "n2"] {
            let cluster = Cluster::new();
            let n1 = node(&cluster, "n1", confirm, TEST_TIMEOUT).await;
            let n2 = node(&cluster, "n2", confirm, TEST_TIMEOUT).await;
            let anna = uid("anna");
            let old = admit(&n1, &anna, "phone").await;
            assert_eq!(old.old_confirmed(), ConfirmedBy::Program);
            let program = Program::start(old);
            let node = if newcomer == "n1" { &n1 } else { &n2 };
            let pc = in_time("the login", node.admit(&anna, "pc")).await;
            let told = format!("{confirm:?} on {newcomer}");
            assert!(program.has_saved(), "{told}: let in before the save");
            assert_eq!(pc.old_confirmed(), ConfirmedBy::Program, "{told}");
            program.running.await.unwrap();
            eventually("the revocation to be settled", || async {
                cluster.record(&anna).await.unwrap().revocations.is_empty()
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_login_waits_for_a_program_no_longer_than_the_budget() {
    const BUDGET: Duration = Duration::from_millis(600);
    // On a busy machine two nodes and a store in one process may be late.
    const SLACK: Duration = Duration::from_secs(3);
    for confirm in [Confirm::Available, Confirm::Strict] {
        for newcomer in ["n1", "n2"] {
            let cluster = Cluster::new();
            let n1 = node(&cluster, "n1", confirm, BUDGET).await;
            let n2 = node(&cluster, "n2", confirm, BUDGET).await;
            let anna = uid("anna");
            let old = admit(&n1, &anna, "phone").await;
            let node = if newcomer == "n1" { &n1 } else { &n2 };
            let started = SystemClock.now();
            let pc = in_time("the login", node.admit(&anna, "pc")).await;
            let took = SystemClock.now().since(started);
            let told = format!("{confirm:?} on {newcomer}: {took:?}");
            assert!(took >= BUDGET && took < BUDGET + SLACK, "{told}");
            assert_eq!(pc.old_confirmed(), ConfirmedBy::Node, "{told}");
            // The client of the phone was given the whole time.
            let notice = notice_of(&old).await;
            assert_eq!(u128::from(notice.grace_ms), BUDGET.as_millis());
        }
    }
}

#[tokio::test]
async fn a_third_login_waits_for_the_save_of_the_first_session() {
    let cluster = Cluster::new();
    let n1 = node(&cluster, "n1", Confirm::Available, TEST_TIMEOUT).await;
    let n2 = node(&cluster, "n2", Confirm::Available, TEST_TIMEOUT).await;
    let anna = uid("anna");
    let old = admit(&n1, &anna, "phone").await;
    let (kick, second) = (n2.kick.clone(), login(&anna, "pc").saves(true));
    let second = tokio::spawn(async move { kick.login(second).await.unwrap() });
    notice_of(&old).await;
    let (kick, third) = (n1.kick.clone(), login(&anna, "tablet"));
    let third = tokio::spawn(async move { kick.login(third).await.unwrap() });
    // The second login is overtaken while it waits, and does not wait on.
    let overtaken = in_time("the second login", second).await.unwrap();
    assert!(
        matches!(overtaken, LoginOutcome::Superseded(_)),
        "{overtaken:?}"
    );
    assert!(!third.is_finished(), "let in before the save");
    old.saved();
    old.logout().await;
    match in_time("the third login", third).await.unwrap() {
        LoginOutcome::Admitted(tablet) => {
            assert_eq!(tablet.old_confirmed(), ConfirmedBy::Program);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_that_leaves_without_a_word_ends_the_wait() {
    let cluster = Cluster::new();
    let n1 = node(&cluster, "n1", Confirm::Strict, TEST_TIMEOUT).await;
    let n2 = node(&cluster, "n2", Confirm::Strict, TEST_TIMEOUT).await;
    let anna = uid("anna");
    let old = admit(&n1, &anna, "phone").await;
    let (kick, next) = (n2.kick.clone(), login(&anna, "pc"));
    let next = tokio::spawn(async move { kick.login(next).await.unwrap() });
    notice_of(&old).await;
    // For example, the task of the connection has panicked.
    drop(old);
    match in_time("the login", next).await.unwrap() {
        LoginOutcome::Admitted(pc) => assert_eq!(pc.old_confirmed(), ConfirmedBy::Node),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_session_that_its_node_ended_is_waited_for_until_it_has_saved() {
    let cluster = Cluster::new();
    let n1 = node(&cluster, "n1", Confirm::Available, TEST_TIMEOUT).await;
    let n2 = node(&cluster, "n2", Confirm::Available, TEST_TIMEOUT).await;
    let anna = uid("anna");
    let old = admit(&n1, &anna, "phone").await;
    old.end(Code::HeartbeatLost);
    let program = Program::start(old);
    let pc = in_time("the login", n2.admit(&anna, "pc")).await;
    assert!(program.has_saved(), "let in before the save");
    assert_eq!(pc.old_confirmed(), ConfirmedBy::Program);
}

#[tokio::test]
async fn a_strict_login_waits_for_a_save_on_a_node_that_answers_nobody() {
    let cluster = Cluster::new();
    let n1 = node(&cluster, "n1", Confirm::Strict, Duration::from_secs(1)).await;
    let n2 = node(&cluster, "n2", Confirm::Strict, Duration::from_secs(1)).await;
    let anna = uid("anna");
    let program = Program::start(admit(&n1, &anna, "phone").await);
    cluster.mesh.silence("n1");
    // The node finds the login in the directory, and removes the revocation after the save.
    let pc = in_time("the login", n2.admit(&anna, "pc")).await;
    assert!(program.has_saved(), "let in before the save");
    assert_eq!(pc.old_confirmed(), ConfirmedBy::Node);
}

/// The older session saves and leaves while the answer to its kick is on its way. Its node removes
/// the revocation then, and the login finds none.
#[tokio::test]
async fn a_save_is_not_missed_between_a_kick_and_the_look_at_the_record() {
    for confirm in [Confirm::Available, Confirm::Strict] {
        let cluster = Cluster::new();
        let mut timers = timers();
        timers.save_budget = TEST_TIMEOUT;
        (timers.kick_budget, timers.peer_deadline) = (TEST_TIMEOUT, TEST_TIMEOUT);
        let with = |builder: Builder| builder.timers(timers.clone()).confirm(confirm);
        let n1 = cluster.start_node_with("n1", with).await;
        let n2 = cluster.start_node_with("n2", with).await;
        let anna = uid("anna");
        let old = admit(&n1, &anna, "phone").await;
        cluster.mesh.delay_answers("n1");
        let (kick, next) = (n2.kick.clone(), login(&anna, "pc"));
        let next = tokio::spawn(async move { kick.login(next).await.unwrap() });
        notice_of(&old).await;
        old.saved();
        old.logout().await;
        eventually("the end of the revocation", || async {
            cluster.record(&anna).await.unwrap().revocations.is_empty()
        })
        .await;
        cluster.mesh.restore("n1");
        match in_time("the login", next).await.unwrap() {
            LoginOutcome::Admitted(pc) => {
                assert_eq!(pc.old_confirmed(), ConfirmedBy::Program, "{confirm:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The node of the older session is told when the time to save that the login has counted from its
/// grant is over.
#[tokio::test]
async fn a_session_that_is_told_late_has_its_whole_time_to_save() {
    let cluster = Cluster::new();
    let mut timers = timers();
    timers.save_budget = SAVING * 2;
    // No node reconciles during this test.
    timers.node_lease = Duration::from_secs(600);
    let over = timers.kick_budget + timers.save_budget + timers.peer_deadline * 2;
    let with = |builder: Builder| builder.timers(timers.clone()).confirm(Confirm::Strict);
    let n1 = cluster.start_node_with("n1", with).await;
    let n2 = cluster.start_node_with("n2", with).await;
    let anna = uid("anna");
    let program = Program::start(admit(&n1, &anna, "phone").await);
    cluster.mesh.silence("n1");
    let (kick, next) = (n2.kick.clone(), login(&anna, "pc"));
    let next = tokio::spawn(async move { kick.login(next).await.unwrap() });
    pause(over).await;
    assert!(!next.is_finished() && !program.has_saved());
    cluster.mesh.restore("n1");
    match in_time("the login", next).await.unwrap() {
        LoginOutcome::Admitted(pc) => {
            assert!(program.has_saved(), "let in before the save");
            assert_eq!(pc.old_confirmed(), ConfirmedBy::Program);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_late_kick_learns_that_the_session_had_saved() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let old = admit(&n1, &anna, "phone").await;
    let kick = KickRequest::new(
        anna.clone(),
        old.key().clone(),
        old.generation(),
        Code::Superseded,
        Uuid::new_v4(),
        n1.kick.node().clone(),
    );
    assert_eq!(n1.kick.handle_kick(&kick), Ok(KickResult::Saving));
    assert_eq!(n1.kick.handle_kick(&kick), Ok(KickResult::Saving));
    old.saved();
    assert_eq!(n1.kick.handle_kick(&kick), Ok(KickResult::Saved));
    old.logout().await;
    let _pc = n1.admit(&anna, "pc").await;
    assert_eq!(n1.kick.handle_kick(&kick), Ok(KickResult::Saved));
}

#[tokio::test]
async fn a_node_that_stops_gives_its_programs_the_time_to_save() {
    let cluster = Cluster::new();
    let n1 = node(&cluster, "n1", Confirm::Available, TEST_TIMEOUT).await;
    let n2 = node(&cluster, "n2", Confirm::Available, TEST_TIMEOUT).await;
    let anna = uid("anna");
    // The grace of these tests is half as long as the save.
    let program = Program::start(admit(&n1, &anna, "phone").await);
    n1.kick.shutdown().await;
    assert!(program.has_saved(), "the node stopped before the save");
    assert_eq!(program.running.await.unwrap(), LoggedOut::Deleted);
    let _pc = n2.admit(&anna, "pc").await;
}
