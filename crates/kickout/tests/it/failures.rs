//! Lost replies, lost kicks, dead nodes, a store that is away.

use std::time::Duration;

use distlock_core::{ErrorKind, Expect, RecordKey, Store, Written};
use distlock_kickout::{
    Boot, Code, Confirm, KickRequest, KickResult, LoggedOut, LoginOutcome, NodeState, PeerError,
    Phase, Session, SessionKey, Transition, UserRecord,
};

use crate::cluster::{Cluster, eventually, login, pause, soon, timers, told, uid};

#[tokio::test]
async fn a_lost_kick_is_healed_by_the_node_itself() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    cluster.mesh.silence("n1");
    let pc = n2.admit(&anna, "pc").await;
    assert!(!pc.old_confirmed());
    assert_eq!(cluster.record(&anna).await.unwrap().revocations.len(), 1);
    let notice = told(&phone).await;
    assert_eq!(notice.code, Code::Superseded);
    assert_eq!(notice.by_device.unwrap().as_str(), "pc");
    eventually("revocation and hint to be settled", || async {
        cluster.record(&anna).await.unwrap().revocations.is_empty()
            && cluster.keys("rev/").await.is_empty()
    })
    .await;
    assert!(pc.check().is_ok());
}

#[tokio::test]
async fn a_kick_never_hits_another_session() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
    let anna = uid("anna");
    let old = n1.admit(&anna, "phone").await;
    let _pc = n2.admit(&anna, "pc").await;
    let kick = cluster.mesh.kicks().remove(0);
    let new = n1.admit(&anna, "phone").await;
    // The same kick again, late: the phone is back on the same node.
    let again = n1.kick.handle_kick(&kick);
    assert_eq!(again, Ok(KickResult::AlreadyGone), "it was told before");
    let old_key = old.key().clone();
    old.logout().await;
    assert_eq!(
        n1.kick.handle_kick(&kick),
        Ok(KickResult::Newer(new.generation()))
    );
    assert!(new.check().is_ok());
    // Even with the name of the new session it is too old.
    let mut forged = kick.clone();
    forged.key = new.key().clone();
    assert_eq!(
        n1.kick.handle_kick(&forged),
        Ok(KickResult::Newer(new.generation()))
    );
    assert!(new.check().is_ok());
    // And with another account's name it finds nothing.
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
    // A kick for a later incarnation reached the wrong process: saying "gone" would lose it.
    assert!(matches!(
        n1.kick.handle_kick(&with_boot(boot + 1)),
        Err(PeerError::NotSent(_))
    ));
    let mut elsewhere = kick.clone();
    elsewhere.key.node = distlock_kickout::NodeId::new("n9").unwrap();
    assert!(matches!(
        n1.kick.handle_kick(&elsewhere),
        Err(PeerError::NotSent(_))
    ));
    assert!(new.check().is_ok());
}

#[tokio::test]
async fn a_dead_node_does_not_block_a_login() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let old = phone.key().clone();
    n1.crash();
    let pc = n2.admit(&anna, "pc").await;
    assert!(!pc.old_confirmed(), "n1's lease has not ended yet");
    assert!(pc.check().is_ok());
    eventually("the dead node's revocation to be settled", || async {
        cluster.record(&anna).await.unwrap().revocations.is_empty()
            && cluster.keys("rev/").await.is_empty()
    })
    .await;
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slot_of(&old).is_none() && record.slot_of(pc.key()).is_some());
}

#[tokio::test]
async fn strict_confirmation_ends_with_the_dead_nodes_lease() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
    let n2 = cluster
        .node_with("n2", |builder| builder.confirm(Confirm::Strict))
        .await;
    let anna = uid("anna");
    let _phone = n1.admit(&anna, "phone").await;
    n1.crash();
    let pc = soon("the strict login", n2.admit(&anna, "pc")).await;
    assert!(pc.old_confirmed());
}

