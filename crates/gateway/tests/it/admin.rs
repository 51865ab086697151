//! The admin HTTP.

use std::time::Duration;

use distlock_core::{Clock as _, Store, SystemClock};
use distlock_gateway::{Gateway, GatewayConfig, Secret};
use distlock_kickout::{Class, Device, KickOut, Login, LoginOutcome, NodeId, Uid};
use serde_json::{Value, json};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::net::{ADMIN_TOKEN, Net, Node, config, eventually, http, login, soon};

const SEND_TOKEN: &str = "what servers show that send";

fn parsed(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}

#[tokio::test]
async fn answers_health_checks_on_the_clients_port() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let ask = "GET /healthz HTTP/1.1\r\nhost: n1\r\nconnection: close\r\n\r\n";
    let (status, body) = http(n1.listen, ask).await;
    assert_eq!((status, &parsed(&body)["status"]), (200, &json!("up")));
    n1.kick.drain(100).await.unwrap();
    let (status, body) = http(n1.listen, ask).await;
    assert_eq!(
        (status, &parsed(&body)["status"]),
        (503, &json!("draining"))
    );
}

#[tokio::test]
async fn shows_health_metrics_and_accounts_and_ends_sessions() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (mut phone, ok) = n1.login("anna/1", "phone").await;

    let (status, body) = n1.admin("GET /healthz", "").await;
    assert_eq!(status, 200);
    assert_eq!(
        (&parsed(&body)["status"], &parsed(&body)["sessions"]),
        (&json!("up"), &json!(1))
    );

    let (status, body) = n2.admin("GET /v1/users/anna%2F1", "").await;
    let view = parsed(&body);
    assert_eq!(status, 200, "{body}");
    assert_eq!(view["record"]["slots"]["main"]["session"], ok["session"]);
    assert_eq!(
        (&view["nodes"][0]["node"], &view["nodes"][0]["state"]),
        (&json!("n1"), &json!("up"))
    );
    let (status, body) = n2.admin("GET /v1/users/nobody", "").await;
    assert_eq!((status, &parsed(&body)["record"]), (200, &Value::Null));

    let kick = json!({"uid": "anna/1", "reason": "spam"}).to_string();
    let (status, body) = n2.admin("POST /v1/kick", &kick).await;
    assert_eq!(status, 200, "{body}");
    let kicked = &parsed(&body)["kicked"][0];
    assert_eq!(
        (&kicked["session"], &kicked["gone"]),
        (&ok["session"], &json!(true))
    );
    let offline = phone.frame().await;
    assert_eq!(
        (&offline["code"], &offline["reason"]),
        (&json!(3), &json!("spam"))
    );
    phone.leave().await;

    let (status, body) = n1.admin("GET /metrics", "").await;
    assert_eq!(status, 200);
    for metric in [
        "distlock_login_total{result=\"admitted\"}",
        "distlock_login_lock_wait_seconds_bucket{",
        "# HELP distlock_sessions ",
        "# TYPE distlock_login_lock_wait_seconds histogram",
        "distlock_session_ends_total{code=\"3\"}",
        "distlock_session_ends_total{code=\"9\"} 0",
        "distlock_messages_total{outcome=\"stored\"} 0",
        "distlock_build_info{version=",
        "distlock_events_lost_total 0",
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "process_open_fds ",
        "process_start_time_seconds ",
    ] {
        assert!(body.contains(metric), "{metric} is not in {body}");
    }
    for line in body.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let help = format!("# HELP {} ", line.split(' ').next().unwrap());
        assert!(body.contains(&help), "{help:?} is not in {body}");
    }
    assert!(!body.contains("anna"), "metrics name no account");

    for bad in [
        "{}",
        r#"{"uid":"a","node":"n1"}"#,
        r#"{"uid":""}"#,
        "x",
        r#"{"all":false}"#,
        r#"{"all":true,"uid":"a"}"#,
        r#"{"uid":"a","reason":"\u0007"}"#,
        r#"{"uid":"a","why":"spam"}"#,
    ] {
        let (status, body) = n1.admin("POST /v1/kick", bad).await;
        assert!((400..500).contains(&status), "{status} for {bad}");
        assert!(parsed(&body)["error"].is_string(), "{body}");
    }
    for (request, expected) in [("GET /v1/nothing", 404), ("GET /v1/kick", 405)] {
        let (status, body) = n1.admin(request, "").await;
        assert_eq!(status, expected, "{request}");
        assert!(body.contains(r#""error":"#), "{request}: {body}");
    }
}

#[tokio::test]
async fn requires_the_admin_token() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let request = |token: &str| {
        format!(
            "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             authorization: {token}\r\n\r\n"
        )
    };
    for bad in [
        "",
        "Bearer x",
        &format!("Bearer {}", &ADMIN_TOKEN[1..]),
        ADMIN_TOKEN,
    ] {
        assert_eq!(http(n1.admin, &request(bad)).await.0, 401, "{bad}");
    }
    let (status, body) = http(n1.admin, &request(&format!("Bearer {ADMIN_TOKEN}"))).await;
    assert_eq!(status, 200);
    // All tests of the process share the recorder, and other tests show wrong tokens as well.
    let counter = "distlock_token_refused_total{token=\"admin\"} ";
    assert!(body.contains(counter), "{body}");
    let health = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(http(n1.admin, health).await.0, 200, "health needs none");
}

