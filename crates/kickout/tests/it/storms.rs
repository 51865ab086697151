//! Bans, draining and storm control.

use std::time::Duration;

use distlock_core::{Clock, ErrorKind, SystemClock};
use distlock_kickout::{
    AccountNews, Admission, Code, Intent, LoginOutcome, NextChanges, NodeState, Retry, Target,
    Transition,
};

use crate::cluster::{Cluster, TEST_TIMEOUT, eventually, login, notice_of, timers, uid};

#[tokio::test]
async fn a_ban_ends_every_session_and_denies_logins_until_it_is_lifted() {
    let cluster = Cluster::new();
    let (n1, mut n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let of_phone = phone.resume_token();
    let (ban, kicked) = n2.kick.ban(&anna, None, Some("spam")).await.unwrap();
    assert_eq!((kicked.len(), kicked[0].gone), (1, true));
    let notice = notice_of(&phone).await;
    assert_eq!(
        (notice.code, notice.retry, notice.reason.as_str()),
        (Code::Banned, Retry::Never, "spam")
    );
    for attempt in [
        login(&anna, "phone"),
        login(&anna, "pc").intent(Intent::Takeover, None),
        login(&anna, "phone").intent(Intent::Resume, Some(of_phone)),
    ] {
        let LoginOutcome::Denied(denied) = n1.kick.login(attempt).await.unwrap() else {
            panic!("a banned account got in");
        };
        assert_eq!(
            (denied.code, denied.reason.as_str()),
            (Code::Banned, "spam")
        );
    }
    let view = n1.kick.view(&anna).await.unwrap();
    assert_eq!(view.record.unwrap().ban, Some(ban));
    assert!(n1.kick.unban(&anna).await.unwrap());
    assert!(!n1.kick.unban(&anna).await.unwrap());
    let again = n1.admit(&anna, "phone").await;
    assert!(again.generation() > phone.generation());
    n2.next_event(Transition::Banned).await;
    assert!(cluster.keys("ban/").await.is_empty());
    // An account that never logged in can be banned, too.
    let otto = uid("otto");
    n2.kick.ban(&otto, None, None).await.unwrap();
    assert!(matches!(
        n1.login(&otto, "pc").await,
        LoginOutcome::Denied(_)
    ));
}

/// The first order is carried out, and nobody knows it. So only the second one is told.
#[tokio::test]
async fn a_ban_with_an_unknown_outcome_is_told_when_it_is_repeated() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let mut changes = n1.kick.account_changes(None);
    n1.faults.lose_next_reply_and_cut();
    let error = n1.kick.ban(&anna, None, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    n1.faults.heal();
    assert!(cluster.record(&anna).await.unwrap().ban.is_some());
    assert!(changes.try_next().is_none());
    n1.kick.ban(&anna, None, None).await.unwrap();
    let Some(NextChanges::Changes(told)) = changes.try_next() else {
        panic!("the second order was not told");
    };
    assert!(matches!(told[..], [ref it] if matches!(it.news, AccountNews::Banned { .. })));
}

#[tokio::test]
async fn a_ban_with_a_ttl_ends_and_its_records_are_removed() {
    let cluster = Cluster::new();
    let mut n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    for wrong in [Duration::ZERO, Duration::from_secs(1 << 40)] {
        let error = n1.kick.ban(&anna, Some(wrong), None).await.unwrap_err();
        assert!(error.to_string().contains("ban ttl"), "{error}");
    }
    let ttl = Duration::from_millis(300);
    n1.kick.ban(&anna, Some(ttl), None).await.unwrap();
    eventually("the ban to end", || async {
        match n1.login(&anna, "phone").await {
            LoginOutcome::Admitted(session) => {
                session.logout().await;
                true
            }
            LoginOutcome::Denied(denied) => {
                assert_eq!(denied.code, Code::Banned);
                false
            }
            other => panic!("{other:?}"),
        }
    })
    .await;
    n1.next_event(Transition::Unbanned).await;
    assert!(cluster.keys("ban/").await.is_empty());
    assert_eq!(cluster.record(&anna).await.unwrap().ban, None);
}

#[tokio::test]
async fn a_denied_login_counts_against_the_burst_of_its_account() {
    const RATE: u32 = 1;
    const BURST: u32 = 10;
    let cluster = Cluster::new();
    let admission = Admission::unbounded().per_account(RATE, BURST);
    let n1 = cluster
        .start_node_with("n1", |builder| builder.admission(admission))
        .await;
    let anna = uid("anna");
    n1.kick.ban(&anna, None, None).await.unwrap();
    let started = SystemClock.now();
    let passed = || SystemClock.now().since(started);
    let mut denied = 0;
    while !matches!(n1.login(&anna, "phone").await, LoginOutcome::Busy { .. }) {
        denied += 1;
        assert!(passed() < TEST_TIMEOUT, "{denied} logins were denied");
    }
    // On a slow machine the account gains further logins while the test runs.
    let gained = passed().as_secs() * u64::from(RATE);
    let most = u64::from(BURST) + gained;
    assert!((u64::from(BURST)..=most).contains(&denied), "{denied}");
}

#[tokio::test]
async fn a_ban_that_has_ended_is_not_shown() {
    let cluster = Cluster::new();
    let mut timers = timers();
    // The sweeper does not run within this test.
    timers.sweep = Duration::from_secs(3600);
    let n1 = cluster
        .start_node_with("n1", |builder| builder.timers(timers))
        .await;
    let anna = uid("anna");
    let ttl = Duration::from_millis(300);
    n1.kick.ban(&anna, Some(ttl), None).await.unwrap();
    eventually("the ban to end", || async {
        let record = n1.kick.view(&anna).await.unwrap().record;
        record.unwrap().ban.is_none()
    })
    .await;
}

#[tokio::test]
async fn an_ended_ban_is_swept_without_a_login() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let (anna, otto) = (uid("anna"), uid("otto"));
    let ttl = Duration::from_millis(50);
    n1.kick.ban(&anna, Some(ttl), None).await.unwrap();
    n1.kick.ban(&otto, None, None).await.unwrap();
    eventually("the ended ban to be swept", || async {
        cluster.record(&anna).await.unwrap().ban.is_none()
            && cluster.keys("ban/").await == ["ban/otto"]
    })
    .await;
    assert!(cluster.record(&otto).await.unwrap().ban.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_during_a_ban_is_denied_or_ended() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    for round in 0..30 {
        let user = uid(&format!("u{round}"));
        let (kick, who) = (n1.kick.clone(), user.clone());
        let login = tokio::spawn(async move { kick.login(login(&who, "phone")).await.unwrap() });
        n2.kick.ban(&user, None, None).await.unwrap();
        match login.await.unwrap() {
            LoginOutcome::Admitted(session) => {
                assert_eq!(notice_of(&session).await.code, Code::Banned);
            }
            LoginOutcome::Denied(denied) => assert_eq!(denied.code, Code::Banned),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_draining_node_ends_its_sessions_at_the_given_rate() {
    let cluster = Cluster::new();
    let (mut n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let mut sessions = Vec::new();
    for number in 0..6 {
        sessions.push(n1.admit(&uid(&format!("u{number}")), "phone").await);
    }
    assert!(n1.kick.drain(0).await.is_err());
    n1.kick.drain(1).await.unwrap();
    n1.next_event(Transition::NodeDraining).await;
    let state = async || {
        let nodes = n2.kick.nodes().await.unwrap();
        let states: Vec<_> = nodes.iter().map(|node| node.state).collect();
        (nodes[0].node.clone(), states)
    };
    let (first, states) = state().await;
    assert_eq!(&first, n1.kick.node());
    assert_eq!(states, [NodeState::Draining, NodeState::Up]);
    let LoginOutcome::Denied(denied) = n1.login(&uid("late"), "phone").await else {
        panic!("a draining node took a login");
    };
    assert_eq!(denied.code, Code::Draining);
    let left = || sessions.iter().filter(|it| it.check().is_ok()).count();
    eventually("the first to be told", || async { left() < 6 }).await;
    // At one session per second, the sixth session gets its notice five seconds after the first.
    assert!(left() > 0, "all went at once");
    n1.kick.drain(1000).await.unwrap();
    for session in &sessions {
        let notice = notice_of(session).await;
        assert_eq!((notice.code, notice.retry), (Code::Draining, Retry::Now));
    }
    let moved = n2.admit(&uid("u0"), "phone").await;
    assert!(moved.check().is_ok());
    n1.kick.undrain().await.unwrap();
    assert_eq!(state().await.1, [NodeState::Up, NodeState::Up]);
    drop(n1.admit(&uid("late"), "phone").await);
}

#[tokio::test]
async fn an_account_with_too_many_logins_is_slowed_down_and_others_are_not() {
    let cluster = Cluster::new();
    let n1 = cluster
        .start_node_with("n1", |builder| {
            builder.admission(Admission::unbounded().per_account(1, 10))
        })
        .await;
    let anna = uid("anna");
    let mut admitted = Vec::new();
    let mut advice = None;
    for round in 0..200 {
        match n1.login(&anna, ["phone", "pc"][round % 2]).await {
            LoginOutcome::Admitted(session) => admitted.push(session),
            LoginOutcome::Busy { retry_after } => {
                advice = Some(retry_after);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let advice = advice.expect("it was never slowed down");
    assert!(advice >= Duration::from_millis(200), "{advice:?}");
    assert!(admitted.len() >= 10);
    assert!(admitted.last().unwrap().check().is_ok());
    drop(n1.admit(&uid("otto"), "pc").await);
}

#[tokio::test]
async fn find_lists_the_sessions_that_a_kick_would_end() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let phone = n1.admit(&uid("anna"), "phone").await;
    let pc = n2.admit(&uid("otto"), "pc").await;
    let target = Target::Node(n1.kick.node().clone());
    let found = n2.kick.find(&target).await.unwrap();
    assert_eq!((found.len(), &found[0].entry.key), (1, phone.key()));
    assert!(phone.check().is_ok());
    assert_eq!(n1.kick.find(&Target::All).await.unwrap().len(), 2);
    // The node gets no kick, so the revocation stays pending.
    cluster.mesh.silence("n1");
    let kicked = n2.kick.kick(&Target::All, None).await.unwrap();
    assert_eq!(kicked.len(), 2);
    notice_of(&pc).await;
    let unsettled = kicked.iter().find(|it| !it.gone).unwrap();
    assert_eq!(&unsettled.key, phone.key());
    let (pending, _) = n2.kick.revocations(10).await.unwrap();
    // Node `n1` may have found and settled the revocation in its own reconciliation, so the list
    // may be empty already.
    assert!(pending.iter().all(|it| it.revocation.key == *phone.key()));
    notice_of(&phone).await;
    eventually("it to be settled", || async {
        n2.kick.revocations(10).await.unwrap().0.is_empty()
    })
    .await;
}
