//! Counts the statements of waiters, of hand-overs, and of transactions that the server rolls back.

use std::time::{Duration, Instant};

use distlock_core::{AcquireRequest, ErrorKind, Lease, Renewal, Renewed, Result, Ttl};
use distlock_harness::servers::mysql::Product;
use distlock_sql::MySql;
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};

use crate::{
    behind_a_proxy,
    common::{
        self, a_hand_over_takes_one_statement, a_hint_of_another_process_becomes_that_of_several,
        lease, take,
    },
    mysql, on_both,
    servers::{LONG, Polls, SOON, a_grant_takes_one_round_trip, a_release_keeps_the_token},
    start,
};

on_both! {
    waiters_and_hand_overs_take_few_statements => waiters_and_hand_overs_take_few_statements;
    a_rolled_back_batch_is_sent_again => a_rolled_back_batch_is_sent_again;
    a_hint_becomes_that_of_several_processes => a_hint_becomes_that_of_several_processes;
    a_freed_row_keeps_its_token => a_freed_row_keeps_its_token;
    a_grant_is_one_round_trip => a_grant_is_one_round_trip;
}

/// The largest number of statements of a reaper's first run, including the opening of a connection.
const REAPER: u64 = 10;

fn request(name: &str) -> AcquireRequest {
    common::request(name, LONG)
}

async fn waiters_and_hand_overs_take_few_statements(product: Product) {
    let server = start(product);
    let mysql = mysql(&server.url()).await.unwrap();
    a_hand_over_takes_one_statement(&*mysql.lock(), REAPER, || mysql.statements()).await;
    // The first intervals between polls are shorter. Two more statements set the hints.
    let polls = Polls {
        seconds: 2,
        each: 20,
        once: 30,
    };
    for waiters in [1, 50] {
        polls
            .suffice(&*mysql.lock(), || mysql.statements(), waiters)
            .await;
    }
}

async fn a_grant_is_one_round_trip(product: Product) {
    let (_server, proxy, url) = behind_a_proxy(product).await;
    let mysql = mysql(&format!("{url}&pool_size=1")).await.unwrap();
    a_grant_takes_one_round_trip(&*mysql.lock(), &proxy).await;
}

async fn a_freed_row_keeps_its_token(product: Product) {
    let server = start(product);
    let mysql = mysql(&server.url()).await.unwrap();
    a_release_keeps_the_token(&*mysql.lock(), |token| {
        let set = format!("UPDATE distributed_lock SET token = {token}");
        server.sql(&set).unwrap();
    })
    .await;
}

async fn a_hint_becomes_that_of_several_processes(product: Product) {
    let server = start(product);
    let mysql = mysql(&server.url()).await.unwrap();
    a_hint_of_another_process_becomes_that_of_several(
        &*mysql.lock(),
        async |mark| {
            let marked = format!(
                "UPDATE distributed_lock SET hint_id = {mark}, hint_until = expires_at + \
                    3600000000"
            );
            server.sql(&marked).unwrap();
        },
        async || {
            let mark = server.sql("SELECT hint_id FROM distributed_lock");
            mark.unwrap().parse().unwrap()
        },
    )
    .await;
}

/// A batch is sent again, and the repetition is counted, in two cases: another transaction has
/// locked one of its rows, or the server rolls the batch back.
async fn a_rolled_back_batch_is_sent_again(product: Product) {
    let server = start(product);
    let url = format!("{}&statement_timeout=1m", server.url());
    let mysql = mysql(&url).await.unwrap();
    let mut operator = MySqlConnection::connect(&server.url()).await.unwrap();
    locked(&mysql, &mut operator).await;
    // A handle that has found a row locked sends a probe before its next wait. This new handle has
    // found none.
    let mysql = crate::mysql(&url).await.unwrap();
    let mut observer = MySqlConnection::connect(&server.url()).await.unwrap();
    // The server rolls back the transaction with fewer changes. The operator's transaction changes
    // a thousand rows, so that the server rolls the store's transaction back.
    server
        .sql(
            "CREATE TABLE ballast (n INT PRIMARY KEY); \
             INSERT INTO ballast WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s \
             WHERE n < 1000) \
             SELECT n FROM s",
        )
        .unwrap();
    let deadline = Instant::now() + SOON;
    let mut round = 0;
    // The operator's statement may come too late for a deadlock; then the round is repeated.
    while !deadlocked(&mysql, &mut operator, &mut observer, round).await {
        assert!(Instant::now() < deadline, "no deadlock in {round} rounds");
        round += 1;
    }
}

