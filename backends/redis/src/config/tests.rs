use std::time::Duration;

use distlock_backend_kit::{Secret, not_compiled_in};
use distlock_core::ErrorKind;

use crate::config::{Endpoint, RedisConfig, Topology};

#[test]
fn urls_are_parsed() {
    let config = RedisConfig::from_url("redis://127.0.0.1").unwrap();
    let local = Topology::Single(Endpoint::new("127.0.0.1", 6379));
    assert_eq!(config, RedisConfig::new(local));

    let config = RedisConfig::from_url(
        "redis://bob:p%40ss:word@[::1]:7000/3?prefix=app:&request_timeout=500ms",
    )
    .unwrap();
    assert_eq!(
        config.topology,
        Topology::Single(Endpoint::new("::1", 7000))
    );
    assert_eq!(config.user.as_deref(), Some("bob"));
    assert_eq!(config.password, Some(Secret::new("p@ss:word")));
    assert_eq!((config.database, &*config.prefix), (3, "app:"));
    assert_eq!(config.timeout, Duration::from_millis(500));

    let config = RedisConfig::from_url(
        "redis+sentinel://:pw@a,b:1,c/mymaster?db=2&sentinel_password=x&tls=disable",
    )
    .unwrap();
    assert_eq!(
        config.topology,
        Topology::Sentinel {
            sentinels: vec![
                Endpoint::new("a", 26379),
                Endpoint::new("b", 1),
                Endpoint::new("c", 26379)
            ],
            primary: "mymaster".into()
        }
    );
    assert_eq!((config.database, config.user), (2, None));

    let config = RedisConfig::from_url("redis+cluster://a:7000,b:7001").unwrap();
    assert!(matches!(config.topology, Topology::Cluster(seeds) if seeds.len() == 2));
}

#[test]
fn a_wrong_url_gets_an_error_that_names_the_mistake() {
    for (url, says) in [
        ("redis:127.0.0.1", "`//`"),
        ("redis://", "is no host"),
        ("redis://a:0", "is no host"),
        ("redis://a:99999", "is no host"),
        ("redis://u:hunter2:6379", "is no host"),
        ("redis://a#hunter2", "is no host"),
        ("redis://a,b:hunter2", "host number 2 is no host"),
        ("redis://a/hunter2", "number of a database"),
        ("redis://a,b", "redis+sentinel://"),
        ("redis://a/x", "number of a database"),
        ("redis://a/99999", "number of a database"),
        ("redis+sentinel://a", "primary's name"),
        ("redis+cluster://a/1", "database 0 only"),
        ("redis+cluster://a?db=1", "database 0 only"),
        ("redis://bob@a", "without a password"),
        ("redis://a?prefx=a", "did you mean `prefix`?"),
        ("redis://a?zzz=1", "known are connect_timeout, db"),
        ("redis://a?prefix=", "`prefix`"),
        ("redis://a?prefix=a{b}", "`prefix`"),
        ("redis://a?prefix=a*", "`prefix`"),
        ("redis://a?request_timeout=2", "has no unit"),
        ("redis://a?request_timeout=1ms", "outside 100 ms"),
        ("redis://a?tls=true", "rediss://"),
        ("redis://a?tls=off", "none of `true`, `false` and `disable`"),
        ("rediss://a?tls=disable", "redis:// instead of rediss://"),
        ("redis+cluster://a?tls_ca=/x&tls=disable", "leave out one"),
        ("redis+cluster://a?tls=disable&tls_ca=/x", "leave out one"),
        ("redis+cluster://a?tls=false&tls_ca=/x", "leave out one"),
        (
            "redis+cluster://a?tls_cert=/x&tls_key=/y&tls=false",
            "leave out one",
        ),
        ("redis://a?tls_ca=/x", "rediss://"),
        ("redis://a?sentinel_password=x", "redis+sentinel://"),
        ("redis+unix:///tmp/x", "unknown scheme"),
    ] {
        let error = RedisConfig::from_url(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
        assert!(error.to_string().contains(says), "{url}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{url}: {error}");
    }
}

#[test]
fn a_password_leaves_this_machine_only_through_tls_unless_tls_is_disabled() {
    for url in [
        "redis://:hunter2@db.example",
        "redis://db.example?password=hunter2",
        "redis+sentinel://:hunter2@127.0.0.1,db.example/m",
        "redis+sentinel://db.example/m?sentinel_password=hunter2",
        "redis+sentinel://:hunter2@db.example/m?tls=false",
        "redis+cluster://:hunter2@[::1],db.example",
    ] {
        let error = RedisConfig::from_url(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
        let said = error.to_string();
        let remedy = if url.starts_with("redis://") {
            "write rediss://"
        } else {
            "set the option `tls` to `true`"
        };
        for word in ["\"db.example\"", "`tls` to `disable`", remedy] {
            assert!(said.contains(word), "{url}: {said}");
        }
        assert!(!said.contains("hunter2"), "{url}: {said}");
        let add = not_compiled_in("TLS", "redis,tls");
        assert_eq!(said.contains(&add), !cfg!(feature = "tls"), "{url}: {said}");
    }
    for url in [
        "redis://db.example",
        "redis://:hunter2@localhost",
        "redis://:hunter2@127.0.0.1",
        "redis://:hunter2@[::1]",
        "redis://:hunter2@db.example?tls=disable",
        "redis+sentinel://:hunter2@127.0.0.1,[::1]/m?sentinel_password=hunter2",
        "redis+sentinel://db.example/m",
        "redis+cluster://:hunter2@db.example?tls=disable",
        "redis+cluster://:hunter2@127.0.0.1",
    ] {
        RedisConfig::from_url(url).unwrap();
    }
    #[cfg(feature = "tls")]
    for url in [
        "rediss://:hunter2@db.example",
        "redis+sentinel://:hunter2@db.example/m?tls=true",
        "redis+cluster://:hunter2@db.example?tls_ca=/ca.pem",
    ] {
        RedisConfig::from_url(url).unwrap();
    }
}

#[test]
fn debug_hides_passwords() {
    let config = RedisConfig::from_url(
        "redis+sentinel://bob:canary1@a/m?sentinel_user=x&sentinel_password=canary2\
         &tls=disable",
    )
    .unwrap();
    assert!(!format!("{config:?}").contains("canary"));
    let error = RedisConfig::from_url("redis://bob:canary%zz@a").unwrap_err();
    assert!(!error.to_string().contains("canary"), "{error}");
}

#[test]
#[cfg(not(feature = "tls"))]
fn tls_must_be_compiled_in() {
    let error = RedisConfig::from_url("rediss://a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
