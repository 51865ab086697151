//! A URL with several servers: the primary is used, and after a failover the other server.

use std::time::Instant;

use distlock_core::{ErrorKind, Health, Verdict};
use distlock_harness::eventually_async;

use super::*;
use crate::servers::Silent;

/// A primary, its standby, and a URL that names the standby first.
fn primary_and_standby() -> (PostgresServer, PostgresServer, String) {
    let primary = PostgresServer::with(&["fsync=on"]).unwrap();
    let standby = primary.start_standby().unwrap();
    let its = primary.address().to_string();
    let url = primary
        .url()
        .replace(&its, &format!("{},{its}", standby.address()));
    (primary, standby, url)
}

fn finding<'a>(health: &'a Health, check: &str) -> (Verdict, &'a str) {
    let found = health.findings.iter().find(|it| it.check == check).unwrap();
    (found.verdict, &found.detail)
}

/// Waits until the standby has everything that the primary has.
async fn caught_up(primary: &PostgresServer, standby: &PostgresServer) {
    let end = primary.sql("SELECT pg_current_wal_lsn()").unwrap();
    let behind = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
    eventually_async("the standby catches up", SOON, || async {
        (standby.sql(&behind).unwrap() == "t").then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_the_locks_go_on_at_the_other_server() {
    let (mut primary, standby, url) = primary_and_standby();
    let locker = locker(&url).await;
    let kept = hold(&locker, "kept", LONG).await;
    caught_up(&primary, &standby).await;
    primary.kill();
    standby.promote().unwrap();
    eventually_async("renewed at the new primary", SOON, || async {
        kept.extend(LONG).await.ok()
    })
    .await
    .unwrap();
    assert!(kept.is_valid());

    // The old primary comes back and still takes writes. The store stays at the new one.
    primary.restart().unwrap();
    for name in ["a", "b"] {
        let guard = within(SOON, name, hold(&locker, name, LONG)).await;
        let held = format!("SELECT count(*) FROM distributed_lock WHERE lock_name = '{name}'");
        assert_eq!(standby.sql(&held).unwrap(), "1");
        assert_eq!(primary.sql(&held).unwrap(), "0");
        assert!(guard.release().await.is_clean());
    }
    let health = locker.health().await.unwrap();
    let (verdict, detail) = finding(&health, "servers");
    assert_eq!(verdict, Verdict::Fail, "{detail}");
    assert!(detail.contains("take writes"), "{detail}");
    assert!(kept.release().await.is_clean());
}

/// An administrator makes the primary read-only while its connections are open. They are left.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_set_aside_is_left() {
    let (primary, standby, url) = primary_and_standby();
    let locker = locker(&url).await;
    let kept = hold(&locker, "kept", LONG).await;
    caught_up(&primary, &standby).await;
    primary
        .sql("ALTER SYSTEM SET default_transaction_read_only = on")
        .unwrap();
    primary.sql("SELECT pg_reload_conf()").unwrap();
    standby.promote().unwrap();
    eventually_async("renewed at the new primary", SOON, || async {
        kept.extend(LONG).await.ok()
    })
    .await
    .unwrap();
    assert!(kept.is_valid());
    assert!(kept.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_reports_what_a_failover_costs() {
    let (primary, standby, url) = primary_and_standby();
    let health = locker(&url).await.health().await.unwrap();
    let (verdict, detail) = finding(&health, "servers");
    assert_eq!(verdict, Verdict::Pass, "{detail}");
    assert!(
        detail.contains(&format!("{} takes writes", primary.address())),
        "{detail}"
    );
    assert!(
        detail.contains(&format!("{} can take over", standby.address())),
        "{detail}"
    );
    let (verdict, detail) = finding(&health, "replication");
    assert_eq!(verdict, Verdict::Fail, "{detail}");
    assert!(detail.starts_with("asynchronous: "), "{detail}");

    primary
        .sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        .unwrap();
    primary.sql("SELECT pg_reload_conf()").unwrap();
    let synchronous = eventually_async("the setting is read", SOON, || async {
        let health = locker(&url).await.health().await.unwrap();
        let (verdict, detail) = finding(&health, "replication");
        (verdict == Verdict::Pass).then(|| detail.to_owned())
    });
    assert!(synchronous.await.unwrap().starts_with("synchronous: "));

    // With one server, no failover leads to another one by this URL.
    let alone = locker(&primary.url()).await.health().await.unwrap();
    let several = ["servers", "replication"];
    assert!(alone.findings.iter().all(|it| !several.contains(&it.check)));
    drop(standby);
    let health = locker(&url).await.health().await.unwrap();
    let (verdict, detail) = finding(&health, "servers");
    assert_eq!(verdict, Verdict::Warn, "{detail}");
    assert!(detail.contains("cannot take over"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_does_not_use_up_the_time() {
    let server = PostgresServer::start().unwrap();
    let silent = Silent::listen();
    let its = server.address().to_string();
    let both = format!("{},{its}", silent.address());
    let url = server.url().replace(&its, &both);
    let config = config(&url);
    let started = Instant::now();
    let locker = locker(&url).await;
    let took = started.elapsed();
    assert!(took < config.connect_timeout, "{took:?}");
    let guard = hold(&locker, "a", LONG).await;
    assert!(guard.release().await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_names_each_server() {
    let standby = PostgresServer::start().unwrap().start_standby().unwrap();
    let silent = Silent::listen();
    let its = standby.address().to_string();
    let both = format!("{},{its}", silent.address());
    let url = standby.url().replace(&its, &both);
    let error = try_open(&format!("{url}?connect_timeout=2s"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = error.to_string();
    let (first, second) = (silent.address(), standby.address());
    assert!(
        said.contains(&format!("{first}: no answer in time")),
        "{said}"
    );
    assert!(
        said.contains(&format!("{second}: the server is a standby")),
        "{said}"
    );
}
