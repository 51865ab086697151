//! The order of the steps of a login: the embedder's profiles, the account's lock, the kicks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind};
use distlock_kickout::{
    Allowed, Code, DeliverRequest, DeliverResult, Denied, KickRequest, KickResult, Login,
    LoginOutcome, NodeAddress, Order, PeerError, Peers, Profiles, Transition,
};
use tokio::sync::watch;

use crate::cluster::{Cluster, PATIENCE, eventually, login, soon, timers, uid};

/// A peer whose kicks arrive when the test lets them pass.
#[derive(Debug, Default)]
struct Blocked {
    waits: watch::Sender<bool>,
    go: watch::Sender<bool>,
}

#[async_trait]
impl Peers for Blocked {
    async fn kick(&self, _: &NodeAddress, _: KickRequest) -> Result<KickResult, PeerError> {
        self.waits.send_replace(true);
        let mut go = self.go.subscribe();
        go.wait_for(|go| *go).await.unwrap();
        Ok(KickResult::AlreadyGone)
    }

    async fn deliver(
        &self,
        _: &NodeAddress,
        _: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        Err(PeerError::NotSent("nothing is delivered here".into()))
    }
}

/// Two logins on one node, one after the other, while the old session's node does not answer.
/// Returns whether the second was granted before the first was answered.
async fn overlap(order: Order) -> bool {
    let cluster = Cluster::new();
    let blocked = Arc::new(Blocked::default());
    let mut patient = timers();
    patient.kick_budget = PATIENCE;
    patient.peer_deadline = PATIENCE;
    let (peers, times) = (blocked.clone(), patient.clone());
    let mut n1 = cluster
        .node_with("n1", |builder| {
            builder.order(order).timers(times).peers(peers)
        })
        .await;
    let n2 = cluster.node("n2").await;
    let anna = uid("anna");
    let _old = n2.admit(&anna, "old").await;
    let ask = |device: &str| {
        let (kick, login) = (n1.kick.clone(), login(&anna, device));
        tokio::spawn(async move { kick.login(login).await.unwrap() })
    };
    let first = ask("first");
    let mut waits = blocked.waits.subscribe();
    soon("a kick", waits.wait_for(|waits| *waits))
        .await
        .unwrap();
    let second = ask("second");
    if order == Order::WriteThenTell {
        for _ in 0..2 {
            n1.event(Transition::Granted).await;
        }
        blocked.go.send_replace(true);
        let (_first, _second) = (first.await.unwrap(), second.await.unwrap());
        return true;
    }
    eventually("the second login", || async {
        n1.kick.logins_under_way() > 0
    })
    .await;
    blocked.go.send_replace(true);
    let (_first, _second) = (first.await.unwrap(), second.await.unwrap());
    let history = n1.history();
    let at = |transition, device: &str| {
        let of = |it: &&distlock_kickout::Event| {
            it.event == transition && it.device.as_ref().is_some_and(|it| it.as_str() == device)
        };
        history.iter().find(of).map(|it| it.seq)
    };
    let granted = at(Transition::Granted, "second").unwrap();
    at(Transition::Admitted, "first").is_none_or(|through| granted < through)
}

#[tokio::test]
async fn a_login_waits_for_no_kick_of_another_one() {
    assert!(overlap(Order::WriteThenTell).await);
}

/// The order that exists for comparison only.
#[tokio::test]
async fn in_the_literal_order_it_does() {
    assert!(!overlap(Order::TellUnderLock).await);
}

/// Profiles that answer by the device's name.
#[derive(Debug, Default)]
struct ByDevice(watch::Sender<u32>);

#[async_trait]
impl Profiles for ByDevice {
    async fn load(&self, login: &Login) -> distlock_core::Result<Allowed> {
        self.0.send_modify(|asked| *asked += 1);
        match login.device.as_str() {
            "unpaid" => Ok(Allowed::No(Denied::new(Code::Denied))),
            "broken" => Err(Error::new(ErrorKind::Unavailable, "no profile")),
            "never" => std::future::pending().await,
            _ => Ok(Allowed::Yes),
        }
    }
}

#[tokio::test]
async fn a_profile_is_asked_before_anything_is_done() {
    let cluster = Cluster::new();
    let profiles = Arc::new(ByDevice::default());
    let asked = profiles.clone();
    let n1 = cluster
        .node_with("n1", |builder| builder.profiles(asked))
        .await;
    let anna = uid("anna");
    let LoginOutcome::Denied(denied) = n1.login(&anna, "unpaid").await else {
        panic!("it was let in");
    };
    assert_eq!(denied, Denied::new(Code::Denied));
    let error = n1.kick.login(login(&anna, "broken")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The caller of this login gives up.
    let never = n1.kick.login(login(&anna, "never"));
    let mut count = profiles.0.subscribe();
    tokio::select! {
        _ = never => panic!("it was answered"),
        _ = soon("the question", count.wait_for(|asked| *asked == 3)) => {}
    }
    assert_eq!(cluster.keys("sess/").await, Vec::<String>::new());
    assert_eq!(n1.kick.logins_under_way(), 0);
    let _phone = n1.admit(&anna, "phone").await;
    assert_eq!(*profiles.0.borrow(), 4);
}

/// The wait for the lock begins after the profile is loaded.
#[tokio::test]
async fn a_slow_profile_takes_nothing_from_the_wait_for_the_lock() {
    #[derive(Debug)]
    struct Slow;
    #[async_trait]
    impl Profiles for Slow {
        async fn load(&self, _: &Login) -> distlock_core::Result<Allowed> {
            crate::cluster::pause(Duration::from_millis(2300)).await;
            Ok(Allowed::Yes)
        }
    }
    let cluster = Cluster::new();
    let mut hasty = timers();
    hasty.lock_wait = Duration::from_secs(2);
    let n1 = cluster
        .node_with("n1", |builder| {
            builder.timers(hasty).profiles(Arc::new(Slow))
        })
        .await;
    let _phone = n1.admit(&uid("anna"), "phone").await;
}
