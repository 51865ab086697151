//! Credentials, access lists, TLS, and the errors when no session can be opened.

use std::{net::TcpListener, sync::Arc, time::Duration};

use distlock_backend_kit::{Credentials, SharedProvider};
use distlock_core::{Attempt, Error, ErrorKind, Locker, SystemClock, sync::Mutex};
use distlock_harness::{
    FaultProxy, free_port,
    servers::zookeeper::{Setup, ZooKeeper},
};
use distlock_zookeeper::{ZooKeeper as Backend, ZooKeeperConfig};
use zookeeper_client as zk;

use crate::fixtures::{
    SOON, config, container_path, contenders, count_waiters, enter_queue, eventually, hold, now,
    raw_client, release_cleanly, within,
};

const PASSWORD: &str = "pa:ss w0rd";

/// A configuration from a URL, with short sessions.
fn config_from_url(
    servers: &str,
    user: Option<&str>,
    options: &[(&str, String)],
) -> ZooKeeperConfig {
    let user = user.map_or(String::new(), |user| format!("{user}@").replace(' ', "%20"));
    let mut options: Vec<_> = options
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    options.push(("session_timeout".into(), "5s".into()));
    let body = format!("//{user}{servers}/team/app");
    ZooKeeperConfig::from_url_parts(&body, &options).unwrap()
}

async fn connect(config: ZooKeeperConfig) -> Locker {
    let store = Backend::open(config, Arc::new(SystemClock)).await.unwrap();
    Locker::new(store.lock())
}

/// Opens a store that must be refused, and returns the error.
pub(crate) async fn open_refused(mut config: ZooKeeperConfig) -> Error {
    config.connect_timeout = Duration::from_secs(2);
    let start = now();
    let opened = Backend::open(config, Arc::new(SystemClock)).await;
    let took = now().since(start);
    // `open` may take a second longer than the limit. Another second is for a busy machine.
    assert!(took < Duration::from_secs(4), "{took:?}");
    let error = opened.map(drop).unwrap_err();
    assert!(
        !format!("{error:?} {error}").contains("ss w0rd"),
        "{error:?}"
    );
    error
}

/// Returns the setup of one server. At first every client may use its nodes. For tests of access
/// lists.
fn open_to_all(settings: &[&str]) -> Setup {
    Setup {
        open: true,
        ..single_server(settings)
    }
}

