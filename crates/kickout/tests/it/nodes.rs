//! Nodes that die, restart, share a name or cannot renew their lease.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use distlock_core::{
    Clock as _, ErrorKind, Expect, ManualClock, RecordKey, Store, SystemClock, Written,
};
use distlock_kickout::{
    Code, Confirm, ConfirmedBy, Device, Intent, KickOut, LoggedOut, LoginOutcome, NodeId,
    PeerError, Phase, Retry, Target, Transition,
};

use tokio::sync::oneshot;

use crate::{
    cluster::{Cluster, eventually, in_time, login, notice_of, timers, uid},
    link::Link,
};

#[tokio::test]
async fn a_dead_node_does_not_block_a_login() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let old = phone.key().clone();
    n1.crash();
    let pc = n2.admit(&anna, "pc").await;
    assert_eq!(
        pc.old_confirmed(),
        ConfirmedBy::Nobody,
        "n1's lease has not ended yet"
    );
    assert!(pc.check().is_ok());
    eventually("the dead node's revocation to be settled", || async {
        cluster.record(&anna).await.unwrap().revocations.is_empty()
    })
    .await;
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slot_of(&old).is_none() && record.slot_of(pc.key()).is_some());
}

#[tokio::test]
async fn strict_confirmation_waits_until_the_lease_of_the_dead_node_ends() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let n2 = cluster
        .start_node_with("n2", |builder| builder.confirm(Confirm::Strict))
        .await;
    let anna = uid("anna");
    let _phone = n1.admit(&anna, "phone").await;
    n1.crash();
    let pc = in_time("the strict login", n2.admit(&anna, "pc")).await;
    assert_eq!(pc.old_confirmed(), ConfirmedBy::Node);
}

/// If another thread renewed the lease, nobody could log in strictly on another node for as long as
/// the runtime stands still.
#[tokio::test]
async fn a_node_whose_runtime_stands_still_loses_its_lease() {
    let cluster = Arc::new(Cluster::new());
    let anna = uid("anna");
    let (resume, standstill) = mpsc::channel::<()>();
    let (still, ready) = oneshot::channel();
    let n1 = {
        let (cluster, anna) = (Arc::clone(&cluster), anna.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let n1 = cluster.start_node("n1").await;
                let phone = n1.admit(&anna, "phone").await;
                still.send(()).unwrap();
                standstill.recv().unwrap();
                notice_of(&phone).await.code
            })
        }
    };
    let n1 = tokio::task::spawn_blocking(n1);
    ready.await.unwrap();
    let n2 = cluster
        .start_node_with("n2", |builder| builder.confirm(Confirm::Strict))
        .await;
    cluster.mesh.silence("n1");
    let begun = SystemClock.now();
    let pc = in_time("the strict login", n2.admit(&anna, "pc")).await;
    let took = SystemClock.now().since(begun);
    assert_eq!(pc.old_confirmed(), ConfirmedBy::Node);
    let lease = timers().node_lease;
    assert!(took < lease * 2, "{took:?} with a lease of {lease:?}");
    // The session learns of the loss as soon as its node runs again.
    resume.send(()).unwrap();
    let told = in_time("the end of n1", n1).await.unwrap();
    assert!(
        [Code::Superseded, Code::NodeFenced].contains(&told),
        "{told:?}"
    );
}

