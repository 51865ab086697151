//! A store that is unreachable, loses data, or holds unreadable records.

use std::time::Duration;

use distlock_core::{Deleted, ErrorKind, Expect, RecordKey};
use distlock_kickout::{
    Builder, Code, Confirm, ConfirmedBy, LoggedOut, LoginOutcome, Phase, Session, Transition,
    UserRecord,
};

use crate::cluster::{
    Cluster, TEST_TIMEOUT, eventually, in_time, login, notice_of, pause, timers, uid,
};

#[tokio::test]
async fn a_login_with_an_unknown_outcome_is_removed_when_the_store_is_reachable_again() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    // The write is stored and its reply is lost. Afterwards the store does not answer.
    n1.faults.lose_replies(1);
    let login = n1.kick.login(login(&anna, "phone"));
    let cut_soon = async {
        eventually("the write", || async {
            cluster.record(&anna).await.is_some()
        })
        .await;
        n1.faults.cut();
    };
    let (outcome, ()) = tokio::join!(login, cut_soon);
    n1.faults.heal();
    // The look-up may have succeeded before the cut.
    match outcome {
        Err(_) => {}
        Ok(LoginOutcome::Admitted(session)) => drop(session),
        Ok(other) => panic!("{other:?}"),
    }
    eventually("the record to be free of it", || async {
        cluster.record(&anna).await.unwrap().slots.is_empty()
    })
    .await;
    assert_eq!(n1.kick.sessions(), 0);
}

/// The takeover is in the directory, but the node that wrote it does not know. The old session on
/// this node still has to end.
#[tokio::test]
async fn a_takeover_with_a_lost_reply_ends_the_old_session() {
    let cluster = Cluster::new();
    let mut timers = timers();
    // The lease is so long that no node reconciles during this test.
    timers.node_lease = Duration::from_secs(600);
    timers.lock_ttl = Duration::from_secs(1);
    let n1 = cluster.start_node_with("n1", |builder| builder.timers(timers.clone()));
    let n2 = cluster.start_node_with("n2", |builder| {
        builder.timers(timers.clone()).confirm(Confirm::Strict)
    });
    let (n1, n2) = (n1.await, n2.await);
    for somebody_else_comes in [true, false] {
        let anna = uid(&format!("anna{somebody_else_comes}"));
        let phone = n1.admit(&anna, "phone").await;
        n1.faults.lose_next_reply_and_cut();
        let pc = n1.kick.login(login(&anna, "pc")).await;
        assert_eq!(pc.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        if somebody_else_comes {
            let tablet = n2.admit(&anna, "tablet").await;
            assert_eq!(tablet.old_confirmed(), ConfirmedBy::Node);
            assert_eq!(phone.phase(), Phase::Superseded, "two sessions are active");
        }
        n1.faults.heal();
        let notice = notice_of(&phone).await;
        assert_eq!(notice.code, Code::Superseded);
        assert_eq!(notice.by_device.unwrap().as_str(), "pc");
        eventually("the revocation to be settled", || async {
            let record = cluster.record(&anna).await.unwrap();
            record.revocations.is_empty() && record.slots.len() == usize::from(somebody_else_comes)
        })
        .await;
    }
}

/// The login may kick the old session before the store becomes unreachable. If the node then gave
/// up the login, no session would be left.
#[tokio::test]
async fn a_written_login_survives_a_short_outage_of_the_store() {
    let cluster = Cluster::new();
    let mut timers = timers();
    timers.node_lease = Duration::from_secs(600);
    timers.lock_ttl = TEST_TIMEOUT;
    for reply_is_lost in [true, false] {
        for confirm in [Confirm::Available, Confirm::Strict] {
            let at = |node: &str| format!("{node}-{reply_is_lost}-{confirm:?}");
            let build = |node: &str| {
                let with = |builder: Builder| builder.timers(timers.clone()).confirm(confirm);
                (at(node), with)
            };
            let ((first, with), (second, with_too)) = (build("n1"), build("n2"));
            let n1 = cluster.start_node_with(&first, with).await;
            let n2 = cluster.start_node_with(&second, with_too).await;
            let anna = uid(&at("anna"));
            let phone = n1.admit(&anna, "phone").await;
            if reply_is_lost {
                n2.faults.lose_next_reply_and_cut();
            } else {
                n2.faults.answer_next_and_cut();
            }
            let pc = n2.kick.login(login(&anna, "pc"));
            let outage = async {
                eventually("the cut", || async { n2.faults.is_cut() }).await;
                pause(Duration::from_secs(1)).await;
                n2.faults.heal();
            };
            let (pc, ()) = tokio::join!(in_time("the login", pc), outage);
            match pc {
                Ok(LoginOutcome::Admitted(pc)) => assert!(pc.check().is_ok()),
                other => panic!("reply lost: {reply_is_lost}, {confirm:?}: {other:?}"),
            }
            assert_eq!(notice_of(&phone).await.code, Code::Superseded);
        }
    }
}

#[tokio::test]
async fn a_logout_is_repeated_until_the_store_is_reachable_again() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    n1.faults.cut();
    assert_eq!(phone.logout().await, LoggedOut::Queued);
    assert_eq!(n1.kick.sessions(), 0);
    n1.faults.heal();
    eventually("the delete", || async {
        cluster.record(&anna).await.unwrap().slots.is_empty()
    })
    .await;
}

