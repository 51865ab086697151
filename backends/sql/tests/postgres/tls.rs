//! If the options demand TLS, the connection has TLS or fails.

use distlock_core::{ErrorKind, Verdict};
use distlock_harness::Pki;

use super::*;

async fn refused(url: &str) {
    refused_as(url, ErrorKind::AccessDenied).await;
}

async fn refused_as(url: &str, kind: ErrorKind) {
    let _ = refusal(url, kind).await;
}

async fn refusal(url: &str, kind: ErrorKind) -> String {
    let error = try_open(url).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{url}: {error}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verified_client_and_server_use_tls() {
    let pki = Pki::new().unwrap();
    let server = PostgresServer::with_tls(&pki).unwrap();
    let file = |name: &str| pki.path(name).display().to_string();
    let at = |host: &str, options: &str| {
        let port = server.address().port();
        format!("postgres://secured:hunter2@{host}:{port}/distlock?{options}")
    };
    let client = format!(
        "sslcert={}&sslkey={}",
        file("client.crt"),
        file("client.key")
    );
    let ca = format!("sslrootcert={}", file("ca.crt"));
    for (host, mode) in [
        ("127.0.0.1", "verify-full"),
        ("localhost", "verify-full"),
        ("127.0.0.1", "verify-ca"),
    ] {
        let locker = locker(&at(host, &format!("sslmode={mode}&{ca}&{client}"))).await;
        let guard = hold(&locker, "a", LONG).await;
        let health = locker.health().await.unwrap();
        let tls = health.findings.iter().find(|it| it.check == "TLS").unwrap();
        assert_eq!(tls.verdict, Verdict::Pass);
        assert!(tls.detail.starts_with("TLSv1"), "{tls:?}");
        assert!(guard.release().await.is_clean());
    }
    // The connection is encrypted, but the certificate is not verified.
    open(&at("127.0.0.1", &format!("sslmode=require&{client}"))).await;

    refused(&at("127.0.0.1", "sslmode=disable")).await;
    refused(&at("127.0.0.1", &format!("sslmode=verify-full&{ca}"))).await;
    // The authority is not trusted by default. The authority is not in this file either.
    let stranger = Pki::new().unwrap();
    let strange = stranger.path("ca.crt").display().to_string();
    for untrusted in [
        format!("sslmode=verify-full&{client}"),
        format!("sslmode=verify-ca&sslrootcert={strange}&{client}"),
    ] {
        let said = refusal(&at("127.0.0.1", &untrusted), ErrorKind::Unavailable).await;
        assert!(said.contains("certificate is not trusted"), "{said}");
        assert!(said.contains("`sslrootcert` names"), "{said}");
    }
    let certificate = format!("sslcert={}", file("client.crt"));
    for (options, option, says) in [
        (
            format!("sslrootcert=/nowhere/ca.crt&{client}"),
            "sslrootcert",
            "cannot read /nowhere/ca.crt",
        ),
        (
            format!("{ca}&{certificate}&sslkey={}", file("client.crt")),
            "sslkey",
            "holds no private key in PEM form",
        ),
    ] {
        let wrong = at("127.0.0.1", &format!("sslmode=verify-ca&{options}"));
        let said = refusal(&wrong, ErrorKind::InvalidConfig).await;
        assert!(said.contains(&format!("option `{option}`: ")), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_way_back_to_plain_text() {
    let server = PostgresServer::start().unwrap();
    for mode in ["require", "verify-ca", "verify-full"] {
        let url = format!("{}?sslmode={mode}", server.url());
        refused_as(&url, ErrorKind::Unavailable).await;
    }
    // Without a demand for TLS, plain text is accepted.
    open(&format!("{}?sslmode=prefer", server.url())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_leaves_this_machine_only_through_tls_unless_tls_is_disabled() {
    let server = PostgresServer::start().unwrap();
    server
        .sql("CREATE ROLE app SUPERUSER LOGIN PASSWORD 'hunter2'")
        .unwrap();
    let port = server.address().port();
    // The resolver resolves 127.1 to 127.0.0.1, but the library does not recognise 127.1 as this
    // machine.
    let url = format!("postgres://app:hunter2@127.1:{port}/distlock");
    let said = refusal(&url, ErrorKind::InvalidConfig).await;
    for word in ["offers no TLS", "`tls` to `disable`"] {
        assert!(said.contains(word), "{said}");
    }
    let locker = locker(&format!("{url}?tls=disable")).await;
    let health = locker.health().await.unwrap();
    let found = health.findings.iter().find(|it| it.check == "password");
    let found = found.unwrap();
    assert_eq!(found.verdict, Verdict::Warn, "{found:?}");
    assert!(found.detail.contains("set `sslmode`"), "{found:?}");
}
