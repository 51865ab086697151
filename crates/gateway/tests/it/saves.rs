//! Logins that wait until a client, or the web service, has saved for the older session.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use distlock_core::sync::Mutex;
use distlock_gateway::{GatewayConfig, Secret};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

use crate::net::{Client, Net, Node, eventually, login, soon};

/// Time to save. The tests that wait for a save end it long before.
const BUDGET: Duration = Duration::from_secs(15);

fn patient(config: &mut GatewayConfig) {
    config.save_budget = BUDGET;
}

/// Logs in a device that says when it has saved.
async fn log_in_saving(node: &Node, device: &str) -> (Client, Value) {
    let mut client = node.connect().await;
    let mut frame = login("anna", device);
    frame["saves"] = true.into();
    client.send(&frame).await;
    let ok = client.frame().await;
    assert_eq!(ok["type"], "login_ok", "{ok}");
    (client, ok)
}

/// Sends a login that has to wait.
async fn begin_login(node: &Node, device: &str) -> Client {
    let mut client = node.connect().await;
    client.send(&login("anna", device)).await;
    client
}

/// Checks that the login of this client has no answer yet: the node answers the ping before.
async fn check_waiting(client: &mut Client) {
    client.send(&json!({"type": "ping"})).await;
    assert_eq!(
        client.frame().await,
        json!({"type": "pong"}),
        "it did not wait"
    );
}

async fn confirmed_by(client: &mut Client) -> Value {
    let ok = client.frame().await;
    assert_eq!(ok["type"], "login_ok", "{ok}");
    ok["old_confirmed"].clone()
}

#[tokio::test]
async fn a_login_waits_until_the_old_client_has_saved() {
    let net = Net::new();
    let n1 = net.node_with("n1", patient).await;
    let n2 = net.node_with("n2", patient).await;
    for node in [&n1, &n2] {
        let (mut phone, ok) = log_in_saving(&n1, "phone").await;
        assert_eq!((&ok["saves"], &ok["v"]), (&json!(true), &json!(1)));
        phone.send(&json!({"type": "saved"})).await;
        let early = phone.frame().await;
        assert_eq!(
            (&early["type"], &early["code"]),
            (&json!("error"), &json!("bad_value"))
        );

        let mut pc = begin_login(node, "pc").await;
        let offline = phone.frame().await;
        assert_eq!(offline["type"], "offline");
        assert_eq!(
            offline["grace_ms"], 15_000,
            "the client has the time to save"
        );
        check_waiting(&mut pc).await;
        phone.send(&json!({"type": "saved"})).await;
        assert_eq!(confirmed_by(&mut pc).await, "program");
        phone.leave().await;
        pc.leave().await;
        eventually("the logouts", || async {
            n1.kick.sessions() + n2.kick.sessions() == 0
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_without_a_word_ends_the_wait() {
    let net = Net::new();
    let n1 = net.node_with("n1", patient).await;
    let n2 = net.node_with("n2", patient).await;
    let (mut phone, _) = log_in_saving(&n1, "phone").await;
    let mut pc = begin_login(&n2, "pc").await;
    assert_eq!(phone.frame().await["type"], "offline");
    phone.leave().await;
    assert_eq!(confirmed_by(&mut pc).await, "node");
}

/// A service that saves when the test allows it, and the requests that it got.
#[derive(Clone, Default)]
struct Service {
    requests: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
    answer: Arc<watch::Sender<Option<StatusCode>>>,
}

impl Service {
    async fn start() -> (SocketAddr, Self) {
        async fn save(
            State(service): State<Service>,
            headers: HeaderMap,
            Json(request): Json<Value>,
        ) -> StatusCode {
            service.requests.lock().push((headers, request));
            let mut answer = service.answer.subscribe();
            let answer = answer.wait_for(Option::is_some).await.unwrap();
            answer.unwrap()
        }
        let service = Self::default();
        let router = Router::new()
            .route("/save", post(save))
            .with_state(service.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (address, service)
    }

    async fn wait_for_request(&self) {
        eventually("a request", || async { !self.requests.lock().is_empty() }).await;
    }
}

/// A node whose service saves, and has this time.
async fn node_with_service(net: &Net, name: &str, at: SocketAddr, budget: Duration) -> Node {
    net.node_with(name, |config| {
        config.save_url = Some(Secret::new(format!("http://{at}/save")));
        config.save_token = Some(Secret::new("open sesame"));
        config.save_budget = budget;
    })
    .await
}

#[tokio::test]
async fn a_login_waits_until_the_service_has_saved() {
    for leaves_first in [false, true] {
        let (net, (at, service)) = (Net::new(), Service::start().await);
        let n1 = node_with_service(&net, "n1", at, BUDGET).await;
        let n2 = node_with_service(&net, "n2", at, BUDGET).await;
        // The service speaks for the client.
        let (phone, ok) = log_in_saving(&n1, "phone").await;
        assert_eq!(ok["saves"], false);
        let mut phone = Some(phone);
        if leaves_first {
            phone.take().unwrap().leave().await;
            service.wait_for_request().await;
        }
        let mut pc = begin_login(&n2, "pc").await;
        service.wait_for_request().await;
        check_waiting(&mut pc).await;
        service.answer.send_replace(Some(StatusCode::NO_CONTENT));
        assert_eq!(confirmed_by(&mut pc).await, "program");
        let requests = service.requests.lock();
        let (headers, request) = &requests[0];
        assert_eq!(headers["authorization"], "Bearer open sesame");
        assert_eq!(
            *request,
            json!({
                "uid": "anna", "device": "phone", "class": "", "session": ok["session"],
                "node": "n1", "gen": ok["gen"],
            })
        );
    }
}

#[tokio::test]
async fn a_service_that_fails_or_is_late_does_not_keep_the_account_out() {
    let budget = Duration::from_millis(400);
    for answer in [
        Some(StatusCode::INTERNAL_SERVER_ERROR),
        Some(StatusCode::FORBIDDEN),
        None,
    ] {
        let (net, (at, service)) = (Net::new(), Service::start().await);
        let n1 = node_with_service(&net, "n1", at, budget).await;
        let (_phone, _) = n1.login("anna", "phone").await;
        service.answer.send_replace(answer);
        let mut pc = begin_login(&n1, "pc").await;
        let answered = soon("the login", confirmed_by(&mut pc)).await;
        assert_eq!(answered, "node", "after {answer:?}");
    }
}
