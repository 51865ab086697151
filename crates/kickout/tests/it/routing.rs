//! Messages reach exactly one session, or their sender is told.

use std::{sync::Arc, time::Duration};

use distlock_kickout::{DeliverRequest, DeliverResult, Delivery, Message, RouteMode, Session, Uid};

use crate::cluster::{Cluster, eventually, soon, told, uid};

fn message(id: &str) -> Message {
    Message {
        from: uid("otto"),
        id: id.into(),
        body: "\"hello\"".into(),
    }
}

/// Takes messages as a connection does, and notes their ids.
fn reads(session: Session) -> (Arc<Session>, Arc<std::sync::Mutex<Vec<String>>>) {
    let session = Arc::new(session);
    let read = Arc::new(std::sync::Mutex::new(Vec::new()));
    tokio::spawn({
        let (session, read) = (session.clone(), read.clone());
        async move {
            loop {
                let outgoing = session.next_message().await;
                read.lock().unwrap().push(outgoing.message().id.clone());
                outgoing.delivered();
            }
        }
    });
    (session, read)
}

#[tokio::test]
async fn to_the_current_session_wherever_it_is() {
    for mode in [RouteMode::Fenced, RouteMode::Locked] {
        let cluster = Cluster::new();
        let n1 = cluster.node_with("n1", |it| it.route(mode)).await;
        let n2 = cluster.node_with("n2", |it| it.route(mode)).await;
        let anna = uid("anna");
        assert_eq!(
            n1.kick.deliver(&anna, message("m0")).await.unwrap(),
            Delivery::Offline
        );
        let (phone, phone_read) = reads(n1.admit(&anna, "phone").await);
        for (node, id) in [(&n1, "m1"), (&n2, "m2")] {
            let delivery = node.kick.deliver(&anna, message(id)).await.unwrap();
            let Delivery::Delivered(location) = delivery else {
                panic!("{delivery:?}");
            };
            assert_eq!(location.key, *phone.key());
        }
        let (_pc, pc_read) = reads(n2.admit(&anna, "pc").await);
        told(&phone).await;
        let delivery = n1.kick.deliver(&anna, message("m3")).await.unwrap();
        assert!(matches!(delivery, Delivery::Delivered(_)), "{delivery:?}");
        assert_eq!(*phone_read.lock().unwrap(), ["m1", "m2"]);
        assert_eq!(*pc_read.lock().unwrap(), ["m3"]);
    }
}

#[tokio::test]
async fn a_superseded_session_is_mute() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let request = |session: &Session| {
        DeliverRequest::new(
            anna.clone(),
            session.key().clone(),
            message("m1"),
            Duration::from_millis(50),
        )
    };
    let _pc = n1.admit(&anna, "pc").await;
    told(&phone).await;
    assert_eq!(
        n1.kick.handle_deliver(request(&phone)).await,
        DeliverResult::NotCurrent
    );
    let mut wrong = request(&phone);
    wrong.key.boot = distlock_kickout::Boot::new(1);
    assert_eq!(
        n1.kick.handle_deliver(wrong).await,
        DeliverResult::NotCurrent
    );
}

#[tokio::test]
async fn a_message_that_waited_for_the_old_session_goes_to_the_new_one() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
    let anna = uid("anna");
    // Nobody reads on the phone.
    let phone = n1.admit(&anna, "phone").await;
    let delivering = tokio::spawn({
        let (kick, anna) = (n2.kick.clone(), anna.clone());
        async move { kick.deliver(&anna, message("m1")).await.unwrap() }
    });
    let (pc, read) = reads(n2.admit(&anna, "pc").await);
    let delivery = soon("the delivery", delivering).await.unwrap();
    let Delivery::Delivered(location) = delivery else {
        panic!("{delivery:?}");
    };
    assert_eq!(location.key, *pc.key());
    assert_eq!(*read.lock().unwrap(), ["m1"]);
    assert!(futures_util::poll!(std::pin::pin!(phone.next_message())).is_pending());
}

#[tokio::test]
async fn a_receiver_that_does_not_read_is_reported() {
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let delivery = n1.kick.deliver(&anna, message("m1")).await.unwrap();
    assert_eq!(
        delivery,
        Delivery::Offline,
        "withdrawn, so certainly not delivered"
    );
    assert!(futures_util::poll!(std::pin::pin!(phone.next_message())).is_pending());

    // Taken, but never confirmed: perhaps.
    let delivering = tokio::spawn({
        let (kick, anna) = (n1.kick.clone(), anna.clone());
        async move { kick.deliver(&anna, message("m2")).await.unwrap() }
    });
    let outgoing = soon("the message", phone.next_message()).await;
    drop(outgoing);
    let delivery = soon("the outcome", delivering).await.unwrap();
    assert!(matches!(delivery, Delivery::Failed(_)), "{delivery:?}");
}

#[tokio::test]
async fn an_unreachable_node_is_reported_and_a_dead_one_is_nobody() {
    let cluster = Cluster::new();
    let (n1, n2) = (cluster.node("n1").await, cluster.node("n2").await);
    let anna = uid("anna");
    let _phone = reads(n1.admit(&anna, "phone").await);
    cluster.mesh.silence("n1");
    let delivery = n2.kick.deliver(&anna, message("m1")).await.unwrap();
    assert!(
        matches!(delivery, Delivery::Failed(_)),
        "it may have arrived: {delivery:?}"
    );
    n1.crash();
    eventually("the dead node to be nobody", || async {
        n2.kick.deliver(&anna, message("m2")).await.unwrap() == Delivery::Offline
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_is_accounted_for_while_the_account_moves() {
    let cluster = Cluster::new();
    let nodes = [cluster.node("n1").await, cluster.node("n2").await];
    let anna: Uid = uid("anna");
    let mut all_read = Vec::new();
    let sender = tokio::spawn({
        let (kick, anna) = (nodes[0].kick.clone(), anna.clone());
        async move {
            let mut outcomes = Vec::new();
            for number in 0..200 {
                let id = format!("m{number}");
                let delivery = kick.deliver(&anna, message(&id)).await.unwrap();
                outcomes.push((id, delivery));
            }
            outcomes
        }
    });
    let mut sessions = Vec::new();
    for number in 0..10 {
        let (session, read) = reads(nodes[number % 2].admit(&anna, "d").await);
        sessions.push(session);
        all_read.push(read);
    }
    let outcomes = soon("the deliveries", sender).await.unwrap();
    let read: Vec<String> = all_read
        .iter()
        .flat_map(|read| read.lock().unwrap().clone())
        .collect();
    for (id, delivery) in outcomes {
        let times = read.iter().filter(|it| **it == id).count();
        match delivery {
            Delivery::Delivered(_) => assert_eq!(times, 1, "{id}"),
            Delivery::Offline => assert_eq!(times, 0, "{id}"),
            Delivery::Failed(_) => assert!(times <= 1, "{id}"),
            other => panic!("{other:?}"),
        }
    }
}
