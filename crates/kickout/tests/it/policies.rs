//! Policies, intents, and the outcomes of simultaneous logins.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::Store;
use distlock_kickout::{
    Allowed, Class, Code, Intent, Login, LoginOutcome, OnExceed, Policy, PolicyName, Profiles,
    Session, Target,
};
use tokio::sync::watch;

use crate::cluster::{Cluster, Node, device, eventually, in_time, login, notice_of, pause, uid};

/// Starts a node with this policy.
async fn node(cluster: &Cluster, name: &str, policy: Policy) -> Node {
    cluster
        .start_node_with(name, |builder| builder.policy(policy))
        .await
}

/// The devices of the sessions that are active.
fn active<'a>(sessions: impl IntoIterator<Item = &'a Session>) -> Vec<String> {
    sessions
        .into_iter()
        .filter(|session| session.check().is_ok())
        .map(|session| session.device().to_string())
        .collect()
}

#[tokio::test]
async fn a_phone_and_a_pc_each_keep_a_session_on_two_nodes() {
    let cluster = Cluster::new();
    let policy = Policy::named(PolicyName::PhoneAndPc);
    let (n1, n2) = (
        node(&cluster, "n1", policy).await,
        node(&cluster, "n2", policy).await,
    );
    let anna = uid("anna");
    let admit = async |node: &Node, name: &str, class: &str| {
        let login = Login::new(anna.clone(), device(name), Class::new(class).unwrap());
        match node.kick.login(login).await.unwrap() {
            LoginOutcome::Admitted(session) => session,
            other => panic!("{other:?}"),
        }
    };
    let phone = admit(&n1, "phone", "phone").await;
    let laptop = admit(&n2, "laptop", "pc").await;
    assert!(phone.check().is_ok() && laptop.check().is_ok());
    let other_phone = admit(&n2, "new phone", "phone").await;
    let notice = notice_of(&phone).await;
    assert_eq!(notice.code, Code::Superseded);
    assert_eq!(notice.by_device, Some(device("new phone")));
    assert_eq!(active([&phone, &laptop, &other_phone]).len(), 2);
    // A late logout of the phone removes no other session.
    phone.logout().await;
    assert_eq!(cluster.record(&anna).await.unwrap().slots.len(), 2);
}

