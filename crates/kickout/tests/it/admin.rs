//! Look-ups of accounts, and kicks by an administrator.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_kickout::{
    Code, DeliverRequest, DeliverResult, KickRequest, KickResult, NodeAddress, NodeId, PeerError,
    Peers, Session, Target, Uid,
};
use tokio::sync::Barrier;

use crate::cluster::{Cluster, TEST_TIMEOUT, eventually, in_time, notice_of, timers, uid};

#[tokio::test]
async fn an_administrator_kicks_by_account_session_or_node() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let (anna, otto) = (uid("anna"), uid("otto"));

    let phone = n1.admit(&anna, "phone").await;
    let kicked = n2
        .kick
        .kick(&Target::Uid(anna.clone()), Some("spam"))
        .await
        .unwrap();
    assert_eq!(kicked.len(), 1);
    assert!(kicked[0].gone && kicked[0].key == *phone.key());
    let notice = notice_of(&phone).await;
    assert_eq!(
        (notice.code, notice.reason.as_str()),
        (Code::AdminKick, "spam")
    );
    assert_eq!(n1.kick.route(&anna).await.unwrap(), None);
    let again = n2
        .kick
        .kick(&Target::Uid(anna.clone()), None)
        .await
        .unwrap();
    assert!(again.is_empty(), "nobody is left");

    let phone = n1.admit(&anna, "phone").await;
    let pc = n2.admit(&otto, "pc").await;
    let target = Target::Session(phone.key().session);
    assert_eq!(n2.kick.kick(&target, None).await.unwrap().len(), 1);
    notice_of(&phone).await;
    assert!(pc.check().is_ok());

    let phone = n1.admit(&anna, "phone").await;
    let target = Target::Node(NodeId::new("n2").unwrap());
    assert_eq!(n1.kick.kick(&target, None).await.unwrap().len(), 1);
    notice_of(&pc).await;
    assert!(phone.check().is_ok());
    eventually("everything to be settled", || async {
        cluster.record(&otto).await.unwrap().revocations.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_view_shows_the_record_and_its_nodes() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    assert_eq!(n2.kick.view(&anna).await.unwrap().record, None);
    let phone = n1.admit(&anna, "phone").await;
    let view = n2.kick.view(&anna).await.unwrap();
    assert_eq!(view.record.unwrap().r#gen, phone.generation());
    assert_eq!((view.nodes.len(), view.nodes[0].state.as_str()), (1, "up"));
    n1.crash();
    eventually("the node to be seen dead or swept", || async {
        let view = n2.kick.view(&anna).await.unwrap();
        view.nodes.iter().all(|node| node.state == "dead")
    })
    .await;
}

#[tokio::test]
async fn a_failure_for_one_account_is_reported_with_its_session_and_the_others_end() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let users = ["anna", "bob", "carl"].map(uid);
    let mut sessions = Vec::new();
    for user in &users {
        sessions.push(n1.admit(user, "phone").await);
    }
    n2.faults.refuse_puts_of("sess/bob");
    let kicked = n2.kick.kick(&Target::All, None).await.unwrap();
    let keys = kicked.iter().map(|it| &it.key);
    assert!(keys.eq(sessions.iter().map(Session::key)));
    let of_bob = &kicked[1];
    assert!(!of_bob.gone && of_bob.error.is_some(), "{of_bob:?}");
    for number in [0, 2] {
        let kicked = &kicked[number];
        assert!(kicked.gone && kicked.error.is_none(), "{kicked:?}");
        assert_eq!(notice_of(&sessions[number]).await.code, Code::AdminKick);
    }
    assert!(sessions[1].check().is_ok());
    // If only one account is selected and it fails, or if the store takes no write at all, the call
    // itself fails.
    let bob = Target::Uid(users[1].clone());
    let kick = async |target| n2.kick.kick(target, None).await;
    assert!(kick(&bob).await.unwrap_err().is_retryable());
    assert!(kick(&Target::All).await.unwrap_err().is_retryable());
    n2.faults.accept_puts_of("sess/bob");
    assert_eq!(kick(&Target::All).await.unwrap().len(), 1);
    assert_eq!(notice_of(&sessions[1]).await.code, Code::AdminKick);
}

/// A peer that answers a kick only when a second kick waits at the same time.
#[derive(Debug)]
struct PairwisePeer(Barrier);

#[async_trait]
impl Peers for PairwisePeer {
    async fn kick(&self, _: &NodeAddress, _: KickRequest) -> Result<KickResult, PeerError> {
        self.0.wait().await;
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
async fn kicks_of_several_accounts_run_at_the_same_time() {
    let cluster = Cluster::new();
    let mut timers = timers();
    timers.kick_budget = TEST_TIMEOUT / 4;
    timers.peer_deadline = TEST_TIMEOUT / 4;
    let n1 = cluster.start_node("n1").await;
    let n2 = cluster
        .start_node_with("n2", |builder| {
            builder
                .timers(timers)
                .peers(Arc::new(PairwisePeer(Barrier::new(2))))
        })
        .await;
    let mut sessions = Vec::new();
    for user in ["anna", "bob"].map(uid) {
        sessions.push(n1.admit(&user, "phone").await);
    }
    let kicked = in_time("the kick", n2.kick.kick(&Target::All, None)).await;
    let gone = kicked.unwrap().iter().filter(|it| it.gone).count();
    assert_eq!(gone, sessions.len());
}
