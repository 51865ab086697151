//! A URL with several servers: the primary is used, and after a failover the other server.

use std::{net::SocketAddr, time::Instant};

use distlock_core::{ErrorKind, Verdict};
use distlock_harness::{
    eventually_async,
    servers::mysql::{MySqlServer, Product},
};
use distlock_sql::ServerConfig;

use crate::{
    locker, mysql, on_both,
    servers::{LONG, SOON, Silent, hold, within},
    start,
};

on_both! {
    after_a_failover_the_locks_go_on_at_the_other_server =>
        after_a_failover_the_locks_go_on_at_the_other_server;
    a_primary_that_was_set_aside_is_left => a_primary_that_was_set_aside_is_left;
    the_doctor_reports_what_a_failover_costs => the_doctor_reports_what_a_failover_costs;
    a_silent_server_does_not_use_up_the_time => a_silent_server_does_not_use_up_the_time;
}

/// The URL of `server`, with another server before it.
fn url_with(first: SocketAddr, server: &MySqlServer) -> String {
    let its = server.address().to_string();
    let both = format!("{first},{its}");
    server.url().replace(&its, &both)
}

/// A primary with one lock, a read-only copy of it, and a URL that names the copy first. The user
/// of the URL may not write to a read-only server.
async fn primary_and_copy(product: Product) -> (MySqlServer, MySqlServer, String) {
    let mut primary = start(product);
    let before = locker(&primary.url()).await;
    let kept = hold(&before, "made", LONG).await;
    assert!(kept.release().await.is_clean());
    primary
        .sql(&format!(
            "CREATE USER plain@'%' IDENTIFIED BY '{}'; GRANT ALL ON distlock.* TO plain@'%'",
            primary.password()
        ))
        .unwrap();
    let copy = primary.crash_and_copy().unwrap();
    copy.sql("SET GLOBAL read_only = 1").unwrap();
    for server in [&primary, &copy] {
        // MySQL takes the password in clear only from a user who has logged in before.
        server.url_as("plain").unwrap();
    }
    let url = url_with(copy.address(), &primary).replace("://root:", "://plain:");
    (primary, copy, url)
}

async fn after_a_failover_the_locks_go_on_at_the_other_server(product: Product) {
    let (mut primary, copy, url) = primary_and_copy(product).await;
    let locker = locker(&url).await;
    let guard = within(SOON, "granted", hold(&locker, "a", LONG)).await;
    let held = "SELECT count(*) FROM distributed_lock WHERE lock_name = 'a'";
    assert_eq!(primary.sql(held).unwrap(), "1");
    primary.kill();
    copy.sql("SET GLOBAL read_only = 0").unwrap();
    let other = eventually_async("served by the other server", SOON, || async {
        locker.lock("b").ttl(LONG).acquire().await.ok()
    });
    assert!(other.await.unwrap().release().await.is_clean());
    // The copy never had this lock.
    assert!(!guard.release().await.is_clean());
}

/// An administrator makes the primary read-only while its connections are open. They are left.
async fn a_primary_that_was_set_aside_is_left(product: Product) {
    let (primary, copy, url) = primary_and_copy(product).await;
    let locker = locker(&url).await;
    let guard = hold(&locker, "a", LONG).await;
    assert!(guard.release().await.is_clean());
    primary.sql("SET GLOBAL read_only = 1").unwrap();
    copy.sql("SET GLOBAL read_only = 0").unwrap();
    let other = eventually_async("served by the other server", SOON, || async {
        locker.lock("b").ttl(LONG).acquire().await.ok()
    })
    .await
    .unwrap();
    let held = "SELECT count(*) FROM distributed_lock WHERE lock_name = 'b'";
    assert_eq!(copy.sql(held).unwrap(), "1");
    assert_eq!(primary.sql(held).unwrap(), "0");
    assert!(other.release().await.is_clean());
}

async fn the_doctor_reports_what_a_failover_costs(product: Product) {
    let (primary, copy, url) = primary_and_copy(product).await;
    let locker = locker(&url).await;
    let finding = async |check: &str| {
        let findings = locker.health().await.unwrap().findings;
        let found = findings.into_iter().find(|it| it.check == check);
        found.map(|it| (it.verdict, it.detail)).unwrap()
    };
    let (verdict, detail) = finding("servers").await;
    assert_eq!(verdict, Verdict::Pass, "{detail}");
    assert!(
        detail.contains(&format!("{} takes writes", primary.address())),
        "{detail}"
    );
    assert!(
        detail.contains(&format!("{} can take over", copy.address())),
        "{detail}"
    );
    let (verdict, detail) = finding("replication").await;
    assert_eq!(verdict, Verdict::Fail, "{detail}");
    assert!(detail.starts_with("asynchronous: "), "{detail}");
    copy.sql("SET GLOBAL read_only = 0").unwrap();
    let (verdict, detail) = finding("servers").await;
    assert_eq!(verdict, Verdict::Fail, "{detail}");
    drop(copy);
    let (verdict, detail) = finding("servers").await;
    assert_eq!(verdict, Verdict::Warn, "{detail}");
}

async fn a_silent_server_does_not_use_up_the_time(product: Product) {
    let server = start(product);
    let silent = Silent::listen();
    let url = url_with(silent.address(), &server);
    let limit = ServerConfig::from_url(&url).unwrap().connect_timeout;
    let started = Instant::now();
    let locker = locker(&url).await;
    let took = started.elapsed();
    assert!(took < limit, "{took:?}");
    let guard = hold(&locker, "a", LONG).await;
    assert!(guard.release().await.is_clean());
    // An error names each server.
    server.sql("SET GLOBAL read_only = 1").unwrap();
    let error = mysql(&format!("{url}&connect_timeout=2s"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = error.to_string();
    let (first, second) = (silent.address(), server.address());
    assert!(
        said.contains(&format!("{first}: no answer in time")),
        "{said}"
    );
    assert!(
        said.contains(&format!("{second}: the server is read-only")),
        "{said}"
    );
}
