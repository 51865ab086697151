//! Each message reaches each addressed session once, or its sender learns of the failure.

use std::{sync::Arc, time::Duration};

use distlock_kickout::{
    Class, DeliverRequest, DeliverResult, Delivery, Device, Login, LoginOutcome, Message, Policy,
    PolicyName, Receipt, Session, Uid,
};

use crate::cluster::{Cluster, eventually, in_time, login, notice_of, uid};

fn message(id: &str) -> Message {
    Message {
        id: id.into(),
        ..Message::new(uid("otto"), "\"hello\"")
    }
}

/// The receipt of the only addressed session.
fn only_receipt(receipts: Vec<Receipt>) -> Receipt {
    let [receipt] = <[_; 1]>::try_from(receipts).unwrap();
    receipt
}

/// Reads the session's messages like a connection, and notes their ids.
fn read_messages(session: Session) -> (Arc<Session>, Arc<distlock_core::sync::Mutex<Vec<String>>>) {
    let session = Arc::new(session);
    let read = Arc::new(distlock_core::sync::Mutex::new(Vec::new()));
    tokio::spawn({
        let (session, read) = (session.clone(), read.clone());
        async move {
            loop {
                let outgoing = session.next_message().await;
                read.lock().push(outgoing.message().id.clone());
                outgoing.delivered();
            }
        }
    });
    (session, read)
}

#[tokio::test]
async fn a_message_reaches_the_current_session_on_any_node() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let n2 = cluster.start_node("n2").await;
    let anna = uid("anna");
    assert_eq!(n1.kick.deliver(&anna, message("m0")).await.unwrap(), []);
    let (phone, phone_read) = read_messages(n1.admit(&anna, "phone").await);
    for (node, id) in [(&n1, "m1"), (&n2, "m2")] {
        let receipt = only_receipt(node.kick.deliver(&anna, message(id)).await.unwrap());
        assert_eq!(receipt.delivery, Delivery::Written);
        assert_eq!(receipt.location.key, *phone.key());
    }
    let (_pc, pc_read) = read_messages(n2.admit(&anna, "pc").await);
    notice_of(&phone).await;
    let receipt = only_receipt(n1.kick.deliver(&anna, message("m3")).await.unwrap());
    assert_eq!(receipt.delivery, Delivery::Written);
    assert_eq!(*phone_read.lock(), ["m1", "m2"]);
    assert_eq!(*pc_read.lock(), ["m3"]);
}

#[tokio::test]
async fn a_superseded_session_receives_nothing() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
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
    notice_of(&phone).await;
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
async fn a_message_queued_for_the_old_session_is_delivered_to_the_new_session() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    // The phone's connection reads nothing.
    let phone = n1.admit(&anna, "phone").await;
    let delivering = tokio::spawn({
        let (kick, anna) = (n2.kick.clone(), anna.clone());
        async move { kick.deliver(&anna, message("m1")).await.unwrap() }
    });
    let (pc, read) = read_messages(n2.admit(&anna, "pc").await);
    let receipt = only_receipt(in_time("the delivery", delivering).await.unwrap());
    assert_eq!(receipt.delivery, Delivery::Written);
    assert_eq!(receipt.location.key, *pc.key());
    assert_eq!(*read.lock(), ["m1"]);
    assert!(futures_util::poll!(std::pin::pin!(phone.next_message())).is_pending());
}

#[tokio::test]
async fn a_message_to_a_receiver_that_does_not_read_is_reported_as_failed() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let receipt = only_receipt(n1.kick.deliver(&anna, message("m1")).await.unwrap());
    assert_eq!(
        receipt.delivery,
        Delivery::Missed,
        "withdrawn, so certainly not delivered"
    );
    assert!(futures_util::poll!(std::pin::pin!(phone.next_message())).is_pending());

    // The session takes the message and reports no outcome.
    let delivering = tokio::spawn({
        let (kick, anna) = (n1.kick.clone(), anna.clone());
        async move { kick.deliver(&anna, message("m2")).await.unwrap() }
    });
    let outgoing = in_time("the message", phone.next_message()).await;
    drop(outgoing);
    let receipt = only_receipt(in_time("the outcome", delivering).await.unwrap());
    assert!(
        matches!(receipt.delivery, Delivery::Failed(_)),
        "{receipt:?}"
    );
}