#[tokio::test]
async fn sessions_of_a_dead_node_become_invisible_and_are_swept() {
    let cluster = Cluster::new();
    let (n1, mut n2) = (cluster.node("n1").await, cluster.node("n2").await);
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let ghost = phone.key().session;
    n1.crash();
    assert!(
        n2.kick.route(&anna).await.unwrap().is_some(),
        "its lease still runs"
    );
    let swept = n2.event(Transition::GhostSwept).await;
    assert_eq!(swept.session, Some(ghost));
    assert_eq!(n2.kick.route(&anna).await.unwrap(), None);
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slots.is_empty());
    assert_eq!(record.r#gen, phone.generation(), "the generation stays");
}

#[tokio::test]
async fn a_restarted_node_is_another_incarnation() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let (old_boot, old_key) = (n1.kick.boot().unwrap(), phone.key().clone());
    n1.crash();
    // Waits for the predecessor's lease.
    cluster.mesh.unsilence("n1");
    let n1 = soon("the restart", cluster.node("n1")).await;
    let boot = n1.kick.boot().unwrap();
    assert!(boot > old_boot);
    assert_eq!(
        n1.kick.route(&anna).await.unwrap(),
        None,
        "its old record is void"
    );
    let pc = n1.admit(&anna, "pc").await;
    assert!(pc.old_confirmed());
    assert!(
        cluster.mesh.kicks().is_empty(),
        "nobody is asked about the dead"
    );
    assert_eq!(pc.key().boot, boot);
    // A logout that the predecessor left in some queue changes nothing.
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slot_of(&old_key).is_none());
}

#[tokio::test]
async fn a_second_node_of_the_same_name_is_refused() {
    let cluster = Cluster::new();
    let _n1 = cluster.node("n1").await;
    let store = Store::new(cluster.memory.lock(), cluster.memory.records());
    let mut timers = timers();
    timers.node_lease = Duration::from_millis(500);
    let error =
        distlock_kickout::KickOut::builder(store, distlock_kickout::NodeId::new("n1").unwrap())
            .timers(timers)
            .start()
            .await
            .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(
        error
            .to_string()
            .contains("a node named n1 is already running"),
        "{error}"
    );
}

#[tokio::test]
async fn a_node_that_cannot_renew_stops_before_others_take_it_for_dead() {
    let cluster = Cluster::new();
    let (mut n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let boot = n1.kick.boot().unwrap();
    n1.faults.cut();
    let notice = told(&phone).await;
    // At this moment the others still count it among the living.
    let located = n2.kick.route(&anna).await.unwrap();
    assert_eq!(notice.code, Code::NodeFenced);
    assert!(located.is_some(), "told too late");
    assert!(phone.check().is_err());
    assert!(n1.kick.boot().is_none());
    assert!(
        matches!(n1.login(&anna, "phone").await, LoginOutcome::Denied(it) if it.code == Code::NodeFenced)
    );
    n1.event(Transition::NodeFenced).await;

    n1.faults.heal();
    n1.event(Transition::NodeUp).await;
    assert!(n1.kick.boot().unwrap() > boot);
    let again = n1.admit(&anna, "phone").await;
    assert!(again.check().is_ok());
    assert_eq!(phone.logout().await, LoggedOut::AlreadyGone);
    assert_eq!(
        n2.kick.route(&anna).await.unwrap().unwrap().key,
        *again.key()
    );
}

#[tokio::test]
async fn lost_replies_are_looked_up() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
    let anna = uid("anna");
    // Written, but the reply was lost.
    n1.faults.lose_replies(1);
    let phone = n1.admit(&anna, "phone").await;
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slot_of(phone.key()).is_some());
    // Never arrived.
    n1.faults.lose_requests(2);
    let pc = n1.admit(&anna, "pc").await;
    assert_eq!(told(&phone).await.code, Code::Superseded);
    assert!(
        cluster
            .record(&anna)
            .await
            .unwrap()
            .slot_of(pc.key())
            .is_some()
    );
    // The same for a logout.
    n1.faults.lose_replies(1);
    assert_eq!(pc.logout().await, LoggedOut::Deleted);
    assert!(cluster.record(&anna).await.unwrap().slots.is_empty());
}

