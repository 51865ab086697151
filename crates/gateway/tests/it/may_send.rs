//! The check of each message.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::post,
};
use distlock_core::{Clock as _, ErrorKind, Store, SystemClock, sync::Mutex};
use distlock_gateway::{Gateway, MaySend, Permission, Secret, Uid};
use distlock_memory::Memory;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::net::{Client, Net, Node, config, eventually};

type Questions = Arc<Mutex<Vec<(HeaderMap, Value)>>>;

async fn answer(
    State(asked): State<Questions>,
    headers: HeaderMap,
    Json(it): Json<Value>,
) -> Response {
    let to = it["to"].as_str().unwrap().to_owned();
    asked.lock().push((headers, it));
    match to.as_str() {
        "blocked" => (
            StatusCode::FORBIDDEN,
            Json(json!({"reason": "you were blocked"})),
        )
            .into_response(),
        "silent" => StatusCode::FORBIDDEN.into_response(),
        "broken" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn send(client: &mut Client, to: &str) -> Value {
    let frame = json!({"type": "send", "to": to, "body": 1, "id": to});
    client.send(&frame).await;
    client.frame().await
}

#[tokio::test]
async fn a_service_checks_each_message() {
    let asked = Questions::default();
    let router = Router::new().route("/", post(answer));
    let router = router.with_state(asked.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.may_send_url = Some(Secret::new(service));
            config.may_send_token = Some(Secret::new("open sesame"));
        })
        .await;
    let (mut otto, _) = n1.login("otto", "pc").await;
    let (mut anna, _) = n1.login("anna", "pc").await;
    assert_eq!(send(&mut otto, "anna").await["outcome"], "written");
    assert_eq!(anna.frame().await["type"], "message");
    {
        let asked = asked.lock();
        let [(headers, question)] = asked.as_slice() else {
            panic!("{asked:?}")
        };
        assert_eq!(*question, json!({"from": "otto", "to": "anna"}));
        assert_eq!(headers["authorization"], "Bearer open sesame");
    }
    for (to, code, reason) in [
        ("blocked", "not_allowed", "you were blocked"),
        ("silent", "not_allowed", "you may not send to this account"),
        (
            "broken",
            "unavailable",
            "it is not known now whether this may be sent: try again later",
        ),
    ] {
        let (mut receiver, _) = n1.login(to, "pc").await;
        let refused = json!({"type": "error", "code": code, "reason": reason, "id": to});
        assert_eq!(send(&mut otto, to).await, refused);
        receiver.send(&json!({"type": "ping"})).await;
        assert_eq!(receiver.frame().await["type"], "pong", "nothing came");
    }
}

/// Refuses every message.
#[derive(Debug)]
struct RefuseAll;

#[async_trait]
impl MaySend for RefuseAll {
    async fn may_send(&self, from: &Uid, to: &Uid) -> distlock_core::Result<Permission> {
        Ok(Permission::Refused(format!("{from} and {to}?")))
    }
}

/// Answers no question.
#[derive(Debug)]
struct NeverAnswers;

#[async_trait]
impl MaySend for NeverAnswers {
    async fn may_send(&self, _: &Uid, _: &Uid) -> distlock_core::Result<Permission> {
        std::future::pending().await
    }
}

/// The messages of a client that has left keep its session for 15 seconds at most. Each of these
/// messages takes 10 seconds, one after the other.
#[tokio::test]
async fn a_client_that_left_does_not_keep_its_session_for_its_messages() {
    const LIMIT: Duration = Duration::from_secs(15);
    let memory = Memory::default();
    let store = Store::new(memory.lock(), memory.records());
    let builder = Gateway::builder(config("n1"), store).may_send(Arc::new(NeverAnswers));
    let n1 = Node::run(builder.start().await.unwrap());
    let (mut otto, _) = n1.login("otto", "pc").await;
    for id in 0..4 {
        let frame = json!({"type": "send", "to": "anna", "body": 1, "id": id.to_string()});
        otto.send(&frame).await;
    }
    otto.send(&json!({"type": "bye"})).await;
    let begun = SystemClock.now();
    eventually("the logout", || async { n1.kick.sessions() == 0 }).await;
    let took = SystemClock.now().since(begun);
    assert!(took < LIMIT + Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn an_embedder_can_check_messages() {
    let memory = Memory::default();
    let store = || Store::new(memory.lock(), memory.records());
    let mut asks_twice = config("n2");
    asks_twice.may_send_url = Some(Secret::new("http://127.0.0.1:1/"));
    let builder = Gateway::builder(asks_twice, store()).may_send(Arc::new(RefuseAll));
    let error = builder.start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("may_send_url"), "{error}");

    let builder = Gateway::builder(config("n1"), store()).may_send(Arc::new(RefuseAll));
    let n1 = Node::run(builder.start().await.unwrap());
    let (mut otto, _) = n1.login("otto", "pc").await;
    assert_eq!(send(&mut otto, "anna").await["reason"], "otto and anna?");
}
