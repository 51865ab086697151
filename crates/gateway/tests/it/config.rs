//! Values that the configuration accepts and refuses.

use std::time::Duration;

use distlock_core::{ErrorKind, Store};
use distlock_gateway::{Gateway, GatewayConfig, Secret};

use crate::net::{KEY, Net, config};

#[test]
fn reads_toml_and_refuses_unknown_keys_and_values() {
    let config: GatewayConfig = toml::from_str(
        r#"
        node = "n1"
        tcp_listen = "127.0.0.1:0"
        policy = "single"
        confirm = "strict"
        token_key = "a key of at least thirty-two bytes"
        token_key_also = "another of at least thirty-two bytes"
        lock_ttl = "2s"
        node_lease = "1m 30s"
        grace = "250ms"
        "#,
    )
    .unwrap();
    config.validate().unwrap();
    assert_eq!(config.lock_ttl, Duration::from_secs(2));
    assert_eq!(config.node_lease, Duration::from_secs(90));
    assert_eq!(config.sweep, Duration::from_secs(3), "the default");
    let shown = format!("{config:?}");
    assert!(!shown.contains("thirty-two"), "{shown}");
    for bad in [
        "nonsense = 1",
        "grace = 5",
        "grace = \"5\"",
        "grace = \"-5s\"",
        "policy = \"two\"",
        "policy = \"n_total(65)\"",
        "on_exceed = \"panic\"",
        "confirm = true",
        "max_frame = -1",
    ] {
        assert!(toml::from_str::<GatewayConfig>(bad).is_err(), "{bad}");
    }
}

