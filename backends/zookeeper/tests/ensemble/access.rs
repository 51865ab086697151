//! Who may connect, who may touch what, and what is said when there is no session to be had.

use std::{net::TcpListener, sync::Arc, time::Duration};

use distlock_core::{Attempt, Error, ErrorKind, Locker, SystemClock};
use distlock_harness::{
    free_port,
    servers::zookeeper::{Setup, ZooKeeper},
};
use distlock_zookeeper::{ZooKeeper as Backend, ZooKeeperConfig};
use zookeeper_client as zk;

use crate::rig::{
    SOON, config, container, contenders, eventually, give_back, hold, line_up, now, stranger,
    waiters, within,
};

const PASSWORD: &str = "pa:ss w0rd";

/// What a URL says, with short sessions.
fn url(servers: &str, user: Option<&str>, options: &[(&str, String)]) -> ZooKeeperConfig {
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

/// Opens what cannot be opened.
pub(crate) async fn refused(mut config: ZooKeeperConfig) -> Error {
    config.connect_timeout = Duration::from_secs(2);
    let start = now();
    let opened = Backend::open(config, Arc::new(SystemClock)).await;
    let took = now().since(start);
    // A second after the limit, and one more for a busy machine.
    assert!(took < Duration::from_secs(4), "{took:?}");
    let error = opened.map(drop).unwrap_err();
    assert!(
        !format!("{error:?} {error}").contains("ss w0rd"),
        "{error:?}"
    );
    error
}

/// One server whose nodes everybody may use: what is tested is who may.
fn open_to_all(settings: &[&str]) -> Setup {
    Setup {
        open: true,
        ..alone(settings)
    }
}

pub(crate) fn alone(settings: &[&str]) -> Setup {
    Setup {
        servers: 1,
        settings: settings.iter().map(|&line| line.to_owned()).collect(),
        ..Setup::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_session_the_reason_is_said_in_time() {
    let closed = format!("127.0.0.1:{}", free_port().unwrap());
    let error = refused(config(&closed)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("refused"), "{error}");

    let error = refused(config("no-such-host.invalid:2181")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    // It accepts connections, and then nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = refused(config(&mute.local_addr().unwrap().to_string())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    for root in ["/", "/zookeeper", "/zookeeper/quota"] {
        let mut config = config(&closed);
        config.root = root.into();
        let error = refused(config).await;
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
    give_back(hold(&locker, "a").await).await;
    for at in [1, 2] {
        ensemble.kill(at);
    }
    // Who had a session waits for another one, no longer than for an answer.
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
    // And as long again for a busy machine.
    assert!(took < for_an_answer * 2, "{took:?}");
    // The last server answers nobody, then it serves reads.
    let last = ensemble.server(0);
    let error = refused(config(&ensemble.servers())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    eventually("it serves reads only", async || {
        let mode = ensemble.ask(0, "srvr").ok()?;
        mode.contains("Mode: read-only").then_some(())
    })
    .await;
    let error = refused(config(&last)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("reads only"), "{error}");
    for at in [1, 2] {
        ensemble.restart(at).unwrap();
    }
    eventually("served again", async || {
        let guard = locker.lock("a").acquire().await.ok()?;
        guard.release().await.is_clean().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_creator_may_touch_a_lock() {
    let server = ZooKeeper::start_with(&open_to_all(&[])).unwrap();
    let user = format!("app:{}", PASSWORD.replace(':', "%3A"));
    let ours = connect(url(&server.servers(), Some(&user), &[])).await;
    let same = connect(url(&server.servers(), Some(&user), &[])).await;
    let guard = hold(&ours, "a").await;

    // Somebody else sees that there is something, and no more.
    let client = stranger(&server.servers()).await;
    let parent = container("a").replace("/distlock/", "/team/app/");
    let forbidden = |result: Result<(), zk::Error>| {
        assert!(matches!(result, Err(zk::Error::NoAuth)), "{result:?}");
    };
    forbidden(client.list_children(&parent).await.map(drop));
    forbidden(client.delete(&parent, None).await);
    forbidden(client.delete("/team/app/locks", None).await);
    for user in [None, Some("app:wrong"), Some("other:secret")] {
        let error = refused(url(&server.servers(), user, &[])).await;
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    }

    // Who shows the same credentials is in the same queue.
    let holder = same.inspect("a").await.unwrap().held.unwrap();
    assert_eq!(holder.token, Some(guard.token()));
    let health = same.health().await.unwrap();
    assert!(!format!("{health:?}").contains("ss w0rd"));
    give_back(guard).await;
    give_back(hold(&same, "a").await).await;

    // Another root on the same servers is another world.
    let elsewhere = Backend::open(config(&server.servers()), Arc::new(SystemClock)).await;
    let elsewhere = Locker::new(elsewhere.unwrap().lock());
    let (here, there) = (hold(&same, "a").await, hold(&elsewhere, "a").await);
    assert_eq!(contenders(&client, "a").await.len(), 1);
    give_back(here).await;
    give_back(there).await;
}

/// Some clients of a root show credentials and others do not, which nobody should do.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_made_with_credentials_is_seen_and_hides_nothing_else() {
    let server = ZooKeeper::start_with(&open_to_all(&[])).unwrap();
    // Without credentials first: so everybody may use the root.
    let plain = connect(url(&server.servers(), None, &[])).await;
    let open = hold(&plain, "b open").await;
    let known = connect(url(&server.servers(), Some("app:secret"), &[])).await;
    let secret = hold(&known, "a secret").await;
    // A node of theirs among those that everybody may see.
    let first = hold(&plain, "c mixed").await;
    let waiting = line_up(&known, "c mixed").await;
    let queue = plain.inspect("c mixed").await.unwrap().queue;
    assert_eq!(queue.len(), 1);
    assert!(queue[0].holder.contains("other credentials"), "{queue:?}");
    give_back(first).await;
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
    // Whoever may not enter a queue is told so; whoever may waits behind them.
    let refused = plain.lock("a secret").try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AccessDenied);
    assert!(refused.to_string().contains("a secret"), "{refused}");
    let attempt = plain.lock("c mixed").try_acquire().await.unwrap();
    let Attempt::Busy(Some(holder)) = attempt else {
        panic!("{attempt:?}");
    };
    assert_eq!(holder.token, Some(mixed.token()));
    give_back(secret).await;
    let info = plain.inspect("a secret").await.unwrap();
    assert!(info.held.is_none(), "{info:?}");
    // Also when there are others behind it, and one of them gives up.
    let (last, behind) = (mixed.token(), line_up(&plain, "c mixed").await);
    let next = tokio::spawn(known.lock("c mixed").wait(SOON).acquire());
    let waiting = async |many: u32| {
        eventually("in the queue", async || {
            (waiters(&known, "c mixed").await == many).then_some(())
        })
        .await;
    };
    waiting(2).await;
    next.abort();
    waiting(1).await;
    assert!(!behind.is_finished() && mixed.is_valid());
    give_back(mixed).await;
    let (next, _) = within("its turn", behind).await.unwrap();
    assert!(next.token() > last);
    give_back(next).await;
    give_back(open).await;
}

#[cfg(feature = "sasl")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_its_users() {
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
    let ours = connect(url(&server.servers(), Some("app:s3cret"), &sasl)).await;
    let guard = hold(&ours, "a").await;
    for user in [Some("app:pass w0rd"), Some("nobody:s3cret")] {
        let error = refused(url(&server.servers(), user, &sasl)).await;
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    }
    let error = refused(url(&server.servers(), None, &[])).await;
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    give_back(guard).await;
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
    let locker = connect(url(&address, Some("app:secret"), &all)).await;
    give_back(hold(&locker, "a").await).await;
    let health = locker.health().await.unwrap();
    let found = health.findings.iter().find(|it| it.check == "password");
    assert!(found.is_some_and(|it| it.detail.contains("through TLS")));
    // Without a certificate of ours, with another authority, and without TLS.
    let other = distlock_harness::Pki::new().unwrap();
    let stranger = ("tls_ca", other.path("ca.crt").display().to_string());
    for options in [vec![ca], [&[stranger], &ours[..]].concat(), Vec::new()] {
        let error = refused(url(&address, None, &options)).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}
