//! Access to a server: ACL users, databases, TLS.

use std::time::Duration;

use crate::common::{SOON, redis};
use distlock_core::{ErrorKind, Verdict};
use distlock_harness::{
    eventually,
    servers::redis::{RedisCluster, RedisServer},
};

/// The ACL line in the crate's documentation.
const ACL: &str = include_str!("../../src/acl.txt");

/// Starts a server with a user who has exactly the documented rights. A server would read the same
/// line from an ACL file.
pub(crate) fn server_with_the_documented_user() -> (RedisServer, String) {
    let server = RedisServer::start().unwrap();
    let line = ACL.trim().replace(">PASSWORD", ">canary");
    let words: Vec<_> = line.split(' ').collect();
    assert_eq!(server.command(&words).unwrap(), "OK");
    let url = format!("redis://distlock:canary@{}", server.address());
    (server, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_reports_unreadable_settings_as_unknown() {
    let (_server, url) = server_with_the_documented_user();
    let store = redis(&url).await.unwrap();
    let health = store.lock().health().await.unwrap();
    for (check, verdict) in [
        ("version", Verdict::Pass),
        ("role", Verdict::Pass),
        ("eviction", Verdict::Pass),
        ("persistence", Verdict::Unknown),
        ("replicas", Verdict::Unknown),
        ("rights", Verdict::Pass),
    ] {
        let found = health.findings.iter().find(|found| found.check == check);
        assert_eq!(found.unwrap().verdict, verdict, "{check}: {health:?}");
    }
}

/// The reverse case: the user may read the settings, but may not run `INFO`.
#[tokio::test(flavor = "multi_thread")]
async fn missing_info_does_not_pass_for_no_replicas() {
    let (server, url) = server_with_the_documented_user();
    let change = ["ACL", "SETUSER", "distlock", "+config|get", "-info"];
    assert_eq!(server.command(&change).unwrap(), "OK");
    let store = redis(&url).await.unwrap();
    let health = store.lock().health().await.unwrap();
    for (check, verdict) in [
        ("version", Verdict::Unknown),
        ("role", Verdict::Unknown),
        ("eviction", Verdict::Pass),
        ("persistence", Verdict::Pass),
        ("replicas", Verdict::Unknown),
        ("disk", Verdict::Unknown),
        ("rights", Verdict::Pass),
    ] {
        let found = health.findings.iter().find(|found| found.check == check);
        assert_eq!(found.unwrap().verdict, verdict, "{check}: {health:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_finds_missing_rights() {
    let (server, url) = server_with_the_documented_user();
    for (change, says) in [
        (&["-set", "-client|caching"][..], "SET, CLIENT|CACHING"),
        (&["+@all", "resetkeys", "%R~distlock:*"], "SET"),
        (&["allkeys", "-eval"], "EVAL"),
    ] {
        let command = [&["ACL", "SETUSER", "distlock"], change].concat();
        assert_eq!(server.command(&command).unwrap(), "OK");
        let store = redis(&url).await.unwrap();
        let health = store.lock().health().await.unwrap();
        let found = health.findings.iter().find(|found| found.check == "rights");
        let found = found.unwrap();
        assert_eq!(found.verdict, Verdict::Fail, "{change:?}: {health:?}");
        assert!(found.detail.contains(says), "{change:?}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_and_prefixes_separate_stores() {
    let server = RedisServer::start().unwrap();
    let mut guards = Vec::new();
    for place in ["", "/3", "?db=4", "?prefix=app:"] {
        let locker = crate::common::locker(&format!("{}{place}", server.url())).await;
        let guard = locker
            .lock("a")
            .ttl(Duration::from_secs(30))
            .wait(Duration::ZERO)
            .acquire()
            .await;
        guards.push(guard.unwrap());
    }
    let keys = server.command(&["KEYS", "*:lock:*"]).unwrap();
    let mut heads: Vec<_> = keys
        .lines()
        .filter_map(|key| key.split('{').next())
        .collect();
    heads.sort_unstable();
    assert_eq!(heads, ["app:", "distlock:"]);
    let databases = server.command(&["INFO", "keyspace"]).unwrap();
    assert!(
        databases.contains("db3:") && databases.contains("db4:"),
        "{databases}"
    );
    for guard in guards {
        assert!(guard.release().await.is_clean());
    }
}

#[cfg(feature = "tls")]
mod tls {
    use distlock_core::{ErrorKind, Expect, RecordKey, Written};
    use distlock_harness::Pki;

    use super::*;

    fn url(server: &RedisServer, pki: &Pki, options: &[(&str, &str)]) -> String {
        let mut url = server.url().replace("redis://", "rediss://");
        for (at, (option, file)) in options.iter().enumerate() {
            let sign = if at == 0 { '?' } else { '&' };
            url += &format!("{sign}{option}={}", pki.path(file).display());
        }
        url
    }

    const ALL: [(&str, &str); 3] = [
        ("tls_ca", "ca.crt"),
        ("tls_cert", "client.crt"),
        ("tls_key", "client.key"),
    ];

    #[tokio::test(flavor = "multi_thread")]
    async fn a_private_authority_and_a_client_certificate_work() {
        let pki = Pki::new().unwrap();
        let server = RedisServer::with_tls(pki.folder(), &[]).unwrap();
        let store = redis(&url(&server, &pki, &ALL)).await.unwrap();
        let locker = distlock_core::Locker::new(store.lock());
        locker.ready().await.unwrap();
        let guard = locker.lock("a").ttl(Duration::from_secs(30)).acquire();
        let guard = guard.await.unwrap();
        // The push comes over the same connection.
        let waiting = tokio::spawn({
            let locker = crate::common::locker(&url(&server, &pki, &ALL)).await;
            async move { locker.lock("a").wait(SOON).acquire().await }
        });
        guard.extend(Duration::from_secs(30)).await.unwrap();
        assert!(guard.release().await.is_clean());
        let next = waiting.await.unwrap().unwrap();
        assert!(next.release().await.is_clean());
        let key = RecordKey::new("k").unwrap();
        let written = store.records().put(&key, b"v", Expect::Absent).await;
        assert!(matches!(written.unwrap(), Written::Stored(_)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn untrusted_certificates_are_refused() {
        let pki = Pki::new().unwrap();
        let server = RedisServer::with_tls(pki.folder(), &[]).unwrap();
        let other = Pki::new().unwrap();
        for (whose, options) in [
            // This machine trusts no authority that signed the server's certificate.
            (&pki, &ALL[1..]),
            // The client trusts another authority than the server's.
            (&other, &ALL[..]),
            // The client has no certificate.
            (&pki, &ALL[..1]),
        ] {
            let error = redis(&url(&server, whose, options)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("127.0.0.1"), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn wrong_certificate_files_are_an_invalid_configuration() {
        let pki = Pki::new().unwrap();
        std::fs::write(pki.path("garbage"), "garbage").unwrap();
        let garbage = format!(
            "rediss://127.0.0.1:1?tls_ca={}",
            pki.path("garbage").display()
        );
        let key_is_none = format!(
            "rediss://127.0.0.1:1?tls_cert={}&tls_key={}",
            pki.path("client.crt").display(),
            pki.path("garbage").display()
        );
        let absent = "rediss://127.0.0.1:1?tls_ca=/nowhere/ca.crt".to_owned();
        for (url, says) in [
            (garbage, "`tls_ca`"),
            (key_is_none, "`tls_key`"),
            (absent, "/nowhere/ca.crt"),
        ] {
            let error = redis(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}

/// The URL names only loopback addresses, and a server names another address.
#[tokio::test(flavor = "multi_thread")]
async fn no_password_is_sent_to_a_cluster_server_beyond_this_machine() {
    let servers = RedisCluster::start(3, 0).unwrap();
    for node in &servers.nodes {
        for (setting, value) in [
            // The resolver reads this text as 127.0.0.1, but the text does not look like a loopback
            // address.
            ("cluster-announce-hostname", "127.1"),
            ("cluster-preferred-endpoint-type", "hostname"),
        ] {
            node.command(&["CONFIG", "SET", setting, value]).unwrap();
        }
        node.command(&[
            "ACL", "SETUSER", "app", "on", ">canary", "~*", "&*", "+@all",
        ])
        .unwrap();
    }
    let seed = &servers.nodes[0];
    let named = || seed.command(&["CLUSTER", "SLOTS"]).unwrap();
    eventually("all have the other name", SOON, || {
        named().matches("127.1").count() >= 3
    })
    .unwrap();
    let url = format!("redis+cluster://app:canary@{}", seed.address());
    let error = redis(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    for word in ["\"127.1\"", "`tls` to `disable`"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    assert!(!error.to_string().contains("canary"), "{error}");

    let store = redis(&format!("{url}?tls=disable")).await.unwrap();
    let health = store.lock().health().await.unwrap();
    let found = health.findings.iter().find(|it| it.check == "password");
    let found = found.unwrap();
    assert_eq!(found.verdict, Verdict::Warn, "{found:?}");
    assert!(found.detail.contains("in clear"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_says_how_the_password_travels() {
    let server = RedisServer::with(&["requirepass canary"]).unwrap();
    let port = server.port();
    for (url, verdict, says) in [
        (
            format!("redis://:canary@127.0.0.1:{port}"),
            Verdict::Pass,
            "does not leave this machine",
        ),
        (
            format!("redis://:canary@127.1:{port}?tls=disable"),
            Verdict::Warn,
            "write rediss://",
        ),
    ] {
        let store = redis(&url).await.unwrap();
        let health = store.lock().health().await.unwrap();
        let found = health.findings.iter().find(|it| it.check == "password");
        let found = found.unwrap();
        assert_eq!(found.verdict, verdict, "{found:?}");
        assert!(found.detail.contains(says), "{found:?}");
    }
}