#[tokio::test]
async fn a_message_reaches_every_device_or_one_device_or_one_class() {
    let cluster = Cluster::new();
    let several =
        |builder: distlock_kickout::Builder| builder.policy(Policy::named(PolicyName::Unlimited));
    let n1 = cluster.start_node_with("n1", several).await;
    let n2 = cluster.start_node_with("n2", several).await;
    let anna = uid("anna");
    let mut readers = Vec::new();
    for (node, device, class) in [(&n1, "phone", "m"), (&n2, "pc", "d"), (&n1, "tablet", "m")] {
        let (device, class) = (Device::new(device).unwrap(), Class::new(class).unwrap());
        let login = Login::new(anna.clone(), device, class);
        let LoginOutcome::Admitted(session) = node.kick.login(login).await.unwrap() else {
            panic!("there is room for it");
        };
        readers.push(read_messages(session));
    }
    let all = message("all");
    let one = message("one").for_device(&Device::new("pc").unwrap());
    let mut some = message("some");
    some.to_class = Some(Class::new("m").unwrap());
    let nobody = message("nobody").for_device(&Device::new("tv").unwrap());
    for (message, receivers) in [(all, 3), (one, 1), (some, 2), (nobody, 0)] {
        let receipts = n1.kick.deliver(&anna, message).await.unwrap();
        assert_eq!(receipts.len(), receivers);
        assert!(receipts.iter().all(|it| it.delivery == Delivery::Written));
    }
    let read = |at: usize| readers[at].1.lock().clone();
    assert_eq!(read(0), ["all", "some"]);
    assert_eq!(read(1), ["all", "one"]);
    assert_eq!(read(2), ["all", "some"]);
}

#[tokio::test]
async fn a_delivery_waits_for_the_acknowledgement() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let LoginOutcome::Admitted(phone) = n1
        .kick
        .login(login(&anna, "phone").acks(true))
        .await
        .unwrap()
    else {
        panic!("nobody else is there");
    };
    assert!(phone.acknowledges());
    let deliver = async |id| only_receipt(n1.kick.deliver(&anna, message(id)).await.unwrap());
    let acknowledges = async {
        assert_eq!(phone.next_message().await.delivered(), None);
    };
    let (receipt, ()) = tokio::join!(deliver("m1"), acknowledges);
    assert_eq!(receipt.delivery, Delivery::Delivered);
    // The message is written. The client acknowledges it only after its sender has stopped waiting.
    let (receipt, written) = tokio::join!(deliver("m2"), phone.next_message());
    assert_eq!(receipt.delivery, Delivery::Unacknowledged);
    let late = written.delivered().expect("nobody waits any more");
    assert_eq!(late.id, "m2");
}

#[tokio::test]
async fn an_unreachable_node_is_reported_and_a_dead_node_has_no_sessions() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let _phone = read_messages(n1.admit(&anna, "phone").await);
    cluster.mesh.silence("n1");
    let receipt = only_receipt(n2.kick.deliver(&anna, message("m1")).await.unwrap());
    assert!(
        matches!(receipt.delivery, Delivery::Failed(_)),
        "it may have arrived: {receipt:?}"
    );
    n1.crash();
    eventually("the dead node to be nobody", || async {
        n2.kick
            .deliver(&anna, message("m2"))
            .await
            .unwrap()
            .is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_has_an_outcome_while_the_account_changes_nodes() {
    let cluster = Cluster::new();
    let nodes = [
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    ];
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
        let (session, read) = read_messages(nodes[number % 2].admit(&anna, "d").await);
        sessions.push(session);
        all_read.push(read);
    }
    let outcomes = in_time("the deliveries", sender).await.unwrap();
    let read: Vec<String> = all_read
        .iter()
        .flat_map(|read| read.lock().clone())
        .collect();
    for (id, delivery) in outcomes {
        let times = read.iter().filter(|it| **it == id).count();
        match &delivery[..] {
            [] => assert_eq!(times, 0, "{id}"),
            [only] => match only.delivery {
                Delivery::Written => assert_eq!(times, 1, "{id}"),
                Delivery::Missed => assert_eq!(times, 0, "{id}"),
                Delivery::Failed(_) => assert!(times <= 1, "{id}"),
                _ => panic!("{only:?}"),
            },
            more => panic!("one session at a time: {more:?}"),
        }
    }
}
