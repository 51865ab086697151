//! The conformance suite on real servers, without the cases that need several processes.

use distlock_conformance::Subject;
use distlock_harness::servers::mysql::{MySqlServer, Product};

use crate::{on_both, open, over_records, start};

on_both! {
    a_lock_over_records_conforms => a_lock_over_records_conforms;
    lone_operations_are_prepared => lone_operations_are_prepared;
    a_limited_user_on_an_odd_server_conforms => a_limited_user_on_an_odd_server_conforms;
}

async fn a_lock_over_records_conforms(product: Product) {
    let server = start(product);
    let url = server.url();
    let subject = Subject::connect("mysql_records", move || over_records(url.clone())).await;
    conforms(subject.unwrap()).await;
}

async fn lone_operations_are_prepared(product: Product) {
    let server = start(product);
    let store = open(server.url()).await.unwrap();
    for _ in 0..3 {
        let guard = store.locker().lock("lone").acquire().await.unwrap();
        assert!(guard.release().await.is_clean());
    }
    assert!(executed(&server) > 0, "the statement of each is remembered");
    store.close().await;
}

/// Runs the suite on a server whose defaults are the opposite of the needed defaults. The server
/// prepares no statements, and its user has only the rights to read and change rows.
async fn a_limited_user_on_an_odd_server_conforms(product: Product) {
    let settings = [
        "sql-mode=ANSI_QUOTES",
        "default-time-zone=+05:30",
        "autocommit=0",
        "transaction-isolation=SERIALIZABLE",
        "character-set-server=latin1",
        "max-prepared-stmt-count=0",
        "collation-server=latin1_swedish_ci",
        // `init-connect` applies to users without special rights. It stops their clock.
        "init-connect=SET timestamp=1000000000, completion_type=1, sql_select_limit=1, \
            innodb_lock_wait_timeout=50",
    ];
    // This MariaDB refuses by default to lock a row that was changed after the transaction's first
    // read.
    let server = match product {
        Product::MariaDb => MySqlServer::newer_mariadb(&settings),
        Product::MySql => MySqlServer::with(product, &settings),
    }
    .unwrap();
    let root = server.url();
    open(root.clone()).await.unwrap().close().await;
    server
        .sql(&format!(
            "CREATE USER poor@'127.0.0.1' IDENTIFIED BY '{}'; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.distributed_lock TO \
             poor@'127.0.0.1'; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.distributed_queue TO \
             poor@'127.0.0.1'; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.distributed_record TO \
             poor@'127.0.0.1'; \
             GRANT SELECT, UPDATE ON distlock.distributed_meta TO poor@'127.0.0.1'; COMMIT",
            server.password()
        ))
        .unwrap();
    let url = format!("{}&migrate=false", server.url_as("poor").unwrap());
    let subject = Subject::connect("mysql", move || open(url.clone())).await;
    conforms(subject.unwrap()).await;
    assert_eq!(
        executed(&server),
        0,
        "what is not remembered is not asked for"
    );
}

/// The number of prepared statements that the server has carried out.
fn executed(server: &MySqlServer) -> u64 {
    let status = server.sql("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'");
    let status = status.unwrap();
    let count = status.split_whitespace().last();
    count.and_then(|count| count.parse().ok()).expect("a count")
}

/// Runs the suite, or the part of it that `CASE` names.
async fn conforms(subject: Subject) {
    let filter = std::env::var("CASE").ok();
    let results = distlock_conformance::run(&subject, filter.as_deref()).await;
    let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(!results.is_empty(), "no case of this name");
}
