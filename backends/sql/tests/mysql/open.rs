//! Opens stores whose tables exist, are missing, or were changed by hand.

use std::{sync::Arc, time::Duration};

use distlock_core::{ErrorKind, Finding, Locker, SystemClock, Verdict};
use distlock_harness::servers::mysql::{MySqlServer, Product};
use distlock_sql::{MySql, ServerConfig};
use futures_util::future::join_all;

use crate::{
    common::request,
    locker, mysql, on_both,
    servers::{LONG, SOON, WRONG_CLOCKS, hold},
    start,
};

on_both! {
    absent_tables_are_created_and_never_changed => absent_tables_are_created_and_never_changed;
    a_problem_of_opening_is_named => a_problem_of_opening_is_named;
    dropped_tables_are_not_created_again => dropped_tables_are_not_created_again;
    partly_created_tables_are_completed => partly_created_tables_are_completed;
    a_missing_table_is_made_by_the_named_command => a_missing_table_is_made_by_the_named_command;
    the_doctor_reports_a_changed_table_or_setting => the_doctor_reports_a_changed_table_or_setting;
    the_doctor_reports_each_change_of_a_table => the_doctor_reports_each_change_of_a_table;
    the_doctor_fails_unsynced_writes => the_doctor_fails_unsynced_writes;
    the_doctor_reports_a_clock_difference => the_doctor_reports_a_clock_difference;
    the_doctor_reports_missing_rights => the_doctor_reports_missing_rights;
    required_tls_is_used_or_opening_fails => required_tls_is_used_or_opening_fails;
}

