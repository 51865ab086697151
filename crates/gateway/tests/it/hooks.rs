//! Web hooks: what happens on a node reaches a receiver, whatever the receiver does.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use distlock_core::{Error, ErrorKind};
use distlock_gateway::{GatewayConfig, HookConfig, Secret};
use futures_util::stream;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::{TcpListener, TcpSocket},
    sync::{mpsc, watch},
};

use crate::net::{Net, Node, config, eventually, soon};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// What a receiver does with a request.
#[derive(Clone)]
enum Answer {
    Status(u16),
    Busy(u64),
    Redirect(String),
    Endless,
    Silent,
}

#[derive(Debug)]
struct Delivery {
    id: String,
    timestamp: u64,
    signature: String,
    body: Bytes,
}

/// A receiver, which keeps what it gets.
struct Receiver {
    url: String,
    answer: watch::Sender<Answer>,
    deliveries: mpsc::UnboundedReceiver<Delivery>,
    /// Holds the file with the secrets.
    folder: TempDir,
}

type Held = (watch::Receiver<Answer>, mpsc::UnboundedSender<Delivery>);

impl Receiver {
    async fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn on(listener: TcpListener) -> Self {
        let url = format!("http://{}/hook?key=hidden", listener.local_addr().unwrap());
        let (answer, answers) = watch::channel(Answer::Status(204));
        let (sent, deliveries) = mpsc::unbounded_channel();
        let state: Arc<Held> = Arc::new((answers, sent));
        let router = Router::new().fallback(take).with_state(state);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let receiver = Self {
            url,
            answer,
            deliveries,
            folder: TempDir::new().unwrap(),
        };
        receiver.write_secrets(&[SECRET]);
        receiver
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("secrets")
    }

    fn write_secrets(&self, secrets: &[&str]) {
        fs::write(self.file(), secrets.join("\n")).unwrap();
    }

    fn hook(&self, events: &[&str]) -> HookConfig {
        let mut hook: HookConfig = toml::from_str(&format!("events = {events:?}")).unwrap();
        hook.name = "push".into();
        hook.url = Secret::new(&*self.url);
        hook.secret_file = self.file().to_str().unwrap().into();
        hook.allow_private = true;
        hook
    }

    fn answers(&self, answer: Answer) {
        self.answer.send_replace(answer);
    }

    async fn delivery(&mut self) -> Delivery {
        soon("a delivery", self.deliveries.recv()).await.unwrap()
    }

    /// The next event, which is signed with this secret and no other one.
    async fn event(&mut self) -> Value {
        let delivery = self.delivery().await;
        assert_eq!(delivery.signature, delivery.signed_with(SECRET));
        delivery.event()
    }
}

async fn take(State(held): State<Arc<Held>>, headers: HeaderMap, body: Bytes) -> Response {
    let (answers, sent) = &*held;
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    assert_eq!(text("content-type"), "application/json");
    sent.send(Delivery {
        id: text("webhook-id"),
        timestamp: text("webhook-timestamp").parse().unwrap(),
        signature: text("webhook-signature"),
        body,
    })
    .unwrap();
    let answer = answers.borrow().clone();
    match answer {
        Answer::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Answer::Busy(seconds) => {
            let headers = [(header::RETRY_AFTER, seconds.to_string())];
            (StatusCode::SERVICE_UNAVAILABLE, headers).into_response()
        }
        Answer::Redirect(to) => {
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response()
        }
        Answer::Endless => {
            let pieces =
                stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![7; 4096])));
            Body::from_stream(pieces).into_response()
        }
        Answer::Silent => std::future::pending().await,
    }
}

impl Delivery {
    /// The signature, by the words of the specification: an independent second implementation.
    fn signed_with(&self, secret: &str) -> String {
        let key = secret.strip_prefix("whsec_").unwrap();
        let key = BASE64_STANDARD.decode(key).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(self.id.as_bytes());
        mac.update(b".");
        mac.update(self.timestamp.to_string().as_bytes());
        mac.update(b".");
        mac.update(&self.body);
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    }

    fn event(&self) -> Value {
        let event: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(event["id"], self.id);
        assert!(!self.id.contains('.'), "{}", self.id);
        event
    }
}

async fn node(net: &Net, name: &str, hook: HookConfig) -> Node {
    net.node_with(name, |config| config.hooks.push(hook)).await
}

