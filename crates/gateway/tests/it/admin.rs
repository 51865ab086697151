//! The admin HTTP.

use serde_json::{Value, json};

use crate::net::{Net, http};

fn parsed(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
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
        "distlock_lock_wait_seconds",
    ] {
        assert!(body.contains(metric), "{metric} is not in {body}");
    }
    assert!(!body.contains("anna"), "metrics name no account");

    for bad in [
        "{}",
        r#"{"uid":"a","node":"n1"}"#,
        r#"{"uid":""}"#,
        "x",
        r#"{"all":true}"#,
    ] {
        let (status, _) = n1.admin("POST /v1/kick", bad).await;
        assert!((400..500).contains(&status), "{status} for {bad}");
    }
    assert_eq!(n1.admin("GET /v1/nothing", "").await.0, 404);
}

#[tokio::test]
async fn asks_for_the_token_when_there_is_one() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config
                .set("admin_token", "a long enough admin token")
                .unwrap();
        })
        .await;
    let request = |token: &str| {
        format!(
            "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: {token}\r\n\r\n"
        )
    };
    for bad in [
        "",
        "Bearer x",
        "Bearer a long enough admin toke",
        "a long enough admin token",
    ] {
        assert_eq!(http(n1.admin, &request(bad)).await.0, 401, "{bad}");
    }
    let (status, _) = http(n1.admin, &request("Bearer a long enough admin token")).await;
    assert_eq!(status, 200);
    assert_eq!(
        n1.admin("GET /healthz", "").await.0,
        200,
        "health needs none"
    );
}