#[tokio::test]
async fn a_lost_write_is_run_again_once() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
    let anna = uid("anna");
    n1.faults.conflict(1);
    let phone = n1.admit(&anna, "phone").await;
    assert!(phone.check().is_ok());
    n1.faults.conflict(100);
    assert!(matches!(
        n1.login(&anna, "pc").await,
        LoginOutcome::Busy { .. }
    ));
    n1.faults.conflict(0);
    assert!(
        phone.check().is_ok(),
        "a login that failed ends nobody's session"
    );
    assert_eq!(n1.kick.sessions(), 1);
    assert_eq!(n1.kick.logins_under_way(), 0);
}

#[tokio::test]
async fn a_login_whose_outcome_stays_unknown_is_removed_when_the_store_is_back() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
    let anna = uid("anna");
    // Written, the reply lost, and every later try without an answer.
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
    // The lookup may have been faster than the cut.
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

#[tokio::test]
async fn a_logout_is_tried_until_the_store_is_back() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
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

/// More than the queue of deletes holds: what found no place there is found in the directory.
#[tokio::test]
async fn more_logouts_than_can_wait_for_the_store() {
    const MANY: usize = 4096 + 100;
    let cluster = Cluster::new();
    let mut timers = timers();
    // A busy machine may take longer for this than a short lease lasts.
    timers.node_lease = Duration::from_secs(12);
    let n1 = cluster
        .node_with("n1", |builder| builder.timers(timers))
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
    eventually("every account to be out", || async {
        for session in &sessions {
            let record = cluster.record(session.uid()).await.unwrap();
            if record.sessions().next().is_some() {
                return false;
            }
        }
        true
    })
    .await;
}

#[tokio::test]
async fn a_session_that_the_store_forgot_is_written_again() {
    let cluster = Cluster::new();
    let mut n1 = cluster.node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let records = cluster.memory.records();
    let key = RecordKey::new("sess/anna").unwrap();
    let entry = records.get(&key).await.unwrap().unwrap();
    records.delete(&key, entry.version).await.unwrap();
    let event = n1.event(Transition::Registered).await;
    assert_eq!(event.session, Some(phone.key().session));
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slot_of(phone.key()).is_some());
    assert_eq!(record.r#gen, phone.generation());
    assert!(phone.check().is_ok());
}

/// A store that failed over may say again what had been settled long ago: that a session is in which logged out, and that one
/// must go which went.
#[tokio::test]
async fn sessions_that_ended_and_came_back_to_the_directory_are_swept() {
    let cluster = Cluster::new();
    let mut timers = timers();
    // Long enough that no node looks for kicks while this looks at the record.
    timers.node_lease = Duration::from_secs(12);
    let n1 = cluster.node_with("n1", |builder| builder.timers(timers.clone()));
    let n2 = cluster.node_with("n2", |builder| builder.timers(timers.clone()));
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
    let (n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    cluster.mesh.silence("n1");
    let pc = n2.admit(&anna, "pc").await;
    // The hint and the revocation are lost as well; the comparison with the directory is left.
    for key in cluster.keys("rev/").await {
        let key = RecordKey::new(key).unwrap();
        let records = cluster.memory.records();
        if let Some(entry) = records.get(&key).await.unwrap() {
            records.delete(&key, entry.version).await.unwrap();
        }
    }
    assert_eq!(told(&phone).await.code, Code::Superseded);
    assert!(pc.check().is_ok());
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_never_overwritten() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
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
    // Others are not affected.
    assert!(n1.admit(&uid("otto"), "phone").await.check().is_ok());
}

#[tokio::test]
async fn the_lock_is_not_held_while_the_old_session_is_told() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
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
    // The account's lock is free again although the kick has not been answered.
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
    assert_eq!(told(&phone).await.code, Code::Superseded);
    assert_eq!(phone.phase(), Phase::Superseded);
}

#[tokio::test]
async fn a_grant_that_arrives_after_its_login_was_given_up_changes_nothing() {
    let cluster = Cluster::new();
    let mut timers = timers();
    timers.node_lease = Duration::from_secs(12);
    let mut n1 = cluster
        .node_with("n1", |builder| builder.timers(timers))
        .await;
    let anna = uid("anna");
    n1.faults.stick_next();
    let error = soon("the login", n1.kick.login(login(&anna, "phone"))).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    n1.faults.heal();
    // It looked, and found nothing to delete.
    n1.event(Transition::StaleDeleteRefused).await;
    let (key, value, expect) = n1.faults.stuck().unwrap();
    let late = cluster.memory.records().put(&key, &value, expect).await;
    assert_eq!(late.unwrap(), Written::Conflict);
    assert!(cluster.record(&anna).await.unwrap().slots.is_empty());
    assert!(n1.admit(&anna, "phone").await.check().is_ok());
}

