//! Looking at accounts and ending sessions by hand.

use distlock_kickout::{Code, NodeId, Target};

use crate::cluster::{Cluster, eventually, told, uid};

#[tokio::test]
async fn kicks_by_account_session_and_node() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
    let (anna, otto) = (uid("anna"), uid("otto"));

    let phone = n1.admit(&anna, "phone").await;
    let kicked = n2
        .kick
        .kick(&Target::Uid(anna.clone()), Some("spam"))
        .await
        .unwrap();
    assert_eq!(kicked.len(), 1);
    assert!(kicked[0].gone && kicked[0].key == *phone.key());
    let notice = told(&phone).await;
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
    told(&phone).await;
    assert!(pc.check().is_ok());

    let phone = n1.admit(&anna, "phone").await;
    let target = Target::Node(NodeId::new("n2").unwrap());
    assert_eq!(n1.kick.kick(&target, None).await.unwrap().len(), 1);
    told(&pc).await;
    assert!(phone.check().is_ok());
    eventually("everything to be settled", || async {
        cluster.keys("rev/").await.is_empty()
            && cluster.record(&otto).await.unwrap().revocations.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_view_shows_the_record_and_its_nodes() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
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