#[tokio::test]
async fn under_deny_the_first_login_wins_until_another_takes_over() {
    let cluster = Cluster::new();
    let policy = Policy::single().on_exceed(OnExceed::Deny);
    let (n1, n2) = (
        node(&cluster, "n1", policy).await,
        node(&cluster, "n2", policy).await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let LoginOutcome::Denied(denied) = n2.login(&anna, "pc").await else {
        panic!("it was let in");
    };
    assert_eq!(denied.code, Code::Denied);
    assert_eq!(denied.by_device, Some(device("phone")));
    assert!(phone.check().is_ok());
    let takeover = login(&anna, "pc").intent(Intent::Takeover, None);
    let LoginOutcome::Admitted(pc) = n2.kick.login(takeover).await.unwrap() else {
        panic!("a takeover was denied");
    };
    assert_eq!(notice_of(&phone).await.code, Code::Superseded);
    // The same device may log in again.
    let again = n1.admit(&anna, "pc").await;
    assert_eq!(notice_of(&pc).await.code, Code::Replaced);
    // A dead node's session does not deny a login.
    drop(phone);
    n1.crash();
    drop(again);
    eventually("the dead node's session to count no more", || async {
        matches!(n2.login(&anna, "tablet").await, LoginOutcome::Admitted(_))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_concurrent_logins_exactly_the_limit_survives() {
    for (policy, survivors) in [
        (Policy::named(PolicyName::NTotal(3)), 3),
        (
            Policy::named(PolicyName::NTotal(3)).on_exceed(OnExceed::Deny),
            3,
        ),
        (
            Policy::named(PolicyName::NTotal(2)).on_exceed(OnExceed::EvictIdle),
            2,
        ),
        (Policy::single().on_exceed(OnExceed::Deny), 1),
        (Policy::named(PolicyName::Unlimited), 12),
    ] {
        let cluster = Cluster::new();
        let nodes = [
            node(&cluster, "n1", policy).await,
            node(&cluster, "n2", policy).await,
        ];
        let anna = uid("anna");
        let logins = (0..12).map(|number| {
            let kick = nodes[number % 2].kick.clone();
            let login = login(&anna, &format!("d{number}"));
            tokio::spawn(async move { kick.login(login).await.unwrap() })
        });
        let mut sessions = Vec::new();
        for outcome in logins.collect::<Vec<_>>() {
            match outcome.await.unwrap() {
                LoginOutcome::Admitted(session) => sessions.push(session),
                LoginOutcome::Denied(denied) => assert_eq!(denied.code, Code::Denied),
                LoginOutcome::Superseded(_) => {}
                other => panic!("{policy:?}: {other:?}"),
            }
        }
        eventually(
            &format!("{survivors} survivors under {policy:?}"),
            || async { active(&sessions).len() == survivors },
        )
        .await;
        assert_eq!(
            cluster.record(&anna).await.unwrap().slots.len(),
            survivors,
            "{policy:?}"
        );
    }
}

#[tokio::test]
async fn the_idle_session_ends_on_any_node() {
    let cluster = Cluster::new();
    let policy = Policy::named(PolicyName::NTotal(2)).on_exceed(OnExceed::EvictIdle);
    let (n1, n2) = (
        node(&cluster, "n1", policy).await,
        node(&cluster, "n2", policy).await,
    );
    let anna = uid("anna");
    let old = n1.admit(&anna, "old").await;
    let new = n2.admit(&anna, "new").await;
    // The pause makes the two idle times differ.
    pause(std::time::Duration::from_millis(20)).await;
    old.check().unwrap();
    let third = n2.admit(&anna, "third").await;
    assert_eq!(notice_of(&new).await.code, Code::Superseded);
    assert_eq!(active([&old, &new, &third]).len(), 2);
    // The sessions of a node that does not answer count as idle.
    pause(std::time::Duration::from_millis(20)).await;
    old.check().unwrap();
    cluster.mesh.silence("n1");
    let _fourth = n2.admit(&anna, "fourth").await;
    assert!(third.check().is_ok());
    cluster.mesh.restore("n1");
    assert_eq!(notice_of(&old).await.code, Code::Superseded);
}

#[tokio::test]
async fn a_kicked_session_cannot_resume_and_a_disconnected_session_can() {
    let cluster = Cluster::new();
    let policy = Policy::named(PolicyName::NTotal(2));
    let n1 = node(&cluster, "n1", policy).await;
    let anna = uid("anna");
    let resume = |token: &str, name: &str| {
        n1.kick
            .login(login(&anna, name).intent(Intent::Resume, Some(token.into())))
    };
    let phone = n1.admit(&anna, "phone").await;
    let of_phone = phone.resume_token();
    phone.logout().await;
    let _pc = n1.admit(&anna, "pc").await;
    // Another device logged in, but in another slot.
    let LoginOutcome::Admitted(phone) = resume(&of_phone, "phone").await.unwrap() else {
        panic!("it was free to come back");
    };
    // The session resumes while its old connection still exists, and even under another device
    // name.
    let of_phone = phone.resume_token();
    let LoginOutcome::Admitted(again) = resume(&of_phone, "my phone").await.unwrap() else {
        panic!("it was still in");
    };
    assert_eq!(notice_of(&phone).await.code, Code::Replaced);
    // After a kick by an administrator the session cannot resume.
    let of_phone = again.resume_token();
    let target = Target::Session(again.key().session);
    n1.kick.kick(&target, None).await.unwrap();
    notice_of(&again).await;
    let LoginOutcome::Denied(denied) = resume(&of_phone, "my phone").await.unwrap() else {
        panic!("it was kicked");
    };
    assert_eq!(denied.code, Code::Superseded);
}

#[tokio::test]
async fn a_resume_never_ends_a_session_that_was_granted_later() {
    // The limit is lowered over a restart. The old devices come back by themselves after somebody
    // has logged in.
    for on_exceed in [OnExceed::EvictOldest, OnExceed::EvictIdle, OnExceed::Deny] {
        for (limit, resumed) in [(1, vec![]), (2, vec!["d5"])] {
            let cluster = Cluster::new();
            let n1 = node(&cluster, "n1", Policy::named(PolicyName::NTotal(5))).await;
            let anna = uid("anna");
            let mut tokens = Vec::new();
            for number in 1..=5 {
                let name = format!("d{number}");
                tokens.push((n1.admit(&anna, &name).await.resume_token(), name));
            }
            n1.kick.shutdown().await;
            let policy = Policy::named(PolicyName::NTotal(limit)).on_exceed(on_exceed);
            let n1 = node(&cluster, "n1", policy).await;
            let fresh = n1.admit(&anna, "fresh").await;
            let mut back = Vec::new();
            // The session with the highest generation comes first: it alone may find room.
            for (token, name) in tokens.iter().rev() {
                let resume = login(&anna, name).intent(Intent::Resume, Some(token.clone()));
                match n1.kick.login(resume).await.unwrap() {
                    LoginOutcome::Admitted(session) => back.push(session),
                    LoginOutcome::Denied(denied) => {
                        let newest = if back.is_empty() { "fresh" } else { "d5" };
                        assert_eq!(denied.code, Code::Superseded, "{name}, {policy}");
                        assert_eq!(denied.by_device, Some(device(newest)), "{name}, {policy}");
                    }
                    other => panic!("{name}, {policy}: {other:?}"),
                }
            }
            assert_eq!(active(&back), resumed, "{policy}");
            assert_eq!(active([&fresh]), ["fresh"], "{policy}");
        }
    }
}

#[tokio::test]
async fn a_resume_never_ends_a_later_session_of_its_own_device() {
    let cluster = Cluster::new();
    let n1 = node(&cluster, "n1", Policy::named(PolicyName::NTotal(3))).await;
    let anna = uid("anna");
    let old = n1.admit(&anna, "phone").await;
    old.logout().await;
    // The new session gets another slot, so the slot of the old session stays free.
    let new = n1.admit(&anna, "phone").await;
    let late = login(&anna, "phone").intent(Intent::Resume, Some(old.resume_token()));
    let LoginOutcome::Denied(denied) = n1.kick.login(late).await.unwrap() else {
        panic!("a late resume ended the device's newer session");
    };
    assert_eq!(denied.code, Code::Superseded);
    assert!(new.check().is_ok());
}

/// Profiles that allow every login and count them.
#[derive(Debug, Default)]
struct CountingProfiles(watch::Sender<u32>);

#[async_trait]
impl Profiles for CountingProfiles {
    async fn load(&self, _: &Login) -> distlock_core::Result<Allowed> {
        self.0.send_modify(|asked| *asked += 1);
        Ok(Allowed::Yes)
    }
}

#[tokio::test]
async fn a_refused_resume_replaces_no_login() {
    let cluster = Cluster::new();
    let profiles = Arc::new(CountingProfiles::default());
    let asked = profiles.clone();
    let n1 = cluster
        .start_node_with("n1", |builder| builder.profiles(asked))
        .await;
    let anna = uid("anna");
    let pc = n1.admit(&anna, "pc").await;
    let of_pc = pc.resume_token();
    let target = Target::Session(pc.key().session);
    n1.kick.kick(&target, None).await.unwrap();
    pc.logout().await;
    for resuming in ["pc", "phone"] {
        let locker = Store::new(cluster.memory.lock(), cluster.memory.records()).locker();
        let guard = locker.lock("user/anna").acquire().await.unwrap();
        let mut count = profiles.0.subscribe();
        let before = *count.borrow();
        // After the profile check, a login enters the queue without another pause.
        let resume = login(&anna, resuming).intent(Intent::Resume, Some(of_pc.clone()));
        let mut asking = Vec::new();
        for (number, login) in (1..).zip([login(&anna, "phone"), resume]) {
            let kick = n1.kick.clone();
            asking.push(tokio::spawn(
                async move { kick.login(login).await.unwrap() },
            ));
            let arrived = count.wait_for(|asked| *asked == before + number);
            in_time("the login", arrived).await.unwrap();
        }
        let [phone, late] = asking.try_into().unwrap();
        let _ = guard.release().await;
        match in_time("the resume", late).await.unwrap() {
            LoginOutcome::Denied(denied) => assert_eq!(denied.code, Code::Superseded),
            other => panic!("{other:?}"),
        }
        match in_time("the phone", phone).await.unwrap() {
            LoginOutcome::Admitted(phone) => assert!(phone.check().is_ok()),
            other => panic!("nobody is left: {other:?}"),
        }
    }
}

#[tokio::test]
async fn of_two_resumes_of_one_client_the_second_is_admitted() {
    let cluster = Cluster::new();
    let profiles = Arc::new(CountingProfiles::default());
    let asked = profiles.clone();
    let n1 = cluster
        .start_node_with("n1", |builder| builder.profiles(asked))
        .await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let of_phone = phone.resume_token();
    let locker = Store::new(cluster.memory.lock(), cluster.memory.records()).locker();
    let guard = locker.lock("user/anna").acquire().await.unwrap();
    let mut count = profiles.0.subscribe();
    let mut attempts = Vec::new();
    for number in 2..4 {
        let resume = login(&anna, "phone").intent(Intent::Resume, Some(of_phone.clone()));
        let kick = n1.kick.clone();
        attempts.push(tokio::spawn(
            async move { kick.login(resume).await.unwrap() },
        ));
        let arrived = count.wait_for(|asked| *asked == number);
        in_time("the attempt", arrived).await.unwrap();
    }
    let _ = guard.release().await;
    let [first, second] = attempts.try_into().unwrap();
    let first = in_time("the first attempt", first).await.unwrap();
    assert!(matches!(first, LoginOutcome::Superseded(_)), "{first:?}");
    match in_time("the second attempt", second).await.unwrap() {
        LoginOutcome::Admitted(again) => assert!(again.check().is_ok()),
        other => panic!("{other:?}"),
    }
    assert_eq!(notice_of(&phone).await.code, Code::Replaced);
}
