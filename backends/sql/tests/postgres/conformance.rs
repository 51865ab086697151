//! The conformance suite, as a user with only the rights to read and write distlock's tables: locks
//! on the distribution's Postgres, and records on Postgres 18.

use distlock_conformance::{Subject, Workers};
use distlock_core::Store;
use distlock_harness::distlock_binary;
use distlock_kv::KvLock;

use super::*;

/// Default settings of the user's sessions: the opposite of the settings that the store needs.
const ODD: &str = "ALTER ROLE app SET default_transaction_isolation = 'serializable';
                   ALTER ROLE app SET default_transaction_deferrable = on;
                   ALTER ROLE app SET timezone = 'Asia/Kolkata';
                   ALTER ROLE app SET datestyle = 'SQL, DMY';
                   ALTER ROLE app SET bytea_output = 'escape';
                   ALTER ROLE app SET search_path = nowhere, \"$user\", public;
                   ALTER ROLE app SET quote_all_identifiers = on;
                   ALTER ROLE app SET synchronous_commit = off;
                   ALTER ROLE app SET lock_timeout = '50s'";

/// Runs the suite, or the part of it that `CASE` names.
async fn conforms(subject: Subject) {
    let filter = std::env::var("CASE").ok();
    let results = distlock_conformance::run(&subject, filter.as_deref()).await;
    let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(!results.is_empty(), "no case of this name");
}

/// The suite checks the doctor's report, so the server syncs its disk.
const SETTINGS: [&str; 1] = ["fsync=on"];

/// A server with tables, and the URL of a user with few rights.
async fn prepared(server: PostgresServer) -> (PostgresServer, String) {
    Postgres::migrate(config(&server.url()), Arc::new(SystemClock))
        .await
        .unwrap();
    server
        .sql(
            "CREATE ROLE app LOGIN PASSWORD 'p@ss';
             GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_lock, distributed_queue, \
             distributed_record TO app;
             GRANT SELECT, UPDATE ON distributed_meta TO app",
        )
        .unwrap();
    let url = server.url_as("app", "p%40ss");
    (server, format!("{url}?migrate=false"))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server() {
    let (server, url) = prepared(PostgresServer::with(&SETTINGS).unwrap()).await;
    server.sql(ODD).unwrap();
    let workers = Workers::new(distlock_binary().unwrap(), ["conformance-worker"], &url);
    let subject = Subject::connect("postgres", move || {
        let url = url.clone();
        async move {
            let postgres = try_open(&url).await?;
            Ok(Store::new(postgres.lock(), postgres.records()))
        }
    });
    conforms(subject.await.unwrap().with_workers(workers)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_over_records() {
    let (_server, url) = prepared(PostgresServer::newer(&SETTINGS).unwrap()).await;
    let subject = Subject::connect("postgres_records", move || {
        let url = url.clone();
        async move {
            let records = try_open(&url).await?.records();
            let lock = Arc::new(KvLock::new(Arc::clone(&records))?);
            Ok(Store::new(lock, records))
        }
    });
    conforms(subject.await.unwrap()).await;
}