pub(crate) fn single_server(settings: &[&str]) -> Setup {
    Setup {
        servers: 1,
        settings: settings.iter().map(|&line| line.to_owned()).collect(),
        ..Setup::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_without_a_session_fails_in_time_with_the_reason() {
    let closed = format!("127.0.0.1:{}", free_port().unwrap());
    let error = open_refused(config(&closed)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("refused"), "{error}");

    let error = open_refused(config("no-such-host.invalid:2181")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    // This server accepts connections and never answers.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = open_refused(config(&mute.local_addr().unwrap().to_string())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    for root in ["/", "/zookeeper", "/zookeeper/quota"] {
        let mut config = config(&closed);
        config.root = root.into();
        let error = open_refused(config).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(root), "{error}");
    }

    let setup = Setup {
        java: vec!["-Dreadonlymode.enabled=true".into()],
        ..Setup::default()
    };
    let mut ensemble = ZooKeeper::start_with(&setup).unwrap();
    let store = Backend::open(config(&ensemble.servers()), Arc::new(SystemClock)).await;
    let locker = Locker::new(store.unwrap().lock());
    release_cleanly(hold(&locker, "a").await).await;
    for at in [1, 2] {
        ensemble.kill(at);
    }
    // A client that has lost its session waits for another session, but not longer than for an
    // answer.
    let for_an_answer = config(&ensemble.servers()).request_timeout;
    let start = now();
    let error = locker.lock("a").try_acquire().await.unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
        ),
        "{error}"
    );
    let took = now().since(start);
    // Twice the limit, for a busy machine.
    assert!(took < for_an_answer * 2, "{took:?}");
    // The last server answers no request at first. Later it serves only reads.
    let last = ensemble.server(0);
    let error = open_refused(config(&ensemble.servers())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    eventually("it serves reads only", async || {
        let mode = ensemble.ask(0, "srvr").ok()?;
        mode.contains("Mode: read-only").then_some(())
    })
    .await;
    let error = open_refused(config(&last)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("reads only"), "{error}");
    for at in [1, 2] {
        ensemble.restart(at).unwrap();
    }
    eventually("the ensemble serves again", async || {
        let guard = locker.lock("a").acquire().await.ok()?;
        guard.release().await.is_clean().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_creator_may_touch_a_lock() {
    let server = ZooKeeper::start_with(&open_to_all(&[])).unwrap();
    let user = format!("app:{}", PASSWORD.replace(':', "%3A"));
    let ours = connect(config_from_url(&server.servers(), Some(&user), &[])).await;
    let same = connect(config_from_url(&server.servers(), Some(&user), &[])).await;
    let guard = hold(&ours, "a").await;

    // A client with other credentials can list the nodes and nothing more.
    let client = raw_client(&server.servers()).await;
    let parent = container_path("a").replace("/distlock/", "/team/app/");
    let forbidden = |result: Result<(), zk::Error>| {
        assert!(matches!(result, Err(zk::Error::NoAuth)), "{result:?}");
    };
    forbidden(client.list_children(&parent).await.map(drop));
    forbidden(client.delete(&parent, None).await);
    forbidden(client.delete("/team/app/locks", None).await);
    for user in [None, Some("app:wrong"), Some("other:secret")] {
        let error = open_refused(config_from_url(&server.servers(), user, &[])).await;
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    }

    // A client with the same credentials shares the queue.
    let holder = same.inspect("a").await.unwrap().held.unwrap();
    assert_eq!(holder.token, Some(guard.token()));
    let health = same.health().await.unwrap();
    assert!(!format!("{health:?}").contains("ss w0rd"));
    release_cleanly(guard).await;
    release_cleanly(hold(&same, "a").await).await;

    // Another root on the same servers has separate locks.
    let elsewhere = Backend::open(config(&server.servers()), Arc::new(SystemClock)).await;
    let elsewhere = Locker::new(elsewhere.unwrap().lock());
    let (here, there) = (hold(&same, "a").await, hold(&elsewhere, "a").await);
    assert_eq!(contenders(&client, "a").await.len(), 1);
    release_cleanly(here).await;
    release_cleanly(there).await;
}

/// Some clients of one root have credentials and others have none. No deployment should do this.
#[tokio::test(flavor = "multi_thread")]
async fn locks_made_with_other_credentials_are_listed_and_hide_no_others() {
    let server = ZooKeeper::start_with(&open_to_all(&[])).unwrap();
    // The client without credentials creates the root, so every client may use it.
    let plain = connect(config_from_url(&server.servers(), None, &[])).await;
    let open = hold(&plain, "b open").await;
    let known = connect(config_from_url(&server.servers(), Some("app:secret"), &[])).await;
    let secret = hold(&known, "a secret").await;
    // Every client may read this queue. The first client adds a node that only clients with
    // credentials may read.
    let first = hold(&plain, "c mixed").await;
    let waiting = enter_queue(&known, "c mixed").await;
    let queue = plain.inspect("c mixed").await.unwrap().queue;
    assert_eq!(queue.len(), 1);
    assert!(queue[0].holder.contains("other credentials"), "{queue:?}");
    release_cleanly(first).await;
    let (mixed, _) = waiting.await.unwrap();

    let listed = plain.list("").await.unwrap();
    let seen: Vec<_> = listed
        .iter()
        .map(|info| {
            let held = info.held.as_ref().unwrap();
            let unknown = held.holder.contains("other credentials");
            (info.name.as_str(), unknown, held.token)
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("a secret", true, None),
            ("b open", false, Some(open.token())),
            ("c mixed", true, Some(mixed.token())),
        ]
    );
    let info = plain.inspect("a secret").await.unwrap();
    assert_eq!(info.waiters, Some(0));
    assert!(info.held.is_some());
    // A client that may not enter a queue gets an error. In the mixed queue it may wait behind
    // nodes that it may not read.
    let refused = plain.lock("a secret").try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AccessDenied);
    assert!(refused.to_string().contains("a secret"), "{refused}");
    let attempt = plain.lock("c mixed").try_acquire().await.unwrap();
    let Attempt::Busy(Some(holder)) = attempt else {
        panic!("{attempt:?}");
    };
    assert_eq!(holder.token, Some(mixed.token()));
    release_cleanly(secret).await;
    let info = plain.inspect("a secret").await.unwrap();
    assert!(info.held.is_none(), "{info:?}");
    // A waiter in the mixed queue goes on waiting when a contender behind it gives up, which
    // changes the queue.
    let (last, behind) = (mixed.token(), enter_queue(&plain, "c mixed").await);
    let next = tokio::spawn(known.lock("c mixed").wait(SOON).acquire());
    let waiting = async |many: u32| {
        eventually("the contender is in the queue", async || {
            (count_waiters(&known, "c mixed").await == many).then_some(())
        })
        .await;
    };
    waiting(2).await;
    next.abort();
    waiting(1).await;
    assert!(!behind.is_finished() && mixed.is_valid());
    release_cleanly(mixed).await;
    let (next, _) = within("the waiter gets the lock", behind).await.unwrap();
    assert!(next.token() > last);
    release_cleanly(next).await;
    release_cleanly(open).await;
}

/// A session goes on while the password in its file changes, and soon shows both passwords. A
/// session that is opened later shows the new one alone. An administrator gives both the rights on
/// the nodes that exist.
#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_a_digest_changes() {
    let server = ZooKeeper::start_with(&open_to_all(&[])).unwrap();
    let proxy = FaultProxy::start(server.address(0)).await.unwrap();
    let password = Arc::new(Mutex::new("one"));
    let file = Arc::clone(&password);
    let address = proxy.address().to_string();
    let mut rotating = config_from_url(&address, Some("app:not-used"), &[]);
    rotating.provider = Some(SharedProvider::new(move || {
        let password = *file.lock();
        async move { Ok(Credentials::new(password)) }
    }));
    let ours = connect(rotating.clone()).await;
    let held = hold(&ours, "held").await;

    *password.lock() = "two";
    let administrator = raw_client(&server.servers()).await;
    for password in ["app:one", "app:two"] {
        let shown = administrator.auth("digest", password.as_bytes());
        shown.await.unwrap();
    }
    let mut paths = vec!["/team/app".to_owned()];
    while let Some(path) = paths.pop() {
        // The servers put all credentials that this client has shown in place of `auth`.
        let both = [zk::Acl::new(zk::Permission::ALL, zk::AuthId::authed())];
        administrator.set_acl(&path, &both, None).await.unwrap();
        let children = administrator.list_children(&path).await.unwrap();
        paths.extend(children.iter().map(|child| format!("{path}/{child}")));
    }
    for _ in 0..3 {
        proxy.reset();
        eventually("locks are taken and freed", async || {
            let guard = ours.lock("free").wait(SOON).acquire().await.ok()?;
            guard.release().await.is_clean().then_some(())
        })
        .await;
        assert!(held.is_valid());
    }
    // The new password alone can wait for this lock, whose nodes are made after the change.
    let later = hold(&ours, "later").await;
    let theirs = connect(rotating).await;
    for guard in [later, held] {
        let name = guard.name().to_string();
        let waiting = enter_queue(&theirs, &name).await;
        release_cleanly(guard).await;
        release_cleanly(waiting.await.unwrap().0).await;
    }
    // A session that is lost is followed by one with the new password.
    let held = hold(&ours, "held").await;
    proxy.refuse();
    within("the loss is reported", held.lost()).await;
    proxy.pass();
    eventually("a new session takes locks", async || {
        let guard = ours.lock("free").wait(SOON).acquire().await.ok()?;
        guard.release().await.is_clean().then_some(())
    })
    .await;
}

#[cfg(feature = "sasl")]
#[tokio::test(flavor = "multi_thread")]
async fn sasl_users_are_admitted_and_others_are_refused() {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let entry = format!("Server {{ {module} required user_app=\"s3cret\"; }};");
    let mut setup = open_to_all(&[
        "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth=true",
    ]);
    setup.files = vec![("logins.conf", entry)];
    setup.java = vec!["-Djava.security.auth.login.config=logins.conf".into()];
    let server = ZooKeeper::start_with(&setup).unwrap();
    let sasl = [("sasl", "digest-md5".to_owned())];
    let ours = connect(config_from_url(
        &server.servers(),
        Some("app:s3cret"),
        &sasl,
    ))
    .await;
    let guard = hold(&ours, "a").await;
    for user in [Some("app:pass w0rd"), Some("nobody:s3cret")] {
        let error = open_refused(config_from_url(&server.servers(), user, &sasl)).await;
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    }
    let error = open_refused(config_from_url(&server.servers(), None, &[])).await;
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    release_cleanly(guard).await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_speaks_tls() {
    let pki = distlock_harness::Pki::new().unwrap();
    let read = |name: &str| std::fs::read_to_string(pki.path(name)).unwrap();
    let port = free_port().unwrap();
    let mut setup = open_to_all(&[
        &format!("secureClientPort={port}"),
        "secureClientPortAddress=127.0.0.1",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location=identity.pem",
        "ssl.trustStore.location=trusted.pem",
        "ssl.clientAuth=need",
    ]);
    setup.files = vec![
        ("identity.pem", read("server.key") + &read("server.crt")),
        ("trusted.pem", read("ca.crt")),
    ];
    let _server = ZooKeeper::start_with(&setup).unwrap();
    let address = format!("127.0.0.1:{port}");
    let file = |name: &str| pki.path(name).display().to_string();
    let ca = ("tls_ca", file("ca.crt"));
    let ours = [
        ("tls_cert", file("client.crt")),
        ("tls_key", file("client.key")),
    ];
    let all = [std::slice::from_ref(&ca), &ours[..]].concat();
    let locker = connect(config_from_url(&address, Some("app:secret"), &all)).await;
    release_cleanly(hold(&locker, "a").await).await;
    let health = locker.health().await.unwrap();
    let found = health.findings.iter().find(|it| it.check == "password");
    assert!(found.is_some_and(|it| it.detail.contains("through TLS")));
    // Three clients are refused: without a client certificate, with another authority, without TLS.
    let other = distlock_harness::Pki::new().unwrap();
    let unknown_ca = ("tls_ca", other.path("ca.crt").display().to_string());
    for options in [vec![ca], [&[unknown_ca], &ours[..]].concat(), Vec::new()] {
        let error = open_refused(config_from_url(&address, None, &options)).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}