async fn absent_tables_are_created_and_never_changed(product: Product) {
    let server = start(product);
    let url = server.url();
    let config = ServerConfig::from_url(&url).unwrap();
    let error = mysql(&format!("{url}&migrate=false")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(
        error
            .to_string()
            .contains("run `distlock migrate --backend"),
        "{error}"
    );
    assert_eq!(server.sql("SHOW TABLES").unwrap(), "");
    let migrate = || MySql::migrate(config.clone(), Arc::new(SystemClock));
    let applied = migrate().await.unwrap();
    assert_eq!((applied.version, applied.applied.len()), (Some(1), 1));
    let again = migrate().await.unwrap();
    assert_eq!((again.version, again.applied.len()), (Some(1), 0));

    // Several stores are opened at once, and the tables are created only once.
    let new = format!("{url}&table_prefix=new_");
    for opened in join_all((0..4).map(|_| mysql(&new))).await {
        opened.unwrap();
    }

    // Different prefixes separate the stores in one database. Each store has its own epoch.
    let (plain, prefixed) = (
        locker(&url).await,
        locker(&format!("{url}&table_prefix=app_")).await,
    );
    let guard = hold(&plain, "a", LONG).await;
    let other = hold(&prefixed, "a", LONG).await;
    assert_ne!(guard.epoch(), other.epoch());
    let held = "SELECT COUNT(*) FROM app_distributed_lock WHERE HEX(holder_id) <> REPEAT('0', 32)";
    assert_eq!(server.sql(held).unwrap(), "1");

    // A table of the right version without a column: the error names the problem and the remedy.
    server
        .sql("ALTER TABLE distributed_lock DROP COLUMN nonce")
        .unwrap();
    let error = mysql(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let drop_them = "run `DROP TABLE distributed_lock, distributed_queue, distributed_record, \
        distributed_meta` on the database";
    let then = format!(
        "{drop_them} and then run `distlock migrate --backend 'mysql://root@{}",
        server.address()
    );
    assert!(error.to_string().contains(&then), "{error}");
    let deletes = "deletes the tokens of all locks, and all records";
    assert!(error.to_string().contains(deletes), "{error}");
    let cause = chain(&error);
    assert!(
        cause.contains("distributed_lock.nonce is missing"),
        "{cause}"
    );
    assert!(!cause.contains("distlock doctor"), "{cause}");
    // The command itself reports the same.
    assert_eq!(chain(&migrate().await.unwrap_err()), said(&cause));

    server
        .sql("UPDATE distributed_meta SET schema_version = 99")
        .unwrap();
    let error = mysql(&url).await.unwrap_err();
    assert!(
        error.to_string().contains("made by another version"),
        "{error}"
    );
    let cause = chain(&error);
    assert_eq!(chain(&migrate().await.unwrap_err()), said(&cause));
    server
        .sql("UPDATE distributed_meta SET schema_version = 0")
        .unwrap();
    let error = mysql(&url).await.unwrap_err();
    assert!(error.to_string().contains("version 0"), "{error}");
    server.sql("DROP TABLE distributed_record").unwrap();
    let error = mysql(&url).await.unwrap_err();
    assert!(error.to_string().contains("only some"), "{error}");
}

/// Turns the error text of opening into the error text of migrating.
fn said(opening: &str) -> String {
    opening.replacen("open", "migrate", 1)
}

/// The text of an error and of all its causes.
fn chain(error: &distlock_core::Error) -> String {
    let mut all = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        all = format!("{all}: {cause}");
        source = cause.source();
    }
    all
}

/// The process that created the tables was stopped between two tables. The missing tables are
/// created.
async fn partly_created_tables_are_completed(product: Product) {
    let server = start(product);
    let script = include_str!("../../migrations/mysql/0001_tables.sql");
    let statements: Vec<_> = script.split_inclusive(";\n").collect();
    assert_eq!(statements.len(), 5);
    let finished = (1..statements.len()).map(|done| {
        let prefix = format!("after_{done}_");
        let url = format!("{}&table_prefix={prefix}", server.url());
        let begun = statements[..done].concat();
        server
            .sql(&begun.replace("distributed_", &format!("{prefix}distributed_")))
            .unwrap();
        async move {
            let config = ServerConfig::from_url(&url).unwrap();
            for steps in [1, 0] {
                let migrated = MySql::migrate(config.clone(), Arc::new(SystemClock)).await;
                assert_eq!(migrated.unwrap().applied.len(), steps, "{prefix}");
            }
            let guard = hold(&locker(&url).await, "a", LONG).await;
            assert!(guard.release().await.is_clean());
        }
    });
    join_all(finished).await;
    // A table of another program with the same name is not changed.
    server
        .sql("CREATE TABLE other_distributed_meta (name TEXT)")
        .unwrap();
    let url = format!("{}&table_prefix=other_", server.url());
    let config = ServerConfig::from_url(&url).unwrap();
    let error = MySql::migrate(config, Arc::new(SystemClock)).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(chain(&error).contains("another program's"), "{error}");
    // The error does not name the command, because the command would fail too.
    assert!(!chain(&error).contains("run `distlock"), "{error}");
    let others = server.sql("SHOW TABLES LIKE 'other%'").unwrap();
    assert_eq!(others, "other_distributed_meta");
}

/// For each missing table, the error names the command that creates the table, and this command
/// succeeds.
async fn a_missing_table_is_made_by_the_named_command(product: Product) {
    let server = start(product);
    let url = server.url();
    mysql(&url).await.unwrap();
    let at = format!("'mysql://root@{}/distlock", server.address());
    let command = format!("run `distlock migrate --backend {at}");
    for table in ["lock", "queue", "record", "meta"] {
        let drop = format!("DROP TABLE distributed_{table}");
        server.sql(&drop).unwrap();
        let error = mysql(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(&command), "{error}");
        let config = ServerConfig::from_url(&url).unwrap();
        let migrated = MySql::migrate(config, Arc::new(SystemClock)).await;
        migrated.unwrap();
        let guard = hold(&locker(&url).await, table, LONG).await;
        assert!(guard.release().await.is_clean());
    }
}

/// An open store does not create dropped tables again: in empty tables, a held lock would be
/// granted to a second holder.
async fn dropped_tables_are_not_created_again(product: Product) {
    let server = start(product);
    let mysql = mysql(&server.url()).await.unwrap();
    let lock = mysql.lock();
    server
        .sql("DROP TABLE distributed_lock, distributed_queue, distributed_record, distributed_meta")
        .unwrap();
    let error = distlock_harness::eventually_async("told", SOON, || async {
        let told = lock.try_acquire(&request("a", LONG)).await;
        told.err()
            .filter(|it| chain(it).contains("has no tables of distlock any more"))
    });
    assert_eq!(error.await.unwrap().kind(), ErrorKind::InvalidConfig);
    assert_eq!(server.sql("SHOW TABLES").unwrap(), "");
}

async fn a_problem_of_opening_is_named(product: Product) {
    let server = start(product);
    server
        .sql(
            "CREATE USER bob@'127.0.0.1' IDENTIFIED BY 'hunter2'; GRANT ALL ON distlock.* TO \
            bob@'127.0.0.1'",
        )
        .unwrap();
    let at = server.address();
    for (url, kind) in [
        (
            format!("mysql://bob:canary@{at}/distlock?ssl-mode=DISABLED"),
            ErrorKind::AccessDenied,
        ),
        (
            format!("mysql://nobody@{at}/distlock?ssl-mode=DISABLED"),
            ErrorKind::AccessDenied,
        ),
        (server.url_of("absent"), ErrorKind::InvalidConfig),
        (
            "mysql://root:canary@127.0.0.1:1/distlock".to_owned(),
            ErrorKind::Unavailable,
        ),
    ] {
        let error = mysql(&url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(
            !format!("{error} {error:?}").contains("canary"),
            "{error:?}"
        );
    }
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "mysql://root@{}/distlock?connect_timeout=300ms",
        silent.local_addr().unwrap()
    );
    let error = mysql(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // The error names the option `connect_timeout`, not the time limit of a single step.
    let says = "did not answer in time (option `connect_timeout`)";
    assert!(error.to_string().contains(says), "{error}");
}

async fn the_doctor_reports_a_changed_table_or_setting(product: Product) {
    let server = start(product);
    let locker = locker(&server.url()).await;
    let verdict = async |check| finding(&locker, check).await;
    let flush = "innodb_flush_log_at_trx_commit";
    for check in ["tables", "clock", "read_only", "rows", flush] {
        let found = verdict(check).await;
        assert_eq!(found.verdict, Verdict::Pass, "{found:?}");
    }
    server.sql(&format!("SET GLOBAL {flush} = 2")).unwrap();
    assert_eq!(verdict(flush).await.verdict, Verdict::Fail);
    server
        .sql(
            "ALTER TABLE distributed_lock MODIFY lock_name VARCHAR(64) CHARACTER SET utf8mb4 NOT \
            NULL",
        )
        .unwrap();
    let found = verdict("tables").await;
    assert_eq!(found.verdict, Verdict::Fail, "{found:?}");
    assert!(found.detail.contains("varchar(64)"), "{found:?}");
    // A value that does not fit its column is refused, and is never shortened.
    let long = "n".repeat(200);
    let refused = locker.lock(&*long).wait(Duration::ZERO).acquire().await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

/// The doctor reports each change.
async fn the_doctor_reports_each_change_of_a_table(product: Product) {
    let server = start(product);
    let locker = locker(&server.url()).await;
    for (change, says) in [
        (
            "distributed_record MODIFY record_key VARBINARY(64) NOT NULL",
            "distributed_record.record_key is varbinary(64) not null instead of varbinary(512) \
                not null",
        ),
        (
            "distributed_lock DROP PRIMARY KEY",
            "the unique key of distributed_lock is missing instead of lock_name",
        ),
    ] {
        server.sql(&format!("ALTER TABLE {change}")).unwrap();
        let found = finding(&locker, "tables").await;
        assert_eq!(found.verdict, Verdict::Fail, "{found:?}");
        assert!(found.detail.contains(says), "{found:?}");
    }
}

async fn the_doctor_fails_unsynced_writes(product: Product) {
    let server = MySqlServer::with(
        product,
        &[
            "log-bin=log",
            "server-id=1",
            "sync-binlog=0",
            "innodb-doublewrite=OFF",
        ],
    );
    let server = server.unwrap();
    let locker = locker(&server.url()).await;
    let found = finding(&locker, "innodb_doublewrite").await;
    assert_eq!(found.verdict, Verdict::Fail, "{found:?}");
    let found = finding(&locker, "sync_binlog").await;
    assert_eq!(found.verdict, Verdict::Fail, "{found:?}");
    server.sql("SET GLOBAL sync_binlog = 1").unwrap();
    let found = finding(&locker, "sync_binlog").await;
    assert_eq!(found.verdict, Verdict::Pass, "{found:?}");
}

async fn the_doctor_reports_a_clock_difference(product: Product) {
    let server = start(product);
    let config = ServerConfig::from_url(&server.url()).unwrap();
    for clock in WRONG_CLOCKS {
        let mysql = MySql::open(config.clone(), Arc::new(clock)).await.unwrap();
        let found = finding(&Locker::new(mysql.lock()), "clock").await;
        assert_eq!(found.verdict, Verdict::Warn, "{found:?}");
    }
}

async fn finding(locker: &Locker, check: &str) -> Finding {
    let health = locker.health().await.unwrap();
    let found = health.findings.iter().find(|it| it.check == check).cloned();
    found.unwrap_or_else(|| panic!("{check}: {health:?}"))
}

/// The doctor reports a user's missing rights before the first operation fails.
async fn the_doctor_reports_missing_rights(product: Product) {
    let server = start(product);
    locker(&server.url()).await;
    let all = "SELECT, INSERT, UPDATE, DELETE";
    let grants = [
        (all, "distributed_lock"),
        (all, "distributed_queue"),
        (all, "distributed_record"),
        ("SELECT, UPDATE", "distributed_meta"),
    ]
    .map(|(rights, table)| format!("; GRANT {rights} ON distlock.{table} TO poor@'127.0.0.1'"));
    let user = format!(
        "CREATE USER poor@'127.0.0.1' IDENTIFIED BY '{}'{}",
        server.password(),
        grants.concat()
    );
    server.sql(&user).unwrap();
    let url = server.url_as("poor").unwrap();
    let rights = async || {
        // A session may keep the rights from its begin, so that each check opens a new store.
        let health = locker(&url).await.health().await.unwrap();
        let found = health.findings.iter().find(|it| it.check == "rights");
        found.cloned().unwrap_or_else(|| panic!("{health:?}"))
    };
    assert_eq!(rights().await.verdict, Verdict::Pass);
    server
        .sql("REVOKE UPDATE ON distlock.distributed_lock FROM poor@'127.0.0.1'")
        .unwrap();
    let found = rights().await;
    assert_eq!(found.verdict, Verdict::Fail);
    let lacks = "lacks UPDATE ON distributed_lock:";
    assert!(found.detail.contains(lacks), "{found:?}");
}

/// On one node of a Galera cluster, locks work, and the doctor names the promises that a cluster
/// does not keep.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_galera_cluster() {
    let server = MySqlServer::start_galera().unwrap();
    let locker = locker(&server.url()).await;
    let guard = hold(&locker, "a", LONG).await;
    let token = guard.token();
    guard.extend(LONG).await.unwrap();
    assert!(guard.release().await.is_clean());
    let again = hold(&locker, "a", LONG).await;
    assert!(again.token() > token);
    assert!(again.release().await.is_clean());
    let health = locker.health().await.unwrap();
    let found = health.findings.iter().find(|it| it.check == "wsrep_on");
    let found = found.unwrap_or_else(|| panic!("{health:?}"));
    assert_eq!(found.verdict, Verdict::Warn);
    assert!(found.detail.contains("one node"), "{found:?}");
}

/// If the options demand TLS, the connection has TLS or fails.
async fn required_tls_is_used_or_opening_fails(product: Product) {
    let server = MySqlServer::start(product).unwrap();
    let at = server.address();
    let tls = format!(
        "mysql://{}/distlock?ssl-mode=REQUIRED",
        server.account_at(at)
    );
    if !cfg!(feature = "tls") {
        let error = mysql(&tls).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    match product {
        // MariaDB offers no TLS by default.
        Product::MariaDb => {
            let error = mysql(&tls).await;
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        // MySQL creates its own authority during its installation, and accepts passwords only over
        // TLS.
        Product::MySql => {
            server
                .sql(
                    "CREATE USER bob@'127.0.0.1' IDENTIFIED BY 'hunter2' REQUIRE SSL; GRANT ALL \
                    ON distlock.* TO bob@'127.0.0.1'",
                )
                .unwrap();
            let authority = server.data().join("ca.pem");
            let url = |options: &str| format!("mysql://bob:hunter2@{at}/distlock?{options}");
            let verified = url(&format!(
                "ssl-mode=VERIFY_CA&ssl-ca={}",
                authority.display()
            ));
            let guard = hold(&locker(&verified).await, "a", LONG).await;
            assert!(guard.release().await.is_clean());
            let error = mysql(&url("ssl-mode=DISABLED")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
            // The certificate is from an authority that this machine does not trust.
            let error = mysql(&url("ssl-mode=VERIFY_IDENTITY")).await.unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
