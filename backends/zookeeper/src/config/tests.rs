//! Valid and invalid URLs.

use std::time::Duration;

use distlock_backend_kit::not_compiled_in;
use distlock_core::{ErrorKind, Result};

use super::{AclPolicy, ZooKeeperConfig};

fn parse(body: &str, options: &[(&str, &str)]) -> Result<ZooKeeperConfig> {
    let options: Vec<_> = options
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    ZooKeeperConfig::from_url_parts(body, &options)
}

#[test]
fn a_url_sets_the_options() {
    let config = parse(
        "//app:s%40cret@h1:2182,h2,[::1]/team/app",
        &[
            ("session_timeout", "1m"),
            ("request_timeout", "500ms"),
            ("tls", "disable"),
        ],
    )
    .unwrap();
    assert_eq!(config.servers, ["h1:2182", "h2:2181", "[::1]:2181"]);
    assert_eq!(config.root, "/team/app");
    assert_eq!(config.session_timeout, Duration::from_secs(60));
    assert_eq!(config.acl, AclPolicy::Creator);
    let credentials = config.credentials.unwrap();
    assert_eq!(credentials.user, "app");
    assert_eq!(credentials.password.reveal(), "s@cret");
    let plain = parse("//h1", &[]).unwrap();
    assert_eq!(
        (plain.root.as_str(), plain.acl),
        ("/distlock", AclPolicy::Open)
    );
}

#[test]
fn errors_name_the_wrong_option_and_no_secret() {
    for (body, options, says) in [
        ("//h1/", vec![], "among the ensemble's own nodes"),
        ("//h1/zookeeper", vec![], "belongs to the ensemble"),
        ("//h1/zookeeper/config", vec![], "belongs to the ensemble"),
        ("//h1/app/", vec![], "ends with /"),
        ("//h1/a//b", vec![], "empty or relative"),
        ("//h1/a/../zookeeper", vec![], "empty or relative"),
        ("//h1/%00", vec![], "refuses"),
        ("//h1/%zz", vec![], "%-escape"),
        ("//", vec![], "no server"),
        ("//h1:0", vec![], "no server"),
        ("//h1,,h2", vec![], "no server"),
        ("//h1,u:hunter2", vec![], "number 2 of the servers"),
        ("h1", vec![], "zookeeper://host"),
        ("//hunter2@h1", vec![], "no password"),
        ("//h1", vec![("session_timeout", "10")], "has no unit"),
        ("//h1", vec![("session_timeout", "1ms")], "outside"),
        ("//h1", vec![("tick_time", "6s")], "outside 1ms to 5s"),
        ("//h1", vec![("reap_after", "15s")], "twice the session"),
        (
            "//h1",
            vec![("session-timeout", "10s")],
            "did you mean `session_timeout`",
        ),
        ("//h1", vec![("acl", "creator")], "needs credentials"),
        ("//h1", vec![("acl", "everyone")], "`creator` and `open`"),
        ("//h1", vec![("sasl", "digest-md5")], "needs credentials"),
        ("//u:hunter2@h1", vec![("sasl", "plain")], "unknown"),
        ("//h1", vec![("tls_cert", "x.pem")], "tls_ca"),
        ("//h1", vec![("tls", "true")], "for TLS set `tls_ca`"),
        (
            "//h1",
            vec![("tls", "disable"), ("tls_ca", "x.pem")],
            "leave out one",
        ),
    ] {
        let error = parse(body, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{body}: {error}");
        assert!(error.to_string().contains(says), "{body}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let config = parse("//u:hunter2@localhost", &[]).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn a_password_is_sent_to_another_machine_only_through_tls_or_with_tls_disable() {
    let error = parse("//u:hunter2@127.0.0.1,db.example:2182", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let said = error.to_string();
    for word in ["\"db.example\"", "`tls` to `disable`", "`tls_ca`"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(!said.contains("hunter2"), "{said}");
    let add = not_compiled_in("TLS", "zookeeper,tls");
    assert_eq!(said.contains(&add), !cfg!(feature = "tls"), "{said}");
    for (body, options) in [
        ("//db.example", vec![]),
        ("//u:hunter2@localhost,[::1]:2182,127.0.0.1", vec![]),
        ("//u:hunter2@db.example", vec![("tls", "disable")]),
        #[cfg(feature = "sasl")]
        ("//u:hunter2@db.example", vec![("sasl", "digest-md5")]),
        #[cfg(feature = "tls")]
        ("//u:hunter2@db.example", vec![("tls_ca", "ca.pem")]),
    ] {
        parse(body, &options).unwrap();
    }
}