/// An operator keeps one row locked: the batch is sent again without this row.
async fn locked(mysql: &MySql, operator: &mut MySqlConnection) {
    let leases = forty(mysql, "locked").await;
    send(operator, "START TRANSACTION").await.unwrap();
    send(operator, &lock_row("locked-39")).await.unwrap();
    let before = mysql.retries();
    let renewed = renew(mysql, &leases).await;
    assert!(mysql.retries() > before, "without that row");
    send(operator, "ROLLBACK").await.unwrap();
    let (last, others) = renewed.split_last().unwrap();
    let refused = last.as_ref().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    for renewed in others {
        assert!(
            matches!(renewed, Ok(Renewed::Extended { .. })),
            "{renewed:?}"
        );
    }
}

/// An operator locks the last row and then an earlier row. Returns whether the server rolled the
/// store's transaction back and every renewal succeeded all the same.
async fn deadlocked(
    mysql: &MySql,
    operator: &mut MySqlConnection,
    observer: &mut MySqlConnection,
    round: u32,
) -> bool {
    const DEADLOCKS: &str = "SELECT CAST(`count` AS SIGNED) FROM \
        information_schema.innodb_metrics WHERE name = 'lock_deadlocks'";
    const WAITING: &str =
        "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    let leases = forty(mysql, &format!("round-{round}")).await;
    send(operator, "START TRANSACTION").await.unwrap();
    send(operator, "UPDATE ballast SET n = -n").await.unwrap();
    let last = lock_row(&format!("round-{round}-39"));
    send(operator, &last).await.unwrap();
    let (deadlocks, retries) = (number(observer, DEADLOCKS).await, mysql.retries());
    let renewing = tokio::spawn({
        let mysql = mysql.clone();
        async move { renew(&mysql, &leases).await }
    });
    while number(observer, WAITING).await == 0 && !renewing.is_finished() {
        // The server updates this table only if nobody has read it for 100 ms.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let before = lock_row(&format!("round-{round}-20"));
    let granted = send(operator, &before).await.is_ok();
    let _ = send(operator, "ROLLBACK").await;
    let renewed = renewing.await.unwrap();
    let taken_back = granted && number(observer, DEADLOCKS).await > deadlocks;
    if taken_back {
        assert!(mysql.retries() > retries, "once more");
    }
    // After a pause of the whole machine, a renewal may have waited for too long and failed.
    let extended = |it: &Result<Renewed>| matches!(it, Ok(Renewed::Extended { .. }));
    taken_back && renewed.iter().all(extended)
}

async fn forty(mysql: &MySql, set: &str) -> Vec<Lease> {
    let lock = mysql.lock();
    let requests = (0..40).map(|number| request(&format!("{set}-{number:02}")));
    let requests: Vec<_> = requests.collect();
    let grants = join_all(requests.iter().map(|it| take(&*lock, it))).await;
    let leases = requests.iter().zip(&grants);
    leases
        .map(|(request, grant)| lease(request, grant))
        .collect()
}

async fn renew(mysql: &MySql, leases: &[Lease]) -> Vec<Result<Renewed>> {
    let (lock, renewal) = (mysql.lock(), Renewal::plain(Ttl::new(LONG).unwrap()));
    join_all(leases.iter().map(|it| lock.renew(it, &renewal))).await
}

fn lock_row(name: &str) -> String {
    format!("SELECT token FROM distributed_lock WHERE lock_name = '{name}' FOR UPDATE")
}

async fn send(database: &mut MySqlConnection, statement: &str) -> Result<(), sqlx::Error> {
    let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
    statement.execute(database).await.map(drop)
}

async fn number(database: &mut MySqlConnection, statement: &'static str) -> i64 {
    sqlx::query_scalar(statement)
        .fetch_one(database)
        .await
        .unwrap()
}
