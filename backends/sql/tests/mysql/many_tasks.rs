//! Many tasks at once: every operation gets its answer, and no caller gets a deadlock as an error.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    AcquireRequest, Attempt, ErrorKind, Expect, HolderLabel, LockName, MAX_VALUE_BYTES, Meta,
    OwnerId, RecordKey, Ttl, Written,
};
use distlock_harness::{
    eventually_async,
    servers::mysql::{MySqlServer, Product},
};
use distlock_sql::MySql;
use futures_util::future::join_all;
use tokio::task::JoinSet;

use crate::{
    batches::{ByHand, each_operation_of_a_mixed_batch_has_its_own_answer},
    common::request,
    locker, mysql, on_both,
    servers::{LONG, SOON, few_connections, stale_rows_are_counted},
    sessions, start,
};

on_both! {
    many_tasks_exclude_each_other => many_tasks_exclude_each_other;
    each_operation_of_a_batch_has_its_own_answer => each_operation_of_a_batch_has_its_own_answer;
    batches_as_text_answer_each_operation => batches_as_text_answer_each_operation;
    a_grant_with_an_unreadable_row_is_unknown => a_grant_with_an_unreadable_row_is_unknown;
    idle_rows_are_removed_once => idle_rows_are_removed_once;
    stale_rows_are_shown_by_the_doctor => stale_rows_are_shown_by_the_doctor;
    few_connections_serve_many_tasks => few_connections_serve_many_tasks;
    no_statement_exceeds_a_small_packet_limit => no_statement_exceeds_a_small_packet_limit;
}

