//! The order of the steps of a login: the embedder's profiles, the account's lock, the kicks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind};
use distlock_kickout::{
    Allowed, Code, DeliverRequest, DeliverResult, Denied, KickRequest, KickResult, Login,
    LoginOutcome, NodeAddress, PeerError, Peers, Profiles, Transition, Uid,
};
use tokio::sync::watch;

use crate::cluster::{Cluster, TEST_TIMEOUT, in_time, login, timers, uid};

/// A peer that answers kicks only when the test allows it.
#[derive(Debug, Default)]
struct BlockedPeer {
    waits: watch::Sender<bool>,
    go: watch::Sender<bool>,
}

#[async_trait]
impl Peers for BlockedPeer {
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

    async fn hand_out(&self, _: &NodeAddress, _: &[Uid]) -> Result<(), PeerError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_login_does_not_wait_for_the_kicks_of_another_login() {
    let cluster = Cluster::new();
    let peer = Arc::new(BlockedPeer::default());
    let mut patient = timers();
    patient.kick_budget = TEST_TIMEOUT;
    patient.peer_deadline = TEST_TIMEOUT;
    let (peers, times) = (peer.clone(), patient.clone());
    let mut n1 = cluster
        .start_node_with("n1", |builder| builder.timers(times).peers(peers))
        .await;
    let n2 = cluster.start_node("n2").await;
    let anna = uid("anna");
    let _old = n2.admit(&anna, "old").await;
    let ask = |device: &str| {
        let (kick, login) = (n1.kick.clone(), login(&anna, device));
        tokio::spawn(async move { kick.login(login).await.unwrap() })
    };
    let first = ask("first");
    let mut waits = peer.waits.subscribe();
    in_time("a kick", waits.wait_for(|waits| *waits))
        .await
        .unwrap();
    // The node of the old session does not answer, so the first login is granted and not admitted.
    let second = ask("second");
    for _ in 0..2 {
        n1.next_event(Transition::Granted).await;
    }
    peer.go.send_replace(true);
    let (_first, _second) = (first.await.unwrap(), second.await.unwrap());
}

/// Profiles whose answer depends on the device's name.
#[derive(Debug, Default)]
struct ProfilesByDevice(watch::Sender<u32>);

#[async_trait]
impl Profiles for ProfilesByDevice {
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
async fn a_profile_is_checked_before_the_login_changes_anything() {
    let cluster = Cluster::new();
    let profiles = Arc::new(ProfilesByDevice::default());
    let asked = profiles.clone();
    let n1 = cluster
        .start_node_with("n1", |builder| builder.profiles(asked))
        .await;
    let anna = uid("anna");
    let LoginOutcome::Denied(denied) = n1.login(&anna, "unpaid").await else {
        panic!("it was let in");
    };
    assert_eq!(denied, Denied::new(Code::Denied));
    let error = n1.kick.login(login(&anna, "broken")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    // The caller drops this login.
    let never = n1.kick.login(login(&anna, "never"));
    let mut count = profiles.0.subscribe();
    tokio::select! {
        _ = never => panic!("it was answered"),
        _ = in_time("the question", count.wait_for(|asked| *asked == 3)) => {}
    }
    assert_eq!(cluster.keys("sess/").await, Vec::<String>::new());
    assert_eq!(n1.kick.logins_under_way(), 0);
    let _phone = n1.admit(&anna, "phone").await;
    assert_eq!(*profiles.0.borrow(), 4);
}

/// The wait for the lock begins after the profile check.
#[tokio::test]
async fn a_slow_profile_does_not_shorten_the_wait_for_the_lock() {
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
        .start_node_with("n1", |builder| {
            builder.timers(hasty).profiles(Arc::new(Slow))
        })
        .await;
    let _phone = n1.admit(&uid("anna"), "phone").await;
}
