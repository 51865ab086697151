//! Wrong URLs for working servers. Each error names the mistake and its place, comes in time, and
//! shows no password.
#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]

use std::{
    io::Read as _,
    net::TcpListener,
    time::{Duration, Instant},
};

use crate::common::redis;
use distlock_core::{Error, ErrorKind};
use distlock_harness::servers::redis::{RedisCluster, RedisSentinels, RedisServer};

/// The connect time-out in every URL here.
const LIMIT: Duration = Duration::from_secs(2);

/// Returns the error of opening this URL. The error must come at most one second after the limit.
async fn refused(url: &str) -> Error {
    let sign = if url.contains('?') { '&' } else { '?' };
    let start = Instant::now();
    let opened = redis(&format!("{url}{sign}connect_timeout=2s")).await;
    let took = start.elapsed();
    let error = opened.expect_err(url);
    assert!(took < LIMIT + Duration::from_secs(1), "{url}: {took:?}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("canary"), "{shown}");
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        assert!(!format!("{cause} {cause:?}").contains("canary"), "{cause}");
        source = cause.source();
    }
    error
}

#[track_caller]
fn assert_error(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?}: {error}");
    }
    assert!(!error.to_string().contains('\n'), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_refused() {
    let server = RedisServer::with(&["requirepass secret", "user limited on >canary -@all"]);
    let server = server.unwrap();
    let at = server.address().to_string();
    for (user, word) in [
        (":canary@", "refused the credentials"),
        ("nobody:canary@", "refused the credentials"),
        ("", "refused the credentials"),
        // The password is right, and the user has no rights.
        ("limited:canary@", "does not permit"),
    ] {
        let error = refused(&format!("redis://{user}{at}")).await;
        assert_error(&error, ErrorKind::AccessDenied, &[word, &at]);
    }
    let option = refused(&format!("redis://{at}?password=canary")).await;
    assert_error(&option, ErrorKind::AccessDenied, &[&at]);
}

/// By default a server without a password serves only clients of its own machine. The server's
/// refusal for other clients is a long text.
#[tokio::test(flavor = "multi_thread")]
async fn the_error_explains_protected_mode() {
    use std::io::Write as _;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(
                b"-DENIED Redis is running in protected mode because protected mode is enabled and \
                 no password is set for the default user. In this mode connections are only \
                 accepted from the loopback interface. If you want to connect from external \
                 computers to Redis you may adopt one of the following solutions: 1) Just disable \
                 protected mode sending the command 'CONFIG SET protected-mode no' from the \
                 loopback interface by connecting to Redis from the same host the server is \
                 running. 4) Set up an authentication password for the default user.\r\n",
            );
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    for url in [format!("redis://{at}"), format!("redis+cluster://{at}")] {
        let error = refused(&url).await;
        assert_error(&error, ErrorKind::AccessDenied, &["protected mode", &at]);
        assert!(error.to_string().len() < 250, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_databases_are_refused() {
    let server = RedisServer::start().unwrap();
    let (at, url) = (server.address().to_string(), server.url());
    for url in [format!("{url}/99"), format!("{url}?db=99")] {
        let error = refused(&url).await;
        assert_error(&error, ErrorKind::InvalidConfig, &["DB index", &at]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_addresses_are_refused() {
    // No server listens at the address.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = gone.local_addr().unwrap().to_string();
    drop(gone);
    let error = refused(&format!("redis://:canary@{at}")).await;
    assert_error(&error, ErrorKind::Unavailable, &[&at]);
    for scheme in ["redis+sentinel", "redis+cluster"] {
        let path = if scheme.ends_with("sentinel") {
            "/mymaster"
        } else {
            ""
        };
        let error = refused(&format!("{scheme}://:canary@{at}{path}")).await;
        assert_error(&error, ErrorKind::Unavailable, &[&at]);
    }
    let error = refused("redis://:canary@no-such-host.invalid?tls=disable").await;
    assert_error(&error, ErrorKind::Unavailable, &["no-such-host.invalid"]);

    // The server accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap().to_string();
    for url in [
        format!("redis://:canary@{at}"),
        format!("redis+sentinel://:canary@{at}/mymaster"),
        format!("redis+cluster://:canary@{at}"),
        format!("redis+cluster://:canary@{at},{at}"),
    ] {
        let error = refused(&url).await;
        assert_error(
            &error,
            ErrorKind::Unavailable,
            &[&at, "did not answer in time"],
        );
    }

    // The server speaks another protocol.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in other.incoming().flatten() {
            use std::io::Write as _;
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = refused(&format!("redis://:canary@{at}")).await;
    assert_error(&error, ErrorKind::Unavailable, &[&at, "does not speak"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_kind_is_refused() {
    let primary = RedisServer::start().unwrap();
    let at = primary.address().to_string();
    let replica = primary.replica().unwrap();
    let error = refused(&replica.url()).await;
    assert_error(&error, ErrorKind::Unavailable, &["replica of", &at]);

    let error = refused(&primary.url().replace("redis://", "redis+cluster://")).await;
    assert_error(&error, ErrorKind::InvalidConfig, &["redis://", &at]);

    let cluster = RedisCluster::start(3, 0).unwrap();
    let error = refused(&cluster.nodes[0].url()).await;
    let at = cluster.nodes[0].address().to_string();
    assert_error(&error, ErrorKind::InvalidConfig, &["redis+cluster://", &at]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_urls_for_sentinels_are_refused() {
    let servers = RedisSentinels::start().unwrap();
    let at = servers.sentinels[0].address().to_string();
    let error = refused(&servers.sentinels[0].url()).await;
    assert_error(
        &error,
        ErrorKind::InvalidConfig,
        &["redis+sentinel://", &at],
    );
    let password = format!("sentinel_password={}", servers.sentinels[0].password());
    let error = refused(&format!("redis+sentinel://{at}/another?{password}")).await;
    assert_error(&error, ErrorKind::Unavailable, &["another", &at]);
    // The server is no sentinel.
    let at = servers.primary.address().to_string();
    let error = refused(&format!("redis+sentinel://{at}/mymaster?{password}")).await;
    assert_error(&error, ErrorKind::Unavailable, &[&at]);
}

#[cfg(feature = "tls")]
mod tls {
    use distlock_harness::Pki;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_wrong_protocol_is_refused() {
        let plain = RedisServer::start().unwrap();
        let at = plain.address().to_string();
        let error = refused(&format!("rediss://:canary@{at}")).await;
        assert_error(&error, ErrorKind::Unavailable, &[&at, "TLS"]);

        let pki = Pki::new().unwrap();
        let secured = RedisServer::with_tls(pki.folder(), &[]).unwrap();
        let at = secured.address().to_string();
        let error = refused(&format!("redis://:canary@{at}")).await;
        assert_error(
            &error,
            ErrorKind::Unavailable,
            &[&at, "only one side uses TLS"],
        );
        let error = refused(&format!("rediss://:canary@{at}")).await;
        assert_error(&error, ErrorKind::Unavailable, &[&at, "certificate"]);
    }
}