/// More deletes fail than the queue can hold. The sweeper finds the other sessions in the
/// directory.
#[tokio::test]
async fn the_sweeper_deletes_sessions_whose_logouts_exceed_the_queue() {
    const MANY: usize = 4096 + 100;
    let cluster = Cluster::new();
    let mut timers = timers();
    // On a busy machine these logins may take longer than a short lease lasts.
    timers.node_lease = Duration::from_secs(12);
    let n1 = cluster
        .start_node_with("n1", |builder| builder.timers(timers))
        .await;
    let mut sessions = Vec::new();
    for number in 0..MANY {
        sessions.push(n1.admit(&uid(&format!("u{number}")), "phone").await);
    }
    n1.faults.cut();
    let logouts = sessions.iter().map(Session::logout);
    let outcomes = futures_util::future::join_all(logouts).await;
    assert!(outcomes.iter().all(|it| *it == LoggedOut::Queued));
    n1.faults.heal();
    eventually("every account to be out", || {
        no_session_is_listed(&cluster, &sessions)
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_waits_once_for_a_hanging_store_and_not_for_each_session() {
    const AT_ONCE: u32 = 16;
    let cluster = Cluster::new();
    let mut timers = timers();
    // On a busy machine these logins may take longer than a short lease lasts.
    timers.node_lease = Duration::from_secs(60);
    let mut n1 = cluster
        .start_node_with("n1", |builder| builder.timers(timers))
        .await;
    let mut sessions = Vec::new();
    for number in 0..AT_ONCE * 4 {
        sessions.push(n1.admit(&uid(&format!("u{number}")), "phone").await);
    }
    n1.faults.hang_puts();
    let shutdown = n1.kick.shutdown();
    let meanwhile = async {
        eventually("several to be taken out together", || async {
            n1.faults.hanging_puts() == AT_ONCE
        })
        .await;
        n1.faults.fail_hanging_puts();
        eventually("the others to be given up", || async {
            n1.kick.sessions() == 0
        })
        .await;
        loop {
            // The node may repeat one of the failed deletes, and the repeated delete hangs again.
            n1.faults.fail_hanging_puts();
            pause(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = in_time("the shutdown", shutdown) => {}
        () = meanwhile => unreachable!(),
    }
    assert!(sessions.iter().all(|it| it.phase() == Phase::Closed));
    assert!(n1.faults.hanging_puts() < AT_ONCE * 2);
    let history = n1.take_events();
    let closed = history.iter().filter(|it| it.event == Transition::Closed);
    assert_eq!(closed.count(), sessions.len());
    assert_eq!(cluster.keys("sess/").await.len(), sessions.len());
    // The node has released its lease, so the remaining entries are void.
    let n2 = cluster.start_node("n2").await;
    assert_eq!(n2.kick.route(sessions[0].uid()).await.unwrap(), None);
}

#[tokio::test]
async fn a_session_that_the_store_lost_is_written_again() {
    let cluster = Cluster::new();
    let mut n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let records = cluster.memory.records();
    let key = RecordKey::new("sess/anna").unwrap();
    let entry = records.get(&key).await.unwrap().unwrap();
    records.delete(&key, entry.version).await.unwrap();
    let event = n1.next_event(Transition::Registered).await;
    assert_eq!(event.session, Some(phone.key().session));
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slot_of(phone.key()).is_some());
    assert_eq!(record.r#gen, phone.generation());
    assert!(phone.check().is_ok());
}

/// A store that failed over may restore old entries: a session that logged out, and a revocation of
/// an ended session.
#[tokio::test]
async fn ended_sessions_that_reappear_in_the_directory_are_swept() {
    let cluster = Cluster::new();
    let mut timers = timers();
    // With a shorter lease, the phone could be kicked before the test has read the record.
    timers.node_lease = Duration::from_secs(3);
    let n1 = cluster.start_node_with("n1", |builder| builder.timers(timers.clone()));
    let n2 = cluster.start_node_with("n2", |builder| builder.timers(timers.clone()));
    let (n1, n2) = (n1.await, n2.await);
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    cluster.mesh.silence("n1");
    let pc = n2.admit(&anna, "pc").await;
    let records = cluster.memory.records();
    let key = RecordKey::new("sess/anna").unwrap();
    let before = records.get(&key).await.unwrap().unwrap();
    let record = UserRecord::parse(&anna, &before.value).unwrap();
    assert!(record.slot_of(pc.key()).is_some());
    assert!(record.revocations.iter().any(|it| it.key == *phone.key()));
    phone.logout().await;
    assert_eq!(pc.logout().await, LoggedOut::Deleted);
    let nothing = async || {
        let record = cluster.record(&anna).await.unwrap();
        record.slots.is_empty() && record.revocations.is_empty()
    };
    eventually("everybody to be out", nothing).await;
    let now = records.get(&key).await.unwrap().unwrap();
    let expect = Expect::Version(now.version);
    records.put(&key, &before.value, expect).await.unwrap();
    eventually("everybody to be out again", nothing).await;
}

#[tokio::test]
async fn a_session_that_the_directory_no_longer_names_is_ended() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    cluster.mesh.silence("n1");
    let pc = n2.admit(&anna, "pc").await;
    assert_eq!(notice_of(&phone).await.code, Code::Superseded);
    assert!(pc.check().is_ok());
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_never_overwritten() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let records = cluster.memory.records();
    let key = RecordKey::new("sess/anna").unwrap();
    records.put(&key, b"garbage", Expect::Absent).await.unwrap();
    let error = n1.kick.login(login(&anna, "phone")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(n1.kick.route(&anna).await.is_err());
    pause(timers().sweep * 2).await;
    let entry = records.get(&key).await.unwrap().unwrap();
    assert_eq!(entry.value, b"garbage");
    // Other accounts are not affected.
    assert!(n1.admit(&uid("otto"), "phone").await.check().is_ok());
}

#[tokio::test]
async fn a_session_that_the_store_lost_does_not_outlive_a_ban() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let key = RecordKey::new("sess/anna").unwrap();
    let records = cluster.memory.records();
    let entry = records.get(&key).await.unwrap().unwrap();
    records.delete(&key, entry.version).await.unwrap();
    let ended = n1.kick.ban(&anna, None, Some("spam")).await.unwrap().1;
    // The node may have written the session again before the ban, and then the ban ends that
    // session.
    assert!(ended.len() <= 1);
    let notice = notice_of(&phone).await;
    assert_eq!(
        (notice.code, notice.reason.as_str()),
        (Code::Banned, "spam")
    );
    assert!(cluster.record(&anna).await.unwrap().slots.is_empty());
}

#[tokio::test]
async fn an_unreadable_record_does_not_stop_the_sweep_of_other_records() {
    let cluster = Cluster::new();
    let (n1, mut n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    n2.kick.ban(&uid("anna"), None, None).await.unwrap();
    let key = RecordKey::new("ban/anna").unwrap();
    let records = cluster.memory.records();
    let entry = records.get(&key).await.unwrap().unwrap();
    let garbage = Expect::Version(entry.version);
    records.put(&key, b"garbage", garbage).await.unwrap();
    let _phone = n1.admit(&uid("otto"), "phone").await;
    n1.crash();
    let swept = n2.next_event(Transition::SlotSwept).await;
    assert_eq!(swept.uid, Some(uid("otto")));
}

async fn no_session_is_listed(cluster: &Cluster, sessions: &[Session]) -> bool {
    for session in sessions {
        let record = cluster.record(session.uid()).await.unwrap();
        if record.sessions().next().is_some() {
            return false;
        }
    }
    true
}

/// Each write may be slow, for example because another client has locked the row.
#[tokio::test]
async fn records_of_a_dead_node_are_swept_several_at_a_time() {
    const AT_ONCE: u32 = 16;
    let cluster = Cluster::new();
    let mut timers = timers();
    // With a short lease the node could lose its lease while the store hangs.
    timers.node_lease = Duration::from_secs(60);
    let n2 = cluster
        .start_node_with("n2", |builder| builder.timers(timers))
        .await;
    let n1 = cluster.start_node("n1").await;
    let mut sessions = Vec::new();
    for number in 0..AT_ONCE * 2 {
        sessions.push(n1.admit(&uid(&format!("u{number}")), "phone").await);
    }
    n2.faults.hang_puts();
    n1.crash();
    eventually("several to be swept together", || async {
        n2.faults.hanging_puts() == AT_ONCE
    })
    .await;
    n2.faults.heal();
    n2.faults.fail_hanging_puts();
    eventually("all to be swept", || {
        no_session_is_listed(&cluster, &sessions)
    })
    .await;
}

/// If another client has locked an account's row, the record can be read but not written.
#[tokio::test]
async fn a_failed_write_of_one_account_delays_no_notice_of_another() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let users = ["anna", "bob", "carl"].map(uid);
    let mut old = Vec::new();
    for user in &users {
        old.push(n1.admit(user, "phone").await);
    }
    n1.faults.refuse_puts_of("sess/anna");
    cluster.mesh.silence("n1");
    let mut new = Vec::new();
    for user in &users {
        new.push(n2.admit(user, "pc").await);
    }
    for session in &old {
        assert_eq!(notice_of(session).await.code, Code::Superseded);
    }
    let settled = async |user| cluster.record(user).await.unwrap().revocations.is_empty();
    eventually("the others to be settled", || async {
        settled(&users[1]).await && settled(&users[2]).await
    })
    .await;
    n1.faults.accept_puts_of("sess/anna");
    eventually("the last one to be settled", || settled(&users[0])).await;
    drop(new);
}

#[tokio::test]
async fn failed_writes_of_some_accounts_do_not_stop_the_sweep_of_others() {
    let cluster = Cluster::new();
    let mut timers = timers();
    timers.node_lease = Duration::from_secs(6);
    let (n1, mut n2) = (
        cluster.start_node("n1").await,
        cluster
            .start_node_with("n2", |builder| builder.timers(timers))
            .await,
    );
    // Bob's session logs out, and then the test restores its entry. The other two sessions end with
    // their node.
    let bob = n2.admit(&uid("bob"), "phone").await;
    let key = RecordKey::new("sess/bob").unwrap();
    let records = cluster.memory.records();
    let before = records.get(&key).await.unwrap().unwrap();
    assert_eq!(bob.logout().await, LoggedOut::Deleted);
    let now = records.get(&key).await.unwrap().unwrap();
    n2.faults.refuse_puts_of("sess/bob");
    let expect = Expect::Version(now.version);
    records.put(&key, &before.value, expect).await.unwrap();
    let _anna = n1.admit(&uid("anna"), "phone").await;
    let _otto = n1.admit(&uid("otto"), "phone").await;
    n2.faults.refuse_puts_of("sess/anna");
    n1.crash();
    let swept = n2.next_event(Transition::SlotSwept).await;
    assert_eq!(swept.uid, Some(uid("otto")));
    n2.faults.accept_puts_of("sess/anna");
    let swept = n2.next_event(Transition::SlotSwept).await;
    assert_eq!(swept.uid, Some(uid("anna")));
    n2.faults.accept_puts_of("sess/bob");
    eventually("bob to be out", || async {
        cluster.record(&uid("bob")).await.unwrap().slots.is_empty()
    })
    .await;
}

/// If the login did not see the older session, both sessions would be active until the next
/// reconciliation, although the newer client would have got a confirmation that the older session
/// has ended.
#[tokio::test]
async fn a_login_ends_a_session_of_its_own_node_that_the_store_lost() {
    let cluster = Cluster::new();
    let mut timers = timers();
    // The lease is so long that no node reconciles during this test.
    timers.node_lease = Duration::from_secs(600);
    let n1 = cluster
        .start_node_with("n1", |builder| {
            builder.timers(timers.clone()).confirm(Confirm::Strict)
        })
        .await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let records = cluster.memory.records();
    let key = RecordKey::new("sess/anna").unwrap();
    let entry = records.get(&key).await.unwrap().unwrap();
    records.delete(&key, entry.version).await.unwrap();
    let pc = n1.admit(&anna, "pc").await;
    assert_eq!(phone.phase(), Phase::Superseded);
    assert_eq!(pc.old_confirmed(), ConfirmedBy::Node);
    assert!(pc.generation() > phone.generation());
    assert_eq!(notice_of(&phone).await.by_device.unwrap().as_str(), "pc");
}

/// Grants are suspended for every account. Even if one node has written its sessions of an account
/// again, sessions of other nodes may still be missing.
#[tokio::test]
async fn no_login_is_granted_before_all_nodes_have_written_their_sessions_again() {
    for anna_is_written_again in [true, false] {
        let cluster = Cluster::new();
        let mut timers = timers();
        // The lease is so long that no node reconciles or renews within this test.
        timers.node_lease = Duration::from_secs(600);
        let with = |builder: Builder| builder.timers(timers.clone());
        let n1 = cluster.start_node_with("n1", with).await;
        let n2 = cluster.start_node_with("n2", with).await;
        let anna = uid("anna");
        let phone = n1.admit(&anna, "phone").await;
        let records = cluster.memory.records();
        for (key, entry) in records.scan("", None, 100).await.unwrap() {
            let name = key.as_str().to_owned();
            records.delete(&key, entry.version).await.unwrap();
            if anna_is_written_again && name == "sess/anna" {
                records
                    .put(&key, &entry.value, Expect::Absent)
                    .await
                    .unwrap();
            }
        }
        match n2.login(&anna, "pc").await {
            LoginOutcome::Busy { retry_after } => {
                assert!(retry_after > Duration::from_secs(500), "{retry_after:?}");
            }
            other => panic!("{other}"),
        }
        assert!(phone.check().is_ok());
    }
}

/// The store loses the login's write, and also the list of sessions that the login has to kick.
#[tokio::test]
async fn a_login_that_the_store_lost_before_its_confirmation_is_answered_busy() {
    let cluster = Cluster::new();
    let mut timers = timers();
    timers.node_lease = Duration::from_secs(600);
    let with = |builder: Builder| builder.timers(timers.clone()).confirm(Confirm::Strict);
    let (n1, n2) = (
        cluster.start_node_with("n1", with).await,
        cluster.start_node_with("n2", with).await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    cluster.mesh.silence("n1");
    let records = cluster.memory.records();
    let forget = async {
        eventually("the login to wait for the phone", || async {
            !cluster.record(&anna).await.unwrap().revocations.is_empty()
        })
        .await;
        let key = RecordKey::new("sess/anna").unwrap();
        let entry = records.get(&key).await.unwrap().unwrap();
        let deleted = records.delete(&key, entry.version).await.unwrap();
        assert_eq!(deleted, Deleted::Done);
    };
    let (pc, ()) = tokio::join!(n2.login(&anna, "pc"), forget);
    assert!(matches!(pc, LoginOutcome::Busy { .. }), "{pc}");
    assert!(phone.check().is_ok());
}
