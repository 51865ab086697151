//! Permission and rate limits of senders, and servers that send messages.

use axum::{Json, Router, http::StatusCode, routing::post};
use distlock_checker::{Invariant, Report, What};
use distlock_gateway::{OfflineStore as _, RecordsInbox};
use distlock_harness::eventually_async;
use distlock_kickout::Uid;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    client::{Hello, State},
    http,
    scenarios::start,
    world::{SEND_TOKEN, SOON, World},
};

/// The number of messages that one account may send to another at once.
const BURST: usize = 110;

/// A sender that floods an absent account is slowed down, and pushes out no message of a friend. A
/// sender that the service refuses reaches nobody. A server sends with its own token.
pub(crate) async fn strangers(mut world: World) -> Report {
    let [anna, bob, carl, mallory] = ["anna", "bob", "carl", "mallory"].map(|name| world.uid(name));
    // This account is not part of the verdict: the verdict would log it in again, and it would miss
    // the messages that were pushed out.
    let eve = Uid::new(world.id("eve")).unwrap();
    let refused = mallory.clone();
    let answer = async move |Json(question): Json<Value>| {
        if question["from"] == refused.as_str() {
            let reason = json!({"reason": "you were blocked"});
            (StatusCode::FORBIDDEN, Json(reason))
        } else {
            (StatusCode::OK, Json(json!({})))
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = format!("http://{}/", listener.local_addr().unwrap());
    let router = Router::new().route("/", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    world.set("may_send_url", &service);
    world.set("pair_rate", "1");
    world.set("pair_burst", &BURST.to_string());
    start(&mut world, &["n1", "n2"]).await;
    world.log_in_and_out(&eve, "n1", 1).await;
    let mut clients = Vec::new();
    for (uid, node) in [(&anna, "n1"), (&bob, "n2"), (&carl, "n2"), (&mallory, "n1")] {
        let mut client = world
            .client_with(uid, "pc", node, Hello::login().acks())
            .await;
        client.wait_until_in().await;
        clients.push(client);
    }
    let [_, bobs, carls, mallorys] = &clients[..] else {
        unreachable!("four came")
    };
    carls.send(&eve, &world.id("friend"));
    world.expect_outcome("friend", "stored").await;
    for number in 0..BURST + 20 {
        bobs.send(&eve, &world.id(&format!("flood-{number}")));
    }
    let last = format!("flood-{}", BURST + 19);
    world.expect_outcome(&last, "throttled").await;
    mallorys.send(&anna, &world.id("blocked"));
    world.expect_outcome("blocked", "not_allowed").await;
    bobs.send(&anna, &world.id("others"));
    world.expect_outcome("others", "delivered").await;
    let sent = json!({"from": "the shop", "to": anna, "body": "paid", "id": world.id("paid")});
    let (admin, path) = (world.node("n2").admin, "/v1/send");
    let answer = http::post(admin, path, SEND_TOKEN, &sent).await;
    assert_eq!(answer["outcome"], "delivered", "{answer}");
    let answer = http::post(admin, path, "a guess of some length", &sent).await;
    assert!(answer["error"].is_string(), "{answer}");

    let store = world.open().await;
    let kept = RecordsInbox::new(store.records())
        .claim(&eve)
        .await
        .unwrap();
    assert!(kept.len() <= 100, "{}", kept.len());
    let friends = world.id("friend");
    assert!(kept.iter().any(|message| message.id == friends));
    drop(store);
    for client in &clients {
        assert!(matches!(client.state(), State::In(..)));
    }
    world.verdict(clients, &[Invariant::I18]).await
}

impl World {
    /// Waits until a client has the outcome of its message, and compares it with the expected
    /// outcome.
    pub(crate) async fn expect_outcome(&self, id: &str, wanted: &str) {
        let id = self.id(id);
        let heard = eventually_async("the outcome", SOON, || async {
            let seen = self.shared.seen.lock();
            seen.iter().find_map(|seen| match &seen.what {
                What::Outcome {
                    id: of, outcome, ..
                } if *of == id => Some(outcome.clone()),
                _ => None,
            })
        });
        assert_eq!(heard.await.unwrap(), wanted, "{id}");
    }
}
