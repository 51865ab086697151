//! Opening a store creates missing tables, and reports a problem with its remedy.

use distlock_core::{Attempt, Deleted, ErrorKind, Expect, RecordKey, Verdict, Written};
use distlock_harness::eventually_async;

use super::{servers::WRONG_CLOCKS, *};

async fn refused(url: &str, kind: ErrorKind, says: &str) {
    let error = try_open(url).await.unwrap_err();
    let all = chain(&error);
    assert_eq!(error.kind(), kind, "{url}: {all}");
    assert!(all.contains(says), "{url}: {all}");
    assert!(!all.contains("hunter2"), "{all}");
    // A line number of the server's source code must not appear in the error.
    assert!(!all.contains(" at line "), "{all}");
}

/// The text of an error and of all its causes.
pub(super) fn chain(error: &distlock_core::Error) -> String {
    let mut all = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        all = format!("{all}: {cause}");
        source = cause.source();
    }
    all
}

/// Opening and migrating report the same error.
async fn unusable(url: &str, says: &str) {
    refused(url, ErrorKind::InvalidConfig, says).await;
    let clock = || Arc::new(SystemClock);
    let opened = chain(&try_open(url).await.unwrap_err());
    let error = Postgres::migrate(config(url), clock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert_eq!(chain(&error), opened.replacen("open", "migrate", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_created_where_they_are_absent_and_never_changed() {
    let server = PostgresServer::start().unwrap();
    let url = server.url();
    let clock = || Arc::new(SystemClock);
    let without = format!("{url}?migrate=false");
    refused(
        &without,
        ErrorKind::InvalidConfig,
        "run `distlock migrate --backend postgres://postgres@127.0.0.1",
    )
    .await;

    // Several stores are opened at once, and the tables are created only once.
    let opened = tokio::join!(
        try_open(&url),
        try_open(&url),
        try_open(&url),
        try_open(&url)
    );
    for postgres in [opened.0, opened.1, opened.2, opened.3] {
        postgres.unwrap();
    }
    open(&without).await;
    let again = Postgres::migrate(config(&url), clock()).await.unwrap();
    assert_eq!((again.version, again.applied.len()), (Some(1), 0));

    // A store with another prefix has its own tables.
    let prefixed = open(&format!("{url}?table_prefix=app_")).await;
    take(&*prefixed.lock(), &request("a", LONG)).await;
    take(&*open(&url).await.lock(), &request("a", LONG)).await;
    assert_eq!(
        server
            .sql("SELECT count(*) FROM app_distributed_lock")
            .unwrap(),
        "1"
    );

    server
        .sql("ALTER TABLE distributed_lock DROP COLUMN nonce")
        .unwrap();
    unusable(
        &url,
        "run `DROP TABLE distributed_lock, distributed_queue, distributed_record, \
         distributed_meta` on the database and then run \
         `distlock migrate --backend postgres://postgres@127.0.0.1",
    )
    .await;
    unusable(&url, "deletes the tokens of all locks, and all records").await;
    unusable(&url, "nonce").await;
    let version = |number| format!("UPDATE distributed_meta SET schema_version = {number}");
    server.sql(&version(99)).unwrap();
    unusable(&url, "made by another version").await;
    server.sql(&version(1)).unwrap();
}

/// For each missing table, the error names the command that creates the table, and this command
/// succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_created_by_the_named_command() {
    let server = PostgresServer::start().unwrap();
    let url = server.url();
    open(&url).await;
    // The command in the error shows no password.
    let shown = format!("postgres://postgres@{}/distlock", server.address());
    let command = format!("run `distlock migrate --backend {shown}`");
    for table in ["lock", "queue", "record", "meta"] {
        let drop = format!("DROP TABLE distributed_{table}");
        server.sql(&drop).unwrap();
        refused(&url, ErrorKind::InvalidConfig, &command).await;
        let migrated = Postgres::migrate(config(&url), Arc::new(SystemClock)).await;
        assert_eq!(migrated.unwrap().applied.len(), 1);
        let again = locker(&url).await;
        let guard = hold(&again, table, LONG).await;
        assert!(guard.release().await.is_clean());
    }
    // A table of another program with the same name is not changed.
    server
        .sql("CREATE TABLE other_distributed_meta (name text)")
        .unwrap();
    let other = config(&format!("{url}?table_prefix=other_"));
    let error = Postgres::migrate(other, Arc::new(SystemClock)).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let error = chain(&error);
    assert!(error.contains("another program's"), "{error}");
    // The error does not name the command, because the command would fail too.
    assert!(!error.contains("run `distlock"), "{error}");
    let others = "SELECT count(*) FROM pg_class WHERE relname LIKE 'other%'";
    assert_eq!(server.sql(others).unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_problem_of_opening_is_named() {
    let server = PostgresServer::start().unwrap();
    let url = server.url();
    refused(
        &url.replace("/distlock", "/nothing"),
        ErrorKind::InvalidConfig,
        "no such database",
    )
    .await;
    server
        .sql("CREATE ROLE app LOGIN PASSWORD 'right'; REVOKE CREATE ON SCHEMA public FROM public")
        .unwrap();
    let as_app = |password: &str| server.url_as("app", password);
    refused(
        &as_app("hunter2"),
        ErrorKind::AccessDenied,
        "refused the user or the password",
    )
    .await;
    for says in [
        "this user may not create tables",
        "run `distlock migrate --backend postgres://app@",
    ] {
        refused(&as_app("right"), ErrorKind::AccessDenied, says).await;
    }
    server
        .sql_in(
            "postgres",
            "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
        )
        .unwrap();
    refused(
        &server.url_of("latin"),
        ErrorKind::InvalidConfig,
        "encoding is LATIN1",
    )
    .await;
    let port = distlock_harness::free_port().unwrap();
    refused(
        &format!("postgres://bob:hunter2@127.0.0.1:{port}/d"),
        ErrorKind::Unavailable,
        &format!("127.0.0.1:{port}"),
    )
    .await;
    // The user has no rights on the existing tables.
    open(&url).await;
    refused(
        &as_app("right"),
        ErrorKind::AccessDenied,
        "access was refused",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_reports_missing_rights() {
    let server = PostgresServer::start().unwrap();
    open(&server.url()).await;
    server
        .sql(
            "CREATE ROLE app LOGIN PASSWORD 'right';
             GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_lock, distributed_queue, \
             distributed_record TO app;
             GRANT SELECT, UPDATE (reaped_at) ON distributed_meta TO app",
        )
        .unwrap();
    let postgres = open(&server.url_as("app", "right")).await;
    let rights = async || {
        let health = postgres.lock().health().await.unwrap();
        let found = health.findings.iter().find(|it| it.check == "rights");
        found.cloned().unwrap_or_else(|| panic!("{health:?}"))
    };
    assert_eq!(rights().await.verdict, Verdict::Pass);
    server
        .sql("REVOKE INSERT, DELETE ON distributed_record FROM app")
        .unwrap();
    let found = rights().await;
    assert_eq!(found.verdict, Verdict::Fail);
    let lacks = "lacks DELETE ON distributed_record, INSERT ON distributed_record:";
    assert!(found.detail.contains(lacks), "{found:?}");
    let filtered = async || {
        let findings = postgres.lock().health().await.unwrap().findings;
        let found = findings.into_iter().find(|it| it.check == "row security");
        found.map(|it| (it.verdict, it.detail))
    };
    assert_eq!(filtered().await, None);
    let secure = "ALTER TABLE distributed_lock ENABLE ROW LEVEL SECURITY";
    server.sql(secure).unwrap();
    let (verdict, detail) = filtered().await.expect("a finding");
    assert_eq!(verdict, Verdict::Warn);
    server.sql(detail.split('`').nth(1).unwrap()).unwrap();
    assert_eq!(filtered().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_reports_changed_settings_and_tables() {
    let server = PostgresServer::with(&["fsync=off", "synchronous_commit=off"]).unwrap();
    let postgres = open(&server.url()).await;
    let verdict = |health: &distlock_core::Health, check: &str| {
        let found = health.findings.iter().find(|it| it.check == check);
        found.map(|it| it.verdict)
    };
    let health = postgres.lock().health().await.unwrap();
    assert!(
        health.server.starts_with("PostgreSQL "),
        "{}",
        health.server
    );
    assert_eq!(verdict(&health, "fsync"), Some(Verdict::Fail));
    for fine in [
        "synchronous_commit",
        "writable",
        "clock",
        "session",
        "tables",
        "TLS",
        "rows",
    ] {
        assert_eq!(
            verdict(&health, fine),
            Some(Verdict::Pass),
            "{fine}: {health:?}"
        );
    }
    server
        .sql(
            "ALTER TABLE distributed_lock ALTER COLUMN lock_name TYPE varchar(64) COLLATE \
            \"default\"",
        )
        .unwrap();
    let health = postgres.lock().health().await.unwrap();
    assert_eq!(
        verdict(&health, "tables"),
        Some(Verdict::Fail),
        "{health:?}"
    );
}

/// The doctor reports each change.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_reports_each_change_of_a_table() {
    let server = PostgresServer::with(&["full_page_writes=off"]).unwrap();
    let url = server.url();
    open(&url).await;
    let finding = async |check: &str| {
        // A new store is opened, so that its sessions begin after the change.
        let health = open(&url).await.lock().health().await.unwrap();
        let found = health.findings.iter().find(|it| it.check == check);
        found.cloned().unwrap_or_else(|| panic!("{health:?}"))
    };
    assert_eq!(finding("full_page_writes").await.verdict, Verdict::Fail);
    let read_only = |value| {
        let alter = format!("ALTER DATABASE distlock SET default_transaction_read_only = {value}");
        server.sql_in("postgres", &alter).unwrap();
    };
    read_only("on");
    let found = finding("writable").await;
    assert_eq!(found.verdict, Verdict::Fail);
    let fix = "RESET default_transaction_read_only";
    assert!(found.detail.contains(fix), "{found:?}");
    read_only("off");
    assert_eq!(finding("writable").await.verdict, Verdict::Pass);
    // The tables change while a store is open. Later, opening would refuse such tables.
    let postgres = open(&url).await;
    let alter = "ALTER TABLE distributed_record DROP CONSTRAINT distributed_record_key";
    server.sql(alter).unwrap();
    let health = postgres.lock().health().await.unwrap();
    let found = health.findings.iter().find(|it| it.check == "tables");
    let found = found.unwrap_or_else(|| panic!("{health:?}"));
    assert_eq!(found.verdict, Verdict::Fail);
    let says = "the unique key of distributed_record is missing instead of record_key";
    assert!(found.detail.contains(says), "{found:?}");
}

/// A server that publishes its tables refuses changes of tables without a replica identity. The
/// primary keys of distlock's tables are such identities.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_published_can_be_changed() {
    let server = PostgresServer::with(&["wal_level=logical"]).unwrap();
    let url = server.url();
    server
        .sql("CREATE PUBLICATION all_of_them FOR ALL TABLES")
        .unwrap();
    let postgres = open(&url).await;
    let (lock, held) = (postgres.lock(), request("a", LONG));
    for _ in 0..2 {
        let grant = take(&*lock, &held).await;
        lock.release(&lease(&held, &grant)).await.unwrap();
    }
    published_record(&postgres).await;
    let findings = async || {
        let health = lock.health().await.unwrap();
        let found = health.findings.into_iter();
        found
            .filter(|it| it.check == "publication")
            .collect::<Vec<_>>()
    };
    assert!(findings().await.is_empty());

    // Without a replica identity, the server refuses every change, and the doctor reports the
    // tables.
    for table in ["lock", "record"] {
        let alter = format!("ALTER TABLE distributed_{table} REPLICA IDENTITY NOTHING");
        server.sql(&alter).unwrap();
    }
    let refused = chain(&lock.try_acquire(&held).await.unwrap_err());
    assert!(refused.contains("run `distlock doctor`"), "{refused}");
    assert!(!refused.contains("DROP TABLE"), "{refused}");
    let found = findings().await;
    assert_eq!(found.len(), 2, "{found:?}");
    for found in found {
        assert_eq!(found.verdict, Verdict::Fail);
        let fix = found.detail.split('`').nth(1).unwrap();
        server.sql(fix).unwrap();
    }
    assert!(findings().await.is_empty());
    take(&*lock, &held).await;
    published_record(&postgres).await;
}

/// Writes and deletes one record.
async fn published_record(postgres: &Postgres) {
    let (records, key) = (postgres.records(), RecordKey::new("k").unwrap());
    let Written::Stored(version) = records.put(&key, b"v", Expect::Absent).await.unwrap() else {
        panic!("it was absent")
    };
    let deleted = records.delete(&key, version).await.unwrap();
    assert_eq!(deleted, Deleted::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_reports_a_clock_difference() {
    let server = PostgresServer::start().unwrap();
    for clock in WRONG_CLOCKS {
        let opened = Postgres::open(config(&server.url()), Arc::new(clock)).await;
        let health = opened.unwrap().lock().health().await.unwrap();
        let found = health.findings.iter().find(|it| it.check == "clock");
        assert_eq!(found.unwrap().verdict, Verdict::Warn, "{health:?}");
    }
}

/// The tables are found in any schema of the `search_path`, even if an earlier schema without the
/// tables is created later.
#[tokio::test(flavor = "multi_thread")]
async fn tables_are_found_along_the_search_path() {
    let server = PostgresServer::start().unwrap();
    let holder = open(&server.url()).await;
    let held = request("held", LONG);
    take(&*holder.lock(), &held).await;
    server.sql("CREATE SCHEMA postgres").unwrap();
    let drop_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name \
        = 'distlock'";
    server.sql_in("postgres", drop_all).unwrap();
    let is_held = |opened: Postgres| async move {
        let lock = opened.lock();
        let refused = eventually_async("it answers", SOON, || async {
            lock.try_acquire(&request("held", LONG)).await.ok()
        });
        let refused = refused.await.unwrap();
        assert!(matches!(refused, Attempt::Busy(_)), "{refused:?}");
    };
    is_held(open(&server.url()).await).await;
    is_held(holder.clone()).await;
    let made = "SELECT count(*) FROM pg_tables WHERE schemaname = 'postgres'";
    assert_eq!(server.sql(made).unwrap(), "0");

    // An open store whose tables were dropped creates no new tables in any schema.
    server
        .sql("ALTER SCHEMA public RENAME TO elsewhere; CREATE SCHEMA public")
        .unwrap();
    server.sql_in("postgres", drop_all).unwrap();
    let lock = holder.lock();
    let error = eventually_async("told", SOON, || async {
        let told = lock.try_acquire(&request("held", LONG)).await;
        told.err()
            .filter(|it| it.kind() == ErrorKind::InvalidConfig)
    });
    let error = chain(&error.await.unwrap());
    assert!(error.contains("any more"), "{error}");
    assert_eq!(server.sql(made).unwrap(), "0");
}