#[tokio::test]
async fn sessions_of_a_dead_node_are_hidden_and_then_swept() {
    let cluster = Cluster::new();
    let (n1, mut n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let ghost = phone.key().session;
    n1.crash();
    assert!(
        n2.kick.route(&anna).await.unwrap().is_some(),
        "its lease still runs"
    );
    let swept = n2.next_event(Transition::SlotSwept).await;
    assert_eq!(swept.session, Some(ghost));
    assert_eq!(n2.kick.route(&anna).await.unwrap(), None);
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slots.is_empty());
    assert_eq!(record.r#gen, phone.generation(), "the generation stays");
}

#[tokio::test]
async fn a_restarted_node_has_a_new_incarnation() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let (old_boot, old_key) = (n1.kick.boot().unwrap(), phone.key().clone());
    n1.crash();
    // The start waits until the predecessor's lease has ended.
    cluster.mesh.restore("n1");
    let n1 = in_time("the restart", cluster.start_node("n1")).await;
    let boot = n1.kick.boot().unwrap();
    assert!(boot > old_boot);
    assert_eq!(
        n1.kick.route(&anna).await.unwrap(),
        None,
        "its old record is void"
    );
    let pc = n1.admit(&anna, "pc").await;
    assert_eq!(pc.old_confirmed(), ConfirmedBy::Node);
    assert!(
        cluster.mesh.kicks().is_empty(),
        "nobody is asked about the dead"
    );
    assert_eq!(pc.key().boot, boot);
    // The record of the predecessor's session is gone.
    let record = cluster.record(&anna).await.unwrap();
    assert!(record.slot_of(&old_key).is_none());
}

#[tokio::test]
async fn a_second_node_of_the_same_name_is_refused() {
    let cluster = Cluster::new();
    let _n1 = cluster.start_node("n1").await;
    let store = Store::new(cluster.memory.lock(), cluster.memory.records());
    let mut timers = timers();
    timers.node_lease = Duration::from_millis(500);
    let error = KickOut::builder(store, NodeId::new("n1").unwrap())
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
async fn a_node_that_cannot_renew_stops_before_others_count_it_as_dead() {
    let cluster = Cluster::new();
    let (mut n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let boot = n1.kick.boot().unwrap();
    n1.faults.cut();
    let notice = notice_of(&phone).await;
    // At this moment the other nodes still count the node as alive.
    let located = n2.kick.route(&anna).await.unwrap();
    assert_eq!(notice.code, Code::NodeFenced);
    assert!(located.is_some(), "told too late");
    assert!(phone.check().is_err());
    assert!(n1.kick.boot().is_none());
    let refused = n1.login(&anna, "phone").await;
    assert!(matches!(refused, LoginOutcome::Denied(it) if it.code == Code::NodeFenced));
    n1.next_event(Transition::NodeFenced).await;

    n1.faults.heal();
    n1.next_event(Transition::NodeUp).await;
    assert!(n1.kick.boot().unwrap() > boot);
    let again = n1.admit(&anna, "phone").await;
    assert!(again.check().is_ok());
    assert_eq!(phone.logout().await, LoggedOut::AlreadyGone);
    assert_eq!(
        n2.kick.route(&anna).await.unwrap().unwrap().key,
        *again.key()
    );
}

/// A newer version may write a text beside its lease that this version cannot read. The node of
/// such a lease is not dead.
#[tokio::test]
async fn a_node_with_an_unreadable_lease_text_does_not_count_as_dead() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let locker = Store::new(cluster.memory.lock(), cluster.memory.records()).locker();
    let lock = locker.lock("node/n9").ttl(Duration::from_secs(60));
    let lease = lock.meta("another version").acquire().await.unwrap();
    let records = cluster.memory.records();
    for (account, node, boot) in [("anna", "n9", lease.token().get()), ("zoe", "nz", 1)] {
        let record = format!(
            r#"{{"v":1,"gen":5,"slots":{{"main":{{"node":"{node}","boot":{boot},
            "session":"00000000-0000-4000-8000-000000000001","gen":5,
            "device":"phone","class":"","since_ms":0}}}}}}"#
        );
        let key = RecordKey::new(format!("sess/{account}")).unwrap();
        let written = records.put(&key, record.as_bytes(), Expect::Absent).await;
        assert!(matches!(written, Ok(Written::Stored(_))));
    }
    let error = n1.kick.route(&uid("anna")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // The unreadable lease must not keep a new node's sweeper from the records of dead nodes.
    let _n2 = cluster.start_node("n2").await;
    eventually("the session behind it to be swept", || async {
        cluster.record(&uid("zoe")).await.unwrap().slots.is_empty()
    })
    .await;
    assert_eq!(cluster.record(&uid("anna")).await.unwrap().slots.len(), 1);
    // After the node has ended, its records are removed.
    let _ = lease.release().await;
    eventually("the session to be swept", || async {
        cluster.record(&uid("anna")).await.unwrap().slots.is_empty()
    })
    .await;
    assert_eq!(n1.kick.route(&uid("anna")).await.unwrap(), None);
}

