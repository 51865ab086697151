//! If the options demand TLS, the connection has TLS or fails.

use distlock_core::{ErrorKind, Verdict};
use distlock_harness::{
    Pki,
    servers::mysql::{MySqlServer, Product},
};

use crate::{
    locker, mysql, on_both,
    servers::{LONG, hold},
    start,
};

on_both! {
    a_verified_client_and_server_use_tls => a_verified_client_and_server_use_tls;
    required_tls_never_falls_back_to_plain_text => required_tls_never_falls_back_to_plain_text;
}

async fn refused(url: &str) {
    refused_as(url, ErrorKind::AccessDenied).await;
}

async fn refused_as(url: &str, kind: ErrorKind) {
    let _ = refusal(url, kind).await;
}

async fn refusal(url: &str, kind: ErrorKind) -> String {
    let error = mysql(url).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{url}: {error}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    error.to_string()
}

async fn a_verified_client_and_server_use_tls(product: Product) {
    let pki = Pki::new().unwrap();
    let file = |name: &str| pki.path(name).display().to_string();
    let (ca, key) = (file("ca.crt"), file("server.key"));
    let server = MySqlServer::with_tls(product, &pki).unwrap();
    server
        .sql(
            "CREATE USER bob@'127.0.0.1' IDENTIFIED BY 'hunter2' REQUIRE X509; \
             GRANT ALL ON distlock.* TO bob@'127.0.0.1'",
        )
        .unwrap();
    let at = |options: &str| {
        format!(
            "mysql://bob:hunter2@{}/distlock?{options}",
            server.address()
        )
    };
    let client = format!(
        "ssl-cert={}&ssl-key={}",
        file("client.crt"),
        file("client.key")
    );
    for mode in ["VERIFY_IDENTITY", "VERIFY_CA"] {
        let locker = locker(&at(&format!("ssl-mode={mode}&ssl-ca={ca}&{client}"))).await;
        let guard = hold(&locker, "a", LONG).await;
        assert!(guard.release().await.is_clean());
    }
    // The connection is encrypted, but the certificate is not verified.
    let unverified = mysql(&at(&format!("ssl-mode=REQUIRED&{client}"))).await;
    unverified.unwrap().lock().close().await;

    refused(&at("ssl-mode=DISABLED")).await;
    refused(&at(&format!("ssl-mode=VERIFY_CA&ssl-ca={ca}"))).await;
    // The authority is not trusted by default. The authority is not in this file either.
    let stranger = Pki::new().unwrap();
    let strange = stranger.path("ca.crt").display().to_string();
    for untrusted in [
        format!("ssl-mode=VERIFY_IDENTITY&{client}"),
        format!("ssl-mode=VERIFY_CA&ssl-ca={strange}&{client}"),
    ] {
        let said = refusal(&at(&untrusted), ErrorKind::Unavailable).await;
        assert!(said.contains("certificate is not trusted"), "{said}");
        assert!(said.contains("`ssl-ca` names"), "{said}");
    }
    for (option, path, says) in [
        ("ssl-ca", "/nowhere/ca.crt", "cannot read /nowhere/ca.crt"),
        ("ssl-ca", &key, "holds no certificate in PEM form"),
    ] {
        let wrong = at(&format!("ssl-mode=VERIFY_CA&{option}={path}&{client}"));
        let said = refusal(&wrong, ErrorKind::InvalidConfig).await;
        assert!(said.contains(&format!("option `{option}`: ")), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

async fn required_tls_never_falls_back_to_plain_text(product: Product) {
    // MySQL creates its own certificate unless an option forbids that. The tested MariaDB versions
    // have none.
    let server = match product {
        Product::MariaDb => start(product),
        Product::MySql => MySqlServer::with(product, &["tls-version="]).unwrap(),
    };
    let root = format!("mysql://{}/distlock", server.account_at(server.address()));
    for mode in ["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"] {
        let url = format!("{root}?ssl-mode={mode}");
        refused_as(&url, ErrorKind::Unavailable).await;
    }
    // Without a demand for TLS, plain text is accepted.
    let preferred = format!("{root}?ssl-mode=PREFERRED");
    let guard = hold(&locker(&preferred).await, "a", LONG).await;
    assert!(guard.release().await.is_clean());

    // A password does not leave this machine in plain text unless an option allows that. The
    // resolver resolves 127.1 to 127.0.0.1, but the library does not recognise 127.1 as this
    // machine.
    let user = "CREATE USER bob IDENTIFIED BY 'hunter2'; GRANT ALL ON distlock.* TO bob";
    server.sql(user).unwrap();
    let port = server.address().port();
    let said = refusal(
        &format!("mysql://bob:hunter2@127.1:{port}/distlock"),
        ErrorKind::InvalidConfig,
    )
    .await;
    for word in ["offers no TLS", "`tls` to `disable`"] {
        assert!(said.contains(word), "{said}");
    }
    if product == Product::MariaDb {
        // MySQL itself demands TLS for a password that is not in its cache.
        let url = format!("mysql://bob:hunter2@127.1:{port}/distlock?tls=disable");
        let health = locker(&url).await.health().await.unwrap();
        let found = health.findings.iter().find(|it| it.check == "password");
        let found = found.unwrap();
        assert_eq!(found.verdict, Verdict::Warn, "{found:?}");
        assert!(found.detail.contains("set `ssl-mode`"), "{found:?}");
    }
}
