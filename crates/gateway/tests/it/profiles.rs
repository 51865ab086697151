//! The web service that checks each login.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::post,
};
use distlock_core::sync::Mutex;
use distlock_gateway::Secret;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::net::{Client, Net, Node, login, soon};

type Questions = Arc<Mutex<Vec<(HeaderMap, Value)>>>;

/// A service whose answer depends on the device's name, and the requests that the service got.
async fn service() -> (SocketAddr, Questions) {
    async fn answer(
        State(asked): State<Questions>,
        headers: HeaderMap,
        Json(question): Json<Value>,
    ) -> Response {
        let device = question["device"].as_str().unwrap().to_owned();
        asked.lock().push((headers, question));
        match device.as_str() {
            "never" => std::future::pending().await,
            "broken" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            "elsewhere" => (StatusCode::FOUND, [("location", "/")]).into_response(),
            "forbidden" => StatusCode::FORBIDDEN.into_response(),
            "unpaid" => {
                let reason = format!("the subscription\u{7} ended{}", "!".repeat(300));
                (StatusCode::FORBIDDEN, Json(json!({"reason": reason}))).into_response()
            }
            "odd" => (StatusCode::FORBIDDEN, "{\"reason\": 5}").into_response(),
            "nothing" => StatusCode::NO_CONTENT.into_response(),
            _ => Json(json!({"welcome": true})).into_response(),
        }
    }
    let asked = Questions::default();
    let router = Router::new()
        .route("/may-log-in", post(answer))
        .with_state(asked.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, asked)
}

async fn node_that_asks(net: &Net, service: SocketAddr) -> Node {
    net.node_with("n1", |config| {
        config.profile_url = Some(Secret::new(format!("http://{service}/may-log-in")));
        config.profile_token = Some(Secret::new("open sesame"));
        config.profile_timeout = Duration::from_millis(500);
    })
    .await
}

/// Sends a login. Returns the client and the first frame.
async fn asks(node: &Node, uid: &str, device: &str) -> (Client, Value) {
    let mut client = node.connect().await;
    client.send(&login(uid, device)).await;
    let answer = client.frame().await;
    (client, answer)
}

#[tokio::test]
async fn a_service_checks_each_login() {
    let (net, (service, asked)) = (Net::new(), service().await);
    let n1 = node_that_asks(&net, service).await;
    let (mut phone, _) = n1.login("anna", "phone").await;
    {
        let asked = asked.lock();
        let [(headers, question)] = asked.as_slice() else {
            panic!("{asked:?}")
        };
        assert_eq!(
            *question,
            json!({"uid": "anna", "device": "phone", "class": "", "intent": "login", "node": "n1"})
        );
        assert_eq!(headers["authorization"], "Bearer open sesame");
    }
    let long = format!("the subscription ended{}", "!".repeat(178));
    for (device, reason) in [
        ("forbidden", "the account may not log in now"),
        ("odd", "the account may not log in now"),
        ("unpaid", &long),
    ] {
        let (mut client, answer) = asks(&n1, "anna", device).await;
        assert_eq!(
            (&answer["type"], &answer["code"], &answer["reason"]),
            (&json!("denied"), &json!(4), &json!(reason)),
            "{device}"
        );
        assert_eq!(client.rest().await.1, Some(4504));
    }
    for device in ["broken", "elsewhere", "never"] {
        let (_, answer) = asks(&n1, "anna", device).await;
        assert_eq!(
            (&answer["type"], &answer["code"]),
            (&json!("error"), &json!("unavailable")),
            "{device}"
        );
    }
    // None of these logins ended the existing session. The next login is allowed, and ends it.
    assert_eq!(n1.kick.sessions(), 1);
    let (_nothing, _) = n1.login("anna", "nothing").await;
    assert_eq!(phone.frame().await["type"], "offline");

    let (_, metrics) = n1.admin("GET /metrics", "").await;
    for (result, times) in [("allowed", 2), ("denied", 3), ("failed", 3)] {
        let line = format!("distlock_profile_seconds_count{{result=\"{result}\"}} {times}");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

/// The service closes each connection after its first answer, without notice to the node.
#[tokio::test]
async fn a_login_succeeds_after_the_service_closed_an_idle_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut question = [0; 4096];
            if stream.read(&mut question).await.unwrap() == 0 {
                continue;
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            // The second request on this connection is read and not answered.
            let _ = stream.read(&mut question).await;
        }
    });
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.profile_url = Some(Secret::new(format!("http://{service}/")));
        })
        .await;
    for at in 0..5 {
        let (_client, _) = soon("the login", n1.login("anna", &format!("d{at}"))).await;
    }
}

#[tokio::test]
async fn logins_are_refused_while_the_service_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = listener.local_addr().unwrap();
    drop(listener);
    let net = Net::new();
    let n1 = node_that_asks(&net, nowhere).await;
    let (_, answer) = asks(&n1, "anna", "phone").await;
    assert_eq!(
        (&answer["type"], &answer["code"]),
        (&json!("error"), &json!("unavailable"))
    );
    assert_eq!(n1.kick.sessions(), 0);
}