#[tokio::test]
async fn a_login_that_is_let_in_while_its_node_shuts_down_is_told() {
    let cluster = Cluster::new();
    let n1 = cluster
        .node_with("n1", |builder| {
            let mut timers = timers();
            timers.node_lease = Duration::from_secs(15);
            timers.grace = Duration::from_secs(15);
            timers.lock_wait = Duration::from_secs(15);
            builder.timers(timers)
        })
        .await;
    let anna = uid("anna");
    // Somebody whom the shutdown waits for.
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
        let outcome = soon("the login", waiting).await.unwrap().unwrap();
        match outcome {
            LoginOutcome::Admitted(session) => {
                assert_eq!(told(&session).await.code, Code::Draining);
                session.logout().await;
            }
            LoginOutcome::Denied(denied) => assert_eq!(denied.code, Code::Draining),
            other => panic!("{other:?}"),
        }
        assert_eq!(told(&slow).await.code, Code::Draining);
        slow.logout().await;
    };
    tokio::join!(shutdown, meanwhile);
    assert!(cluster.record(&anna).await.unwrap().slots.is_empty());
}

#[tokio::test]
async fn a_session_that_the_store_forgot_does_not_outlive_a_ban() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let key = RecordKey::new("sess/anna").unwrap();
    let records = cluster.memory.records();
    let entry = records.get(&key).await.unwrap().unwrap();
    records.delete(&key, entry.version).await.unwrap();
    let ended = n1.kick.ban(&anna, None, Some("spam")).await.unwrap().1;
    // The node may have written it again before the ban.
    assert!(ended.len() <= 1);
    let notice = told(&phone).await;
    assert_eq!(
        (notice.code, notice.reason.as_str()),
        (Code::Banned, "spam")
    );
    assert!(cluster.record(&anna).await.unwrap().slots.is_empty());
}

#[tokio::test]
async fn one_record_that_cannot_be_swept_does_not_keep_others_from_it() {
    let cluster = Cluster::new();
    let (n1, mut n2) = (cluster.node("n1").await, cluster.node("n2").await);
    n2.kick.ban(&uid("anna"), None, None).await.unwrap();
    let key = RecordKey::new("ban/anna").unwrap();
    let records = cluster.memory.records();
    let entry = records.get(&key).await.unwrap().unwrap();
    let garbage = Expect::Version(entry.version);
    records.put(&key, b"garbage", garbage).await.unwrap();
    let _phone = n1.admit(&uid("otto"), "phone").await;
    n1.crash();
    let swept = n2.event(Transition::GhostSwept).await;
    assert_eq!(swept.uid, Some(uid("otto")));
}

/// A newer version may write beside its lease what this one cannot read: that is not death.
#[tokio::test]
async fn a_node_that_cannot_be_understood_is_not_taken_for_dead() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
    let locker = Store::new(cluster.memory.lock(), cluster.memory.records()).locker();
    let lock = locker.lock("node/n9").ttl(Duration::from_secs(60));
    let lease = lock.meta("another version").acquire().await.unwrap();
    let record = format!(
        r#"{{"v":1,"gen":5,"slots":{{"main":{{"node":"n9","boot":{},"session":"00000000-0000-4000-8000-000000000001",
        "gen":5,"device":"phone","class":"","since":0}}}}}}"#,
        lease.token()
    );
    let records = cluster.memory.records();
    let key = RecordKey::new("sess/anna").unwrap();
    let written = records.put(&key, record.as_bytes(), Expect::Absent).await;
    assert!(matches!(written, Ok(Written::Stored(_))));
    let error = n1.kick.route(&uid("anna")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // It goes, and so does what it wrote.
    let _ = lease.release().await;
    eventually("the session to be swept", || async {
        cluster.record(&uid("anna")).await.unwrap().slots.is_empty()
    })
    .await;
    assert_eq!(n1.kick.route(&uid("anna")).await.unwrap(), None);
}