#[test]
fn every_key_can_be_set_from_text() {
    for (key, help) in GatewayConfig::KEYS {
        assert!(!help.is_empty());
        let value = match *key {
            "policy" => "n_per_class(3)",
            "on_exceed" => "deny",
            "classes" => "phone, car",
            "confirm" => "available",
            _ if key.starts_with("max_")
                || key.starts_with("send_") && *key != "send_token"
                || key.starts_with("pair_")
                || matches!(*key, "login_rate" | "login_burst") =>
            {
                "1024"
            }
            "node" => "n1",
            "insecure_listen" => "true",
            _ if key.ends_with("listen") || *key == "peer_advertise" => "127.0.0.1:0",
            "token_key" | "token_key_also" | "admin_token" | "send_token" | "profile_token" => {
                "a key of at least thirty-two bytes"
            }
            "profile_url" | "login_jwks_url" => "http://127.0.0.1:8080/may-log-in?of=us",
            "peer_tls_auth" => "mutual",
            "client_address" => "proxy_protocol",
            _ => "1s",
        };
        config("n1")
            .set(key, value)
            .unwrap_or_else(|error| panic!("{key}: {error}"));
    }
    for (key, value) in [
        ("nonsense", "1"),
        ("grace", "5"),
        ("policy", "two"),
        ("on_exceed", "panic"),
        ("max_frame", "x"),
    ] {
        let error = config("n1").set(key, value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(
            error.to_string().contains(&format!("gateway.{key}")),
            "{error}"
        );
    }
}

#[test]
fn errors_name_the_key_the_value_and_the_limits() {
    for (key, value, says) in [
        ("node", "n/1", "node name has '/'"),
        ("node", "", "is not set"),
        ("listen", "nowhere", "is \"nowhere\": host:port is needed"),
        ("peer_advertise", "host:", "host:port is needed"),
        ("peer_advertise", "0.0.0.0:1", "other nodes cannot reach"),
        (
            "token_key",
            "short",
            "is 5 bytes long: at least 32 are needed",
        ),
        (
            "token_key_also",
            "hunter2",
            "is 7 bytes long: at least 32 are needed",
        ),
        ("token_key_also", "", "is 0 bytes long"),
        ("token_key_also", KEY, "is the same as token_key"),
        ("admin_token", KEY, "is the same as token_key"),
        ("send_token", KEY, "is the same as token_key"),
        (
            "admin_token",
            "short",
            "is 5 bytes long: at least 16 are needed",
        ),
        (
            "admin_token",
            "hunter2 hunter2 hunter2\n",
            "cannot be sent in a header",
        ),
        (
            "admin_token",
            " hunter2 hunter2 hunter2",
            "with nothing around it",
        ),
        (
            "admin_token",
            "h\u{fc}nter2 hunter2 hunter2",
            "visible ASCII characters",
        ),
        ("lock_ttl", "99ms", "is 99ms: 100ms to 3600s are allowed"),
        ("node_lease", "2h", "is 7200s: 500ms to 3600s are allowed"),
        (
            "profile_url",
            "ftp://profiles",
            "begins with \"ftp://profiles\": http(s)://HOST:PORT/PATH is needed",
        ),
        (
            "profile_url",
            "ftp://profiles/hunter2?key=hunter2",
            "begins with \"ftp://profiles\":",
        ),
        (
            "profile_url",
            "/hunter2",
            "http(s)://HOST:PORT/PATH is needed",
        ),
        ("profile_url", "http:/host/hunter2", "has no host"),
        ("profile_url", "http://host name/hunter2", "has no host"),
        ("profile_url", "http://a:hunter2@host/", "user or password"),
        (
            "profile_token",
            "two\nlines",
            "one line of visible characters",
        ),
        (
            "profile_timeout",
            "9ms",
            "is 9ms: 10ms to 3600s are allowed",
        ),
        (
            "login_jwks_url",
            "http://keys.example/hunter2",
            "begins with \"http://keys.example\": https:// is needed",
        ),
        (
            "login_jwks_url",
            "http://10.0.0.1/hunter2",
            "https:// is needed",
        ),
        (
            "login_jwks_url",
            "http://127.0.0.1.example/hunter2",
            "https:// is needed",
        ),
        (
            "login_jwks_url",
            "https://a:hunter2@host/",
            "user or password",
        ),
        (
            "login_jwks_url",
            "hunter2",
            "http(s)://HOST:PORT/PATH is needed",
        ),
        ("login_issuer", "me", "is set without login_key_file"),
        ("login_audience", "me", "is set without login_key_file"),
        (
            "token_key",
            "-----BEGIN PUBLIC KEY-----\nhunter2 hunter2 hunter2",
            "is a key of a key pair",
        ),
        (
            "token_key_also",
            "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=",
            "is a key of a key pair",
        ),
        ("max_frame", "65536", "is 65536: 512 to 65535 are allowed"),
        ("max_connections", "0", "is 0: 1 to 1000000 are allowed"),
        ("login_rate", "100001", "is 100001: 0 to 100000 are allowed"),
    ] {
        let mut config = config("n1");
        config.set(key, value).unwrap();
        let error = config.validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(error.setting(), Some(key), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("gateway.{key}")) && text.contains(says),
            "{text}"
        );
        assert!(!text.contains("hunter2") && !text.contains(KEY), "{text}");
        let shown = format!("{config:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let mut both = config("n1");
    both.set("login_key_file", "keys.pem").unwrap();
    for url in [
        "https://keys.example/",
        "http://[::1]:1/",
        "http://127.1.2.3/",
    ] {
        both.login_jwks_url = Some(Secret::new(url));
        let error = both.validate().unwrap_err();
        assert_eq!(error.setting(), Some("login_jwks_url"), "{error}");
        let mut one = both.clone();
        one.login_key_file = None;
        one.set("login_issuer", "https://keys.example").unwrap();
        one.validate().unwrap();
        one.set("login_audience", "").unwrap();
        let error = one.validate().unwrap_err();
        assert_eq!(error.setting(), Some("login_audience"), "{error}");
    }
    // A key that is only accepted is no signing key.
    for also in [None, Some(KEY)] {
        let mut config = config("n1");
        config.token_key = None;
        config.token_key_also = also.map(Secret::new);
        let error = config.validate().unwrap_err();
        assert_eq!(error.setting(), Some("token_key"), "{error}");
        let text = error.to_string();
        assert!(text.contains("DISTLOCK_GATEWAY_TOKEN_KEY"), "{text}");
    }
}

#[tokio::test]
async fn a_reachable_listener_needs_a_token_or_an_address() {
    let net = Net::new();
    let store = || Store::new(net.memory.lock(), net.memory.records());
    for (key, value, says) in [
        (
            "admin_listen",
            "0.0.0.0:0",
            "gateway.admin_token is not set",
        ),
        (
            "peer_listen",
            "0.0.0.0:0",
            "gateway.peer_advertise is not set",
        ),
        ("listen", "203.0.113.1:0", "cannot be bound"),
    ] {
        let mut config = config("n1");
        config.set("insecure_listen", "true").unwrap();
        config.admin_token = None;
        config.set(key, value).unwrap();
        // The error comes before anything is bound.
        assert_eq!(config.validate().is_err(), says.ends_with("is not set"));
        let error = Gateway::start(config, store()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn a_listener_beyond_loopback_needs_tls_or_permission() {
    let net = Net::new();
    let store = || Store::new(net.memory.lock(), net.memory.records());
    for (key, remedy) in [
        ("listen", "tls_cert and tls_key"),
        ("tcp_listen", "tls_cert and tls_key"),
        ("admin_listen", "tls_cert and tls_key"),
        ("peer_listen", "peer_tls_ca"),
    ] {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:1"] {
            let mut config = config("n1");
            config.set(key, address).unwrap();
            // The error comes before anything is bound.
            let error = config.validate().unwrap_err();
            assert_eq!(error.setting(), Some(key));
            let text = error.to_string();
            for says in [address, "without TLS", remedy, "insecure_listen"] {
                assert!(text.contains(says), "{text}");
            }
        }
    }
    // A host name is checked only at the bind.
    let mut config = config("n1");
    config.set("listen", "0:0").unwrap();
    config.validate().unwrap();
    let error = Gateway::start(config, store()).await.unwrap_err();
    assert!(error.to_string().contains("without TLS"), "{error}");
}

#[test]
fn a_certificate_needs_its_key() {
    for (set, lacks) in [
        ("tls_cert", "tls_key"),
        ("tls_key", "tls_cert"),
        ("peer_tls_cert", "peer_tls_key"),
        ("peer_tls_key", "peer_tls_cert"),
        ("peer_tls_name", "peer_tls_ca"),
    ] {
        let mut config = config("n1");
        config.set(set, "/etc/distlock/x.pem").unwrap();
        let error = config.validate().unwrap_err();
        assert_eq!(error.setting(), Some(set), "{error}");
        assert!(error.message().contains(lacks), "{error}");
    }
    let mut config = config("n1");
    config.set("peer_tls_auth", "mutual").unwrap();
    let error = config.validate().unwrap_err();
    assert!(error.message().contains("peer_tls_ca"), "{error}");
}