#[tokio::test]
async fn the_drain_mark_of_a_node_is_removed_at_its_shutdown() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    n1.kick.drain(100).await.unwrap();
    n2.kick.drain(100).await.unwrap();
    assert_eq!(cluster.keys("drain/").await, ["drain/n1", "drain/n2"]);
    n1.kick.shutdown().await;
    eventually("the mark to be gone", || async {
        cluster.keys("drain/").await == ["drain/n2"]
    })
    .await;
}

/// A node was paused until its lease had ended, and can reach the store when it notices the loss.
/// The node must not advise a client to reconnect whose account has logged in on another node. That
/// client would end the newer session.
#[tokio::test]
async fn a_fenced_node_advises_no_reconnect_if_the_account_logged_in_elsewhere() {
    let cluster = Cluster::new();
    let clock = ManualClock::new();
    let link = Link::new(cluster.memory.lock(), cluster.memory.records());
    let builder = KickOut::builder(link.store(clock.clone()), NodeId::new("n1").unwrap());
    let n1 = builder.timers(timers()).start().await.unwrap();
    let n2 = cluster.start_node("n2").await;
    let users = ["taken", "swept", "left"].map(uid);
    let mut phones = Vec::new();
    for user in &users {
        match n1.login(login(user, "phone")).await.unwrap() {
            LoginOutcome::Admitted(phone) => phones.push(phone),
            other => panic!("{other:?}"),
        }
    }
    let _pc = n2.admit(&users[0], "pc").await;
    let _pc_too = n2.admit(&users[1], "pc").await;
    // This is the state of the store after another node counted the node as dead and swept its
    // records.
    let records = cluster.memory.records();
    let key = RecordKey::new("sess/swept").unwrap();
    let entry = records.get(&key).await.unwrap().unwrap();
    let mut record = cluster.record(&users[1]).await.unwrap();
    record.revocations.clear();
    let cleared = serde_json::to_vec(&record).unwrap();
    let expect = Expect::Version(entry.version);
    records.put(&key, &cleared, expect).await.unwrap();

    // The node's clock advances only now, beyond the end of its lease.
    clock.advance(timers().node_lease * 2);
    for (phone, gone) in phones.iter().zip([true, true, false]) {
        let notice = notice_of(phone).await;
        let by = notice.by_device.as_ref().map(Device::as_str);
        let expected = if gone {
            (Code::Superseded, Retry::Never, Intent::Login, Some("pc"))
        } else {
            (Code::NodeFenced, Retry::Now, Intent::Resume, None)
        };
        let told = (notice.code, notice.retry, notice.intent, by);
        assert_eq!(told, expected, "{:?}", phone.uid());
    }
}

/// A node lost its lease, and another process with the same name has the lease now. The first node
/// must not end the sessions of that process.
#[tokio::test]
async fn a_node_whose_name_was_taken_over_sends_its_kicks_to_the_new_process() {
    let cluster = Cluster::new();
    let mut first = cluster.start_node("n1").await;
    first.faults.cut();
    first.next_event(Transition::NodeFenced).await;
    let second = in_time("the other process", cluster.start_node("n1")).await;
    let anna = uid("anna");
    let phone = second.admit(&anna, "phone").await;
    first.faults.heal();
    let kicked = first.kick.kick(&Target::Uid(anna.clone()), None).await;
    let kicked = kicked.unwrap();
    assert!(kicked.len() == 1 && kicked[0].gone, "{kicked:?}");
    assert_eq!(phone.phase(), Phase::Superseded);
    // The first process refuses a kick that is for the second one.
    let kick = cluster.mesh.kicks().remove(0);
    assert_eq!(kick.key, *phone.key());
    let astray = first.kick.handle_kick(&kick);
    assert!(matches!(astray, Err(PeerError::NotSent(_))), "{astray:?}");
}