#[tokio::test]
async fn a_wrong_token_is_delayed_and_a_right_one_is_not() {
    let net = Net::new();
    let config = |config: &mut GatewayConfig| config.send_token = Some(Secret::new(SEND_TOKEN));
    let n1 = net.node_with("n1", config).await;
    let sent = json!({"from": "otto", "to": "anna", "body": 1}).to_string();
    for (request, body, right) in [
        ("GET /v1/nodes", "", ADMIN_TOKEN),
        ("POST /v1/send", &*sent, SEND_TOKEN),
    ] {
        let started = SystemClock.now();
        let asked = async |token: &str| {
            let status = n1.admin_with(token, request, body).await.0;
            (status, SystemClock.now().since(started))
        };
        let (guessed, known) = tokio::join!(asked("a guess"), asked(right));
        assert_eq!((guessed.0, known.0), (401, 200), "{request}");
        assert!(guessed.1 >= Duration::from_secs(1) && known.1 < guessed.1);
    }
    let metrics = n1.admin("GET /metrics", "").await.1;
    for token in ["admin", "send"] {
        let name = format!("distlock_token_refused_total{{token=\"{token}\"}}");
        let counted = metrics.lines().find_map(|line| line.strip_prefix(&name));
        let counted = counted.and_then(|count| count.trim().parse::<u64>().ok());
        assert!(
            counted.is_some_and(|count| count > 0),
            "{name} in {metrics}"
        );
    }
}

#[tokio::test]
async fn makes_an_admin_token_if_none_is_set() {
    let net = Net::new();
    let mut config = config("n1");
    config.admin_token = None;
    let store = Store::new(net.memory.lock(), net.memory.records());
    let gateway = Gateway::start(config, store).await.unwrap();
    let token = gateway.made_admin_token().unwrap().expose().to_owned();
    let ready = serde_json::to_string(gateway.ready()).unwrap();
    assert!(!ready.contains(&token), "{ready}");
    let n1 = Node::run(gateway);
    assert_eq!(n1.admin("GET /v1/nodes", "").await.0, 401);
    assert_eq!(n1.admin_with(&token, "GET /v1/nodes", "").await.0, 200);
}