/// Two stores run at the same time, so that their batches compete in the server.
async fn many_tasks_exclude_each_other(product: Product) {
    const TASKS: usize = 256;
    let server = start(product);
    let lockers = [locker(&server.url()).await, locker(&server.url()).await];
    for (names, rounds) in [(TASKS, 6), (8, 2)] {
        let counters: Arc<Vec<AtomicU64>> =
            Arc::new((0..names).map(|_| AtomicU64::new(0)).collect());
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let locker = lockers[task % 2].clone();
                let counters = Arc::clone(&counters);
                tokio::spawn(async move {
                    for round in 0..rounds {
                        let number = (task + round * 7) % names;
                        let lock = locker.lock(format!("storm-{number}"));
                        let guard = lock.ttl(LONG).wait(LONG).acquire().await.unwrap();
                        // The final count is exact only if no two tasks hold the lock at once.
                        let before = counters[number].load(Ordering::Relaxed);
                        tokio::task::yield_now().await;
                        counters[number].store(before + 1, Ordering::Relaxed);
                        assert!(guard.release().await.is_clean());
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let sum: u64 = counters.iter().map(|it| it.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, (TASKS * rounds) as u64, "{names} names");
    }
}

/// A server with a small packet limit never gets a larger statement, with any number of operations
/// and with names of any length.
async fn no_statement_exceeds_a_small_packet_limit(product: Product) {
    const MANY: usize = 2200;
    let server = MySqlServer::with(product, &["max-allowed-packet=1M"]).unwrap();
    let mysql = mysql(&server.url()).await.unwrap();
    let (lock, records) = (mysql.lock(), mysql.records());
    let requests: Vec<_> = (0..MANY)
        .map(|number| {
            let mut request = request(&format!("{number:0>255}"), LONG);
            request.meta = Some(Meta::new("m".repeat(4096)).unwrap());
            request
        })
        .collect();
    let before = mysql.statements();
    for attempt in join_all(requests.iter().map(|it| lock.try_acquire(it))).await {
        assert!(matches!(attempt, Ok(Attempt::Acquired(_))), "{attempt:?}");
    }
    let spent = mysql.statements() - before;
    assert!(spent < MANY as u64 / 4, "one by one: {spent}");

    let mut waiting = JoinSet::new();
    for request in &requests {
        let mut other = request.clone();
        other.owner = OwnerId::new();
        let mut contender = lock.contend(&other).await.unwrap();
        waiting.spawn(async move { contender.wait(LONG).await });
    }
    let marked = async || {
        let marked = "SELECT COUNT(*) FROM distributed_lock WHERE hint_until > 0";
        (server.sql(marked).unwrap() == MANY.to_string()).then_some(())
    };
    eventually_async("all are waited for", SOON, marked)
        .await
        .unwrap();
    waiting.shutdown().await;

    let keys: Vec<_> = (0..MANY)
        .map(|number| RecordKey::new(format!("{number:0>500}")).unwrap())
        .collect();
    let (last, large) = (&keys[MANY - 1], vec![7; MAX_VALUE_BYTES]);
    let stored = records.put(last, &large, Expect::Absent).await.unwrap();
    assert!(matches!(stored, Written::Stored(_)));
    let mut found = records.get_many(&keys).await.unwrap();
    assert_eq!(found.pop().unwrap().unwrap().value, large);
    assert!(found.iter().all(Option::is_none));

    // A value that exceeds the limit is refused, and the outcome is not unknown.
    server.sql("SET GLOBAL max_allowed_packet = 65536").unwrap();
    let records = super::mysql(&server.url()).await.unwrap().records();
    let refused = records.put(&keys[0], &large, Expect::Absent).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert!(
        refused.to_string().contains("max_allowed_packet"),
        "{refused}"
    );
}

async fn each_operation_of_a_batch_has_its_own_answer(product: Product) {
    mixed(start(product)).await;
}

/// The same test on a server that prepares no statements.
async fn batches_as_text_answer_each_operation(product: Product) {
    mixed(MySqlServer::with(product, &["max-prepared-stmt-count=0"]).unwrap()).await;
}

async fn mixed(server: MySqlServer) {
    let mysql = mysql(&server.url()).await.unwrap();
    let by_hand = ByHand {
        sql: &|statement| drop(server.sql(statement).unwrap()),
        free: "holder_id = NULL, expires_at = 1",
        given_away: "holder_id = REPEAT('x', 16), token = token + 5, holder = 'thief'",
        wanted: "hint_id = 1, hint_until = expires_at",
    };
    each_operation_of_a_mixed_batch_has_its_own_answer(&*mysql.lock(), &by_hand).await;
}

/// An acquire whose row cannot be read afterwards may have been granted: its outcome is unknown.
async fn a_grant_with_an_unreadable_row_is_unknown(product: Product) {
    let server = start(product);
    let root = server.url();
    mysql(&root).await.unwrap();
    let grants = |on: &str| {
        format!(
            "GRANT {on} INSERT, UPDATE, DELETE ON distlock.distributed_lock TO poor@'127.0.0.1'"
        )
    };
    server
        .sql(&format!(
            "CREATE USER poor@'127.0.0.1' IDENTIFIED BY '{}'; {}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.distributed_queue TO \
             poor@'127.0.0.1'; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.distributed_record TO \
             poor@'127.0.0.1'; \
             GRANT SELECT, UPDATE ON distlock.distributed_meta TO poor@'127.0.0.1'",
            server.password(),
            grants("SELECT,")
        ))
        .unwrap();
    let mysql = mysql(&server.url_as("poor").unwrap()).await.unwrap();
    let lock = mysql.lock();
    let ttl = Ttl::new(LONG).unwrap();
    let requests = || {
        (0..40).map(|number| {
            let name = LockName::new(format!("n-{number}")).unwrap();
            AcquireRequest::new(
                name,
                OwnerId::new(),
                ttl,
                HolderLabel::new("tester").unwrap(),
            )
        })
    };
    for request in join_all(requests().map(async |it| lock.try_acquire(&it).await)).await {
        assert!(matches!(request.unwrap(), Attempt::Acquired(_)));
    }
    // The tokens are ahead of the clock, so that the rows must be read after the statement.
    server
        .sql(&format!(
            "UPDATE distributed_lock SET holder_id = NULL, expires_at = 1, token = token + \
                1000000000; \
             REVOKE SELECT ON distlock.distributed_lock FROM poor@'127.0.0.1'; {}",
            grants(
                "SELECT (holder_id, token, acquired_at, expires_at, holder, meta, nonce, \
                    hint_id, hint_until),"
            )
        ))
        .unwrap();
    let answers = join_all(requests().map(async |it| lock.try_acquire(&it).await)).await;
    let held =
        server.sql("SELECT COUNT(*) FROM distributed_lock WHERE HEX(holder_id) <> REPEAT('0', 32)");
    assert_eq!(held.unwrap(), "40");
    let refused = answers.into_iter().filter_map(Result::err);
    let refused: Vec<_> = refused.collect();
    // Operations that were sent alone get their token in another way. Their number is random.
    assert!(!refused.is_empty(), "all forty went alone");
    for error in refused {
        assert!(!error.did_not_happen(), "{error:?}");
    }
}

async fn idle_rows_are_removed_once(product: Product) {
    let server = start(product);
    let url = format!("{}&reap_after=1s", server.url());
    let stores = [mysql(&url).await.unwrap(), mysql(&url).await.unwrap()];
    let locker = distlock_core::Locker::new(stores[0].lock());
    // The second reaper finds nothing to do, and nothing breaks.
    let reap = async || {
        for reaped in join_all(stores.iter().map(MySql::reap)).await {
            reaped.unwrap();
        }
    };
    let deletes = || -> u64 {
        let counted = server.sql("SHOW GLOBAL STATUS LIKE 'Com_delete%'").unwrap();
        let counts = counted.lines().filter_map(|it| it.split('\t').nth(1));
        counts.map(|it| it.parse::<u64>().unwrap()).sum()
    };
    let before = deletes();
    let kept = locker.lock("kept").ttl(LONG).acquire().await.unwrap();
    let freed = locker.lock("freed").ttl(LONG).acquire().await.unwrap();
    let token = freed.token();
    assert!(freed.release().await.is_clean());
    // The last claim of the reaper has a time in the future: the clock was wrong then.
    server
        .sql("UPDATE distributed_meta SET reaped_at = 4000000000000000")
        .unwrap();
    // There are many idle rows, and an operator has locked one of them.
    server
        .sql(
            "INSERT INTO distributed_lock (lock_name, holder_id, token, acquired_at, expires_at, \
                holder) \
             SELECT CONCAT(kind, seq), REPEAT('x', 16), 1, 1, 1, 'gone' FROM \
             (WITH RECURSIVE s (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM s WHERE seq < \
             1000) \
             SELECT seq FROM s) AS numbers, (SELECT 'stale-' AS kind UNION SELECT 'more-') AS \
             kinds",
        )
        .unwrap();
    // If a background reaper has removed the row, the row is created again.
    let stale = "SELECT token FROM distributed_lock WHERE lock_name = 'stale-7'";
    let operator = loop {
        server
            .sql(
                "INSERT IGNORE INTO distributed_lock (lock_name, holder_id, token, acquired_at, \
                    expires_at, holder) \
                 VALUES ('stale-7', REPEAT('x', 16), 1, 1, 1, 'gone')",
            )
            .unwrap();
        let operator = server
            .hold_open(&format!("START TRANSACTION; {stale} FOR UPDATE"))
            .unwrap();
        if server.sql(stale).unwrap() == "1" {
            break operator;
        }
    };
    let names = || server.sql("SELECT lock_name FROM distributed_lock ORDER BY lock_name");
    eventually_async("all but two are gone", SOON, || async {
        reap().await;
        (names().ok()? == "kept\nstale-7").then_some(())
    })
    .await
    .unwrap();
    assert!(deletes() - before >= 4, "at most 500 at once");
    drop(operator);
    eventually_async("the last one too", SOON, || async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        reap().await;
        (names().ok()? == "kept").then_some(())
    })
    .await
    .unwrap();
    let again = locker.lock("freed").ttl(LONG).acquire().await.unwrap();
    assert!(again.token() > token, "also after reaping");
    assert!(kept.is_valid());
    let health = locker.health().await.unwrap();
    let rows = health.findings.iter().find(|it| it.check == "rows");
    assert!(rows.unwrap().detail.contains("2 held"), "{rows:?}");
}

async fn stale_rows_are_shown_by_the_doctor(product: Product) {
    let server = start(product);
    let locker = locker(&format!("{}&reap_after=1h", server.url())).await;
    // A fresh claim keeps the background reapers from running.
    server
        .sql(
            "UPDATE distributed_meta SET reaped_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', \
            UTC_TIMESTAMP(6))",
        )
        .unwrap();
    stale_rows_are_counted(&locker, |name, seconds| {
        let insert = format!(
            "INSERT IGNORE INTO distributed_lock (lock_name, holder_id, token, acquired_at, \
                expires_at, holder) \
             VALUES ('{name}', REPEAT('x', 16), 1, 1, \
             TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - {seconds} * 1000000, \
             'gone')"
        );
        server.sql(&insert).unwrap();
    })
    .await;
}

async fn few_connections_serve_many_tasks(product: Product) {
    let server = start(product);
    let mysql = mysql(&server.url()).await.unwrap();
    // The handle that renews has as many connections.
    few_connections(mysql.lock(), 4, 8, || sessions(&server).len()).await;
}