/// A sample of a metric of the receiver.
async fn metric(node: &Node, name: &str) -> u64 {
    let (_, page) = node.admin("GET /metrics", "").await;
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in {page}"));
    line.trim().parse().unwrap()
}

async fn dropped(node: &Node, reason: &str) -> u64 {
    let name = format!(r#"distlock_hook_dropped_total{{hook="push",reason="{reason}"}}"#);
    metric(node, &name).await
}

async fn attempts(node: &Node, result: &str) -> u64 {
    let name = format!(r#"distlock_hook_attempts_total{{hook="push",result="{result}"}}"#);
    metric(node, &name).await
}

#[tokio::test]
async fn each_kind_of_event_comes_from_the_node_on_which_it_happens() {
    let net = Net::new();
    let (mut on_n1, mut on_n2) = (Receiver::start().await, Receiver::start().await);
    let all = [
        "session.login",
        "session.takeover",
        "session.end",
        "message.stored",
        "account.banned",
        "account.unbanned",
    ];
    let n1 = node(&net, "n1", on_n1.hook(&all)).await;
    let n2 = node(&net, "n2", on_n2.hook(&all)).await;
    let (phone, login) = n1.login("anna", "phone").await;
    let first = on_n1.event().await;
    assert_eq!(
        (&first["type"], &first["node"]),
        (&json!("session.login"), &json!("n1"))
    );
    let data = &first["data"];
    for (key, expected) in [
        ("uid", &json!("anna")),
        ("session", &login["session"]),
        ("gen", &login["gen"]),
        ("device", &json!("phone")),
    ] {
        assert_eq!(&data[key], expected, "{first}");
    }
    let at: jiff::Timestamp = first["timestamp"].as_str().unwrap().parse().unwrap();
    assert_eq!(json!(at.as_millisecond()), data["at_ms"]);

    // The takeover comes from the old session's node, and the login from the other one.
    let (pc, _) = n2.login("anna", "pc").await;
    let taken = on_n1.event().await;
    assert_eq!(taken["type"], "session.takeover");
    assert_eq!(taken["data"]["session"], login["session"]);
    assert_eq!(
        (&taken["data"]["code"], &taken["data"]["by_device"]),
        (&json!(1), &json!("pc"))
    );
    assert_eq!(on_n2.event().await["type"], "session.login");
    phone.leave().await;
    // A client that leaves has no code.
    pc.leave().await;
    let left = on_n2.event().await;
    assert_eq!(left["type"], "session.end");
    assert_eq!(left["data"].get("code"), None);

    // A message to an account that is away. Its body is not told.
    let (mut otto, _) = n1.login("otto", "phone").await;
    assert_eq!(on_n1.event().await["type"], "session.login");
    let frame = json!({"type": "send", "to": "anna", "body": "a secret", "id": "m1"});
    otto.send(&frame).await;
    assert_eq!(otto.frame().await["outcome"], "stored");
    let stored = on_n1.event().await;
    assert_eq!(stored["type"], "message.stored");
    let at_ms = &stored["data"]["at_ms"];
    assert_eq!(
        stored["data"],
        json!({"uid": "anna", "message": "m1", "at_ms": at_ms})
    );

    // The ban comes from the node that got the order, the end from that of the session.
    let order = r#"{"uid":"otto","reason":"spam"}"#;
    assert_eq!(n2.admin("POST /v1/ban", order).await.0, 200);
    let ended = on_n1.event().await;
    assert_eq!(
        (&ended["type"], &ended["data"]["code"]),
        (&json!("session.end"), &json!(5))
    );
    let banned = on_n2.event().await;
    assert_eq!(banned["type"], "account.banned");
    assert_eq!(banned["data"]["reason"], "spam");
    assert_eq!(n1.admin("DELETE /v1/ban?uid=otto", "").await.0, 200);
    let unbanned = on_n1.event().await;
    assert_eq!(unbanned["type"], "account.unbanned");
    assert_eq!(unbanned["data"]["ended"], false);
    // A ban that is over is noticed at the next login.
    assert_eq!(
        n2.admin("POST /v1/ban", r#"{"uid":"otto","ttl":"1ms"}"#)
            .await
            .0,
        200
    );
    let short = on_n2.event().await;
    assert!(short["data"]["until_ms"].is_u64(), "{short}");
    let _otto = soon("a login", async {
        loop {
            let mut client = n1.connect().await;
            client.send(&crate::net::login("otto", "phone")).await;
            if client.frame().await["type"] == "login_ok" {
                break client;
            }
        }
    })
    .await;
    let mut kinds = [on_n1.event().await, on_n1.event().await];
    kinds.sort_by_key(|event| event["type"].to_string());
    assert_eq!(kinds[0]["data"]["ended"], true, "{kinds:?}");
    assert_eq!(kinds[1]["type"], "session.login");

    assert_eq!(dropped(&n1, "full").await + dropped(&n1, "missed").await, 0);
}

#[tokio::test]
async fn an_event_is_sent_again_under_its_id_until_it_is_taken() {
    let (net, mut push) = (Net::new(), Receiver::start().await);
    let mut hook = push.hook(&["session.login"]);
    hook.timeout = Duration::from_millis(200);
    let n1 = node(&net, "n1", hook).await;
    push.answers(Answer::Status(500));
    let (_anna, _) = n1.login("anna", "phone").await;
    let first = push.delivery().await;
    // The second attempt hangs, the third one is sent elsewhere, and the last one is taken.
    push.answers(Answer::Silent);
    let second = push.delivery().await;
    push.answers(Answer::Redirect("/elsewhere".into()));
    let third = push.delivery().await;
    push.answers(Answer::Status(200));
    let last = push.delivery().await;
    for again in [&second, &third, &last] {
        assert_eq!((&again.id, &again.body), (&first.id, &first.body));
        assert_eq!(again.signature, again.signed_with(SECRET));
        assert!(again.timestamp >= first.timestamp);
    }
    // Another event has another id. Events that nobody wants are not sent.
    let (_otto, _) = n1.login("otto", "phone").await;
    let other = push.delivery().await;
    assert_ne!(other.id, first.id);
    assert_eq!(other.event()["data"]["uid"], "otto");
    eventually("the counts", || async {
        attempts(&n1, "delivered").await == 2 && attempts(&n1, "failed").await == 3
    })
    .await;
    assert_eq!(dropped(&n1, "expired").await, 0);
}

#[tokio::test]
async fn a_receiver_that_refuses_connections_gets_its_events_later() {
    let (net, push) = (Net::new(), Receiver::start().await);
    // Nobody listens at this address yet.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut hook = push.hook(&["session.login"]);
    hook.url = Secret::new(format!("http://{}/", socket.local_addr().unwrap()));
    let n1 = node(&net, "n1", hook).await;
    let (_anna, login) = n1.login("anna", "phone").await;
    eventually("a refused connection", || async {
        attempts(&n1, "failed").await >= 1
    })
    .await;
    let mut late = Receiver::on(socket.listen(8).unwrap());
    assert_eq!(late.event().await["data"]["session"], login["session"]);
    eventually("the delivery", || async {
        attempts(&n1, "delivered").await == 1
    })
    .await;
}

#[tokio::test]
async fn a_receiver_that_asks_for_a_pause_gets_it() {
    let (net, mut push) = (Net::new(), Receiver::start().await);
    let n1 = node(&net, "n1", push.hook(&["session.login"])).await;
    push.answers(Answer::Busy(3));
    let (_anna, _) = n1.login("anna", "phone").await;
    let first = push.delivery().await;
    push.answers(Answer::Status(204));
    let (_otto, _) = n1.login("otto", "phone").await;
    // Both the event that failed and the next one wait for the pause. The times are whole seconds.
    for _ in 0..2 {
        let later = push.delivery().await;
        assert!(
            later.timestamp >= first.timestamp + 2,
            "{later:?} {first:?}"
        );
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (net, mut push, mut other) = (Net::new(), Receiver::start().await, Receiver::start().await);
    let n1 = node(&net, "n1", push.hook(&["session.login"])).await;
    push.answers(Answer::Redirect(other.url.clone()));
    let (_anna, _) = n1.login("anna", "phone").await;
    let first = push.delivery().await;
    // The next attempt comes to the receiver again.
    assert_eq!(push.delivery().await.id, first.id);
    assert!(other.deliveries.try_recv().is_err());
}

#[tokio::test]
async fn a_receiver_that_hangs_delays_no_login_and_its_queue_is_bounded() {
    let (net, mut push) = (Net::new(), Receiver::start().await);
    let mut hook = push.hook(&["session.login"]);
    hook.queue = 40;
    hook.timeout = Duration::from_secs(30);
    let n1 = node(&net, "n1", hook).await;
    push.answers(Answer::Silent);
    let mut clients = Vec::new();
    for number in 0..200 {
        clients.push(n1.login(&format!("user-{number}"), "phone").await);
    }
    eventually("160 dropped events", || async {
        dropped(&n1, "full").await == 160
    })
    .await;
    assert_eq!(
        metric(&n1, r#"distlock_hook_waiting{hook="push"}"#).await,
        40
    );
    // Sixteen of the forty are under way, each with its own id, and no more.
    let mut ids = HashSet::new();
    for _ in 0..16 {
        ids.insert(push.delivery().await.id);
    }
    assert_eq!(ids.len(), 16);
    assert!(push.deliveries.try_recv().is_err());
}

#[tokio::test]
async fn the_rest_of_a_long_answer_is_not_read() {
    let (net, mut push) = (Net::new(), Receiver::start().await);
    let n1 = node(&net, "n1", push.hook(&["session.login"])).await;
    push.answers(Answer::Endless);
    for uid in ["anna", "otto"] {
        let (_client, _) = n1.login(uid, "phone").await;
        assert_eq!(push.event().await["data"]["uid"], uid);
    }
    eventually("both are delivered", || async {
        attempts(&n1, "delivered").await == 2
    })
    .await;
    assert_eq!(attempts(&n1, "failed").await, 0);
}

#[tokio::test]
async fn no_receiver_is_at_a_loopback_address_unless_it_is_allowed() {
    let net = Net::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let push = Receiver::start().await;
    let hooks: Vec<_> = ["127.0.0.1", "localhost", "127.1", "[::ffff:127.0.0.1]"]
        .into_iter()
        .enumerate()
        .map(|(at, host)| {
            let mut hook = push.hook(&["session.login"]);
            hook.name = format!("h{at}");
            hook.url = Secret::new(format!("https://{host}:{port}/"));
            hook.allow_private = false;
            hook
        })
        .collect();
    let count = hooks.len();
    let n1 = net.node_with("n1", |config| config.hooks = hooks).await;
    let (_anna, _) = n1.login("anna", "phone").await;
    for at in 0..count {
        let failed = format!(r#"distlock_hook_attempts_total{{hook="h{at}",result="failed"}}"#);
        eventually("a second attempt", || async {
            metric(&n1, &failed).await >= 2
        })
        .await;
    }
    // The listener would have it in its queue if anybody had connected.
    let connected = tokio::time::timeout(Duration::from_millis(10), listener.accept());
    assert!(connected.await.is_err());
}

#[tokio::test]
async fn secrets_are_exchanged_at_hup() {
    let (net, mut push) = (Net::new(), Receiver::start().await);
    let n1 = node(&net, "n1", push.hook(&["session.login"])).await;
    let mut signature = async |uid: &str| {
        let (_client, _) = n1.login(uid, "phone").await;
        let delivery = push.delivery().await;
        let (old, new) = (
            delivery.signed_with(SECRET),
            delivery.signed_with(NEW_SECRET),
        );
        let shown = delivery.signature.replace(&old, "OLD").replace(&new, "NEW");
        (shown, push.file())
    };
    let (first, file) = signature("anna").await;
    assert_eq!(first, "OLD");
    fs::write(&file, format!("{SECRET}\n# new\n{NEW_SECRET}\n")).unwrap();
    assert_eq!(signature("anna2").await.0, "OLD", "before HUP");
    n1.reload().await.unwrap();
    assert_eq!(signature("anna3").await.0, "OLD NEW");
    // A file that cannot be used changes nothing, and is not shown.
    fs::write(&file, format!("{SECRET}\nwhsec_short\n")).unwrap();
    let error = n1.reload().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let says = format!("{error} {error:?}");
    assert!(
        says.contains("secrets") && says.contains("line 2"),
        "{says}"
    );
    assert!(
        !says.contains("MfKQ") && !says.contains("whsec_short"),
        "{says}"
    );
    assert_eq!(signature("anna4").await.0, "OLD NEW");
    fs::write(&file, NEW_SECRET).unwrap();
    n1.reload().await.unwrap();
    assert_eq!(signature("anna5").await.0, "NEW");
}

#[tokio::test]
async fn a_receiver_that_is_gone_gets_nothing_until_hup() {
    let (net, mut push) = (Net::new(), Receiver::start().await);
    let n1 = node(&net, "n1", push.hook(&["session.login"])).await;
    push.answers(Answer::Status(410));
    let (_anna, _) = n1.login("anna", "phone").await;
    push.delivery().await;
    eventually("the answer", || async { dropped(&n1, "gone").await == 1 }).await;
    push.answers(Answer::Status(204));
    let (_otto, _) = n1.login("otto", "phone").await;
    eventually("the drop", || async { dropped(&n1, "gone").await == 2 }).await;
    n1.reload().await.unwrap();
    let (_carl, _) = n1.login("carl", "phone").await;
    assert_eq!(push.event().await["data"]["uid"], "carl");
}

#[tokio::test]
async fn an_event_that_is_too_old_is_dropped() {
    let (net, push) = (Net::new(), Receiver::start().await);
    let mut hook = push.hook(&["session.login"]);
    hook.give_up_after = Duration::from_millis(2500);
    let n1 = node(&net, "n1", hook).await;
    push.answers(Answer::Status(404));
    let (_anna, _) = n1.login("anna", "phone").await;
    eventually("the drop", || async { dropped(&n1, "expired").await == 1 }).await;
    assert!(attempts(&n1, "failed").await >= 2);
    assert_eq!(
        metric(&n1, r#"distlock_hook_waiting{hook="push"}"#).await,
        0
    );
}

#[tokio::test]
async fn a_node_that_stops_sends_the_ends_of_its_sessions() {
    let (net, mut push) = (Net::new(), Receiver::start().await);
    let mut n1 = node(&net, "n1", push.hook(&["session.login", "session.end"])).await;
    push.answers(Answer::Status(503));
    let (anna, login) = n1.login("anna", "phone").await;
    let refused = push.delivery().await;
    eventually("the failure", || async {
        attempts(&n1, "failed").await == 1
    })
    .await;
    push.answers(Answer::Status(204));
    let leaving = tokio::spawn(anna.leave_when_told());
    n1.shut_down().await;
    leaving.await.unwrap();
    // When the node has stopped, the receiver has everything: nothing waits for a later attempt.
    let mut events = HashMap::new();
    while let Ok(delivery) = push.deliveries.try_recv() {
        let event = delivery.event();
        events.insert(
            event["type"].as_str().unwrap().to_owned(),
            (delivery.id, event),
        );
    }
    assert_eq!(events["session.login"].0, refused.id);
    let (_, end) = &events["session.end"];
    assert_eq!(end["data"]["session"], login["session"]);
    assert_eq!(end["data"]["code"], 6);
}

#[tokio::test]
async fn a_node_stops_although_its_receiver_hangs() {
    let (net, mut push) = (Net::new(), Receiver::start().await);
    let mut hook = push.hook(&["session.login"]);
    hook.timeout = Duration::from_secs(30);
    let mut n1 = node(&net, "n1", hook).await;
    push.answers(Answer::Silent);
    let (anna, _) = n1.login("anna", "phone").await;
    push.delivery().await;
    anna.leave().await;
    n1.shut_down().await;
}

/// The sample of the documentation takes the events of a node, and refuses a forged one.
#[tokio::test]
async fn the_sample_of_the_documentation_verifies_events() {
    let page = include_str!("../../../../docs/gateway.md");
    let (_, sample) = page.split_once("```python\n# receiver.py\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    let mut python = tokio::process::Command::new("python3")
        .args(["-u", "-c", sample])
        .env("HOOK_SECRETS", format!("{NEW_SECRET} {SECRET}"))
        .env("HOOK_PORT", "0")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
    let mut line = async || soon("a line", lines.next_line()).await.unwrap().unwrap();
    let port: u16 = line().await.rsplit_once(' ').unwrap().1.parse().unwrap();

    let (net, push) = (Net::new(), Receiver::start().await);
    let mut hook = push.hook(&["session.login"]);
    hook.url = Secret::new(format!("http://127.0.0.1:{port}/"));
    let n1 = node(&net, "n1", hook).await;
    for uid in ["anna", "otto"] {
        let (_client, login) = n1.login(uid, "phone").await;
        let (kind, data) = line()
            .await
            .split_once(' ')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        assert_eq!(kind, "session.login");
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(
            (&data["uid"], &data["session"]),
            (&json!(uid), &login["session"])
        );
    }
    // Another secret: the sample refuses the event, and takes it when the node has the right one.
    push.write_secrets(&["whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]);
    n1.reload().await.unwrap();
    let (_carl, _) = n1.login("carl", "phone").await;
    eventually("the refusal", || async {
        attempts(&n1, "failed").await >= 1
    })
    .await;
    push.write_secrets(&[SECRET]);
    n1.reload().await.unwrap();
    assert!(line().await.contains("carl"));
}

#[test]
fn a_wrong_receiver_is_refused_with_its_field_limit_and_value() {
    let with = |change: &dyn Fn(&mut HookConfig)| {
        let mut hook = HookConfig::default();
        hook.name = "push".into();
        hook.url = Secret::new("https://example.com/a-key");
        hook.secret_file = "/etc/secret".into();
        change(&mut hook);
        let mut config: GatewayConfig = config("n1");
        config.hooks = vec![hook];
        config
    };
    with(&|_| {}).validate().unwrap();
    let says = |config: &GatewayConfig| -> Error {
        let error = config.validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(error.setting(), Some("hooks"), "{error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("a-key"), "{text}");
        error
    };
    let second = Duration::from_secs(1);
    type Change<'a> = &'a dyn Fn(&mut HookConfig);
    let cases: [(Change<'_>, &str); 13] = [
        (
            &|it| it.name = String::new(),
            "gateway.hooks.name of table 1 is \"\": 1 to 64",
        ),
        (
            &|it| it.name = "a b".into(),
            "gateway.hooks.name of table 1 is \"a b\"",
        ),
        (
            &|it| it.url = Secret::new(""),
            "gateway.hooks.push.url is not set",
        ),
        (
            &|it| it.url = Secret::new("a-key"),
            "gateway.hooks.push.url has no host",
        ),
        (
            &|it| it.url = Secret::new("ftp://example.com/a-key"),
            "begins with \"ftp://example.com\": http(s)://HOST:PORT/PATH is needed",
        ),
        (
            &|it| it.url = Secret::new("http://example.com/a-key"),
            "begins with \"http://example.com\": https:// is needed, except with allow_private",
        ),
        (
            &|it| it.url = Secret::new("https://u:a-key@example.com/"),
            "user or password",
        ),
        (
            &|it| it.secret_file = String::new(),
            "gateway.hooks.push.secret_file is not set",
        ),
        (
            &|it| it.events = Vec::new(),
            "gateway.hooks.push.events is empty",
        ),
        (
            &|it| it.timeout = 31 * second,
            "gateway.hooks.push.timeout is 31s: 100ms to 30s",
        ),
        (
            &|it| it.timeout = second / 20,
            "gateway.hooks.push.timeout is 50ms",
        ),
        (
            &|it| it.give_up_after = 86_401 * second,
            "gateway.hooks.push.give_up_after is 86401s: 100ms to 86400s",
        ),
        (
            &|it| it.queue = 100_001,
            "gateway.hooks.push.queue is 100001: 1 to 100000",
        ),
    ];
    for (change, expected) in cases {
        let error = says(&with(change)).to_string();
        assert!(error.contains(expected), "{error} instead of {expected}");
    }
    let mut twice = with(&|_| {});
    twice.hooks.push(twice.hooks[0].clone());
    assert!(says(&twice).to_string().contains("in two tables"));
    let mut many = with(&|_| {});
    many.hooks = vec![many.hooks[0].clone(); 9];
    assert!(says(&many).to_string().contains("has 9 tables: at most 8"));

    let table = "[[hooks]]\nname = \"push\"\nurl = \"https://example.com/a-key\"\n";
    for (bad, expected) in [
        ("events = [\"session.logout\"]", "session.takeover"),
        ("secret = \"whsec_\"", "secret_file"),
        ("timeout = 5", "string"),
    ] {
        let read = toml::from_str::<GatewayConfig>(&format!("{table}{bad}"));
        let error = read.unwrap_err().message().to_owned();
        assert!(
            error.contains(expected) && !error.contains("a-key"),
            "{error}"
        );
    }
    let shown = format!("{:?}", with(&|_| {}));
    assert!(!shown.contains("a-key"), "{shown}");
}

#[tokio::test]
async fn a_node_does_not_start_without_the_secrets_of_a_receiver() {
    let net = Net::new();
    let push = Receiver::start().await;
    fs::remove_file(push.file()).unwrap();
    let mut config = config("n1");
    config.hooks = vec![push.hook(&["session.login"])];
    let store = distlock_core::Store::new(net.memory.lock(), net.memory.records());
    let error = distlock_gateway::Gateway::start(config, store)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("gateway.hooks"), "{error}");
    // Nothing was written to the store: the name is free at once.
    push.write_secrets(&[SECRET]);
    node(&net, "n1", push.hook(&["session.login"])).await;
}