#[tokio::test]
async fn orders_without_effect_push_nothing_out_of_the_audit_log() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let ban = json!({"uid": "anna", "reason": "spam"}).to_string();
    assert_eq!(n1.admin("POST /v1/ban", &ban).await.0, 200);
    for _ in 0..60 {
        for (request, body) in [
            ("DELETE /v1/ban?uid=nobody", ""),
            ("DELETE /v1/drain", ""),
            ("POST /v1/kick", r#"{"uid":"nobody"}"#),
            ("POST /v1/force-release", r#"{"name":"x","token":1}"#),
        ] {
            assert_eq!(n1.admin(request, body).await.0, 200, "{request}");
        }
    }
    let (_, body) = n1.admin("GET /v1/audit", "").await;
    let entries = parsed(&body)["entries"].clone();
    assert_eq!(entries.as_array().map(Vec::len), Some(1), "{body}");
    assert_eq!(entries[0]["action"], "ban");
}

#[tokio::test]
async fn bans_drains_and_keeps_an_audit_log() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (mut phone, _) = n1.login("anna", "phone").await;

    let dry = json!({"class": "", "dry_run": true}).to_string();
    let (status, body) = n2.admin("POST /v1/kick", &dry).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(parsed(&body)["would_kick"][0]["device"], "phone");

    let ban = json!({"uid": "anna", "ttl": "1h", "reason": "spam"}).to_string();
    let (status, body) = n2.admin("POST /v1/ban", &ban).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(parsed(&body)["kicked"][0]["gone"], true, "{body}");
    let offline = phone.frame().await;
    assert_eq!(
        (&offline["code"], &offline["reason"], &offline["retry"]),
        (&json!(5), &json!("spam"), &json!("never"))
    );
    phone.leave().await;
    let mut again = n1.connect().await;
    again.send(&login("anna", "phone")).await;
    let denied = again.frame().await;
    assert_eq!(
        (&denied["type"], &denied["code"], &denied["reason"]),
        (&json!("denied"), &json!(5), &json!("spam"))
    );
    let (status, body) = n1.admin("DELETE /v1/ban?uid=anna", "").await;
    assert_eq!((status, &parsed(&body)["lifted"]), (200, &json!(true)));
    let (mut phone, _) = n1.login("anna", "phone").await;

    let (status, body) = n1.admin("POST /v1/drain", r#"{"rate": 100}"#).await;
    assert_eq!((status, &parsed(&body)["state"]), (200, &json!("draining")));
    assert_eq!(phone.frame().await["code"], 6);
    phone.leave().await;
    assert_eq!(n1.admin("GET /healthz", "").await.0, 503);
    let (status, body) = n2.admin("GET /v1/nodes", "").await;
    let nodes = parsed(&body);
    assert_eq!(status, 200, "{body}");
    assert_eq!(nodes["node"], "n2");
    assert_eq!(
        (&nodes["nodes"][0]["node"], &nodes["nodes"][0]["state"]),
        (&json!("n1"), &json!("draining"))
    );
    assert_eq!(nodes["nodes"][1]["state"], "up");
    let (_, body) = n1.admin("DELETE /v1/drain", "").await;
    assert_eq!(parsed(&body)["state"], "up");

    let (_, body) = n1.admin("GET /v1/revocations", "").await;
    assert_eq!(parsed(&body), json!({"revocations": [], "total": 0}));
    let (_, body) = n2.admin("GET /v1/audit", "").await;
    let log = parsed(&body);
    let mut actions: Vec<_> = log["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    actions.sort_unstable();
    assert_eq!(actions, ["ban", "drain", "unban", "undrain"]);
    assert!(body.contains("127.0.0.1"), "from where");

    for (request, bad) in [
        ("POST /v1/ban", r#"{"uid":"anna","ttl":"soon"}"#),
        ("POST /v1/ban", r#"{"uid":"anna","ttl":"0s"}"#),
        ("POST /v1/drain", r#"{"rate":0}"#),
        ("POST /v1/drain", "{}"),
        ("DELETE /v1/ban", ""),
        ("POST /v1/force-release", r#"{"name":"x","token":0}"#),
    ] {
        let (status, body) = n1.admin(request, bad).await;
        assert!(
            (400..500).contains(&status),
            "{request} {bad}: {status} {body}"
        );
        assert!(parsed(&body)["error"].is_string(), "{body}");
    }
}

#[tokio::test]
async fn the_audit_log_counts_each_session_once() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let (_phone, _) = n1.login("anna", "phone").await;
    // No process listens at this node's address, so every call to the node fails.
    let store = Store::new(net.memory.lock(), net.memory.records());
    let far = KickOut::builder(store, NodeId::new("n2").unwrap())
        .advertise("127.0.0.1:1")
        .start()
        .await
        .unwrap();
    for (request, body, counted) in [
        (
            "POST /v1/kick",
            json!({"all": true}),
            "1 ended, 1 not confirmed yet",
        ),
        (
            "POST /v1/ban",
            json!({"uid": "otto"}),
            "banned, 0 ended, 1 not confirmed yet",
        ),
    ] {
        let otto = Login::new(
            Uid::new("otto").unwrap(),
            Device::new("phone").unwrap(),
            Class::none(),
        );
        let otto = far.login(otto).await.unwrap();
        assert!(matches!(otto, LoginOutcome::Admitted(_)), "{otto:?}");
        let (status, body) = n1.admin(request, &body.to_string()).await;
        assert_eq!(status, 200, "{body}");
        let (_, body) = n1.admin("GET /v1/audit", "").await;
        let log = parsed(&body);
        let mut entries = log["entries"].as_array().unwrap().iter();
        assert!(
            entries.any(|entry| entry["result"] == counted),
            "{counted}: {body}"
        );
    }
}

#[tokio::test]
async fn an_order_is_recorded_even_if_its_sender_left() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.kick_budget = Duration::from_secs(10);
        })
        .await;
    // This listener accepts calls and never answers, so the kick takes long.
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = deaf.local_addr().unwrap().to_string();
    let n2 = net
        .node_with("n2", |config| config.peer_advertise = Some(address))
        .await;
    let (mut phone, _) = n2.login("anna", "phone").await;
    let kick = json!({"uid": "anna", "reason": "spam"}).to_string();
    let head = format!(
        "POST /v1/kick HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN_TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        kick.len()
    );
    let mut asker = tokio::net::TcpStream::connect(n1.admin).await.unwrap();
    asker.write_all((head + &kick).as_bytes()).await.unwrap();
    let _called = soon("the kick", deaf.accept()).await.unwrap();
    asker.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let ended = soon("the end", asker.read_to_end(&mut answer)).await;
    assert!(
        ended.is_err() || answer.is_empty(),
        "it was answered already"
    );
    assert_eq!(phone.frame().await["code"], 3);
    eventually("the entry", || async {
        let (_, body) = n1.admin("GET /v1/audit", "").await;
        parsed(&body)["entries"][0]["reason"] == "spam"
    })
    .await;
}

#[tokio::test]
async fn a_lock_is_released_by_force() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let store = Store::new(net.memory.lock(), net.memory.records());
    let guard = store.locker().lock("stuck").acquire().await.unwrap();
    let release = json!({"name": "stuck", "token": guard.token().get() + 1}).to_string();
    let (_, body) = n1.admin("POST /v1/force-release", &release).await;
    assert_eq!(parsed(&body)["result"], "other_token");
    let release = json!({"name": "stuck", "token": guard.token().get()}).to_string();
    let (_, body) = n1.admin("POST /v1/force-release", &release).await;
    assert_eq!(parsed(&body)["result"], "released");
    drop(store.locker().lock("stuck").acquire().await.unwrap());
}

#[tokio::test]
async fn strangers_leave_room_for_clients_that_logged_in() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| config.set("max_pending", "2").unwrap())
        .await;
    let (mut phone, _) = n1.login("anna", "phone").await;
    let (_otto, _) = n1.login("otto", "phone").await;
    let _strangers = (n1.connect().await, n1.connect().await);
    let mut third = tokio::net::TcpStream::connect(n1.listen).await.unwrap();
    let mut buffer = [0; 16];
    let refused = soon(
        "the refusal",
        tokio::io::AsyncReadExt::read(&mut third, &mut buffer),
    )
    .await;
    assert!(matches!(refused, Ok(0) | Err(_)));
    phone.send(&json!({"type": "ping"})).await;
    assert_eq!(phone.frame().await["type"], "pong");
}

#[tokio::test]
async fn an_account_that_logs_in_too_often_is_answered_busy() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.set("login_rate", "1").unwrap();
            config.set("login_burst", "1").unwrap();
        })
        .await;
    let mut busy = None;
    // On a slow machine the account may get a new allowance between two logins.
    for round in 0..100 {
        let mut client = n1.connect().await;
        client.send(&login("anna", &format!("d{round}"))).await;
        let answer = client.frame().await;
        if answer["type"] == "busy" {
            busy = Some((answer, client.rest().await.1));
            break;
        }
    }
    let (answer, code) = busy.expect("it was never slowed down");
    assert!(
        answer["retry_after_ms"].as_u64().unwrap() >= 200,
        "{answer}"
    );
    assert_eq!(code, Some(4004));
}
