//! Fenced writes in the caller's own transaction.

use distlock_core::{Epoch, ErrorKind, Fence, FenceError, FenceRefusal, FencingToken};
use distlock_harness::eventually_async;
use distlock_sql::fence::postgres::{CREATE_TABLE, admit, sql_condition};
use sqlx::{Connection as _, PgConnection};

use super::*;

fn fence(token: u64) -> Fence {
    Fence::new(
        FencingToken::new(token).unwrap(),
        OwnerId::new().tag(),
        Epoch::new("e"),
    )
}

async fn database(server: &PostgresServer) -> PgConnection {
    let mut database = PgConnection::connect(&server.url()).await.unwrap();
    sqlx::raw_sql("CREATE TABLE account (balance BIGINT); INSERT INTO account VALUES (10)")
        .execute(&mut database)
        .await
        .unwrap();
    sqlx::raw_sql(CREATE_TABLE)
        .execute(&mut database)
        .await
        .unwrap();
    database
}

/// Takes 1 from the balance, if `fence` is admitted.
async fn pay(database: &mut PgConnection, fence: &Fence) -> Result<(), FenceError> {
    let mut transaction = database.begin().await.unwrap();
    admit(&mut transaction, "account", fence).await?;
    sqlx::query("UPDATE account SET balance = balance - 1")
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    Ok(())
}

async fn balance(database: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT balance FROM account")
        .fetch_one(database)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_holder_changes_nothing() {
    let server = PostgresServer::start().unwrap();
    let mut database = database(&server).await;
    let (early, late) = (fence(7), fence(8));
    pay(&mut database, &early).await.unwrap();
    pay(&mut database, &late).await.unwrap();
    pay(&mut database, &late).await.unwrap();
    let refused = pay(&mut database, &early).await.unwrap_err();
    assert!(matches!(
        refused.refusal(),
        Some(FenceRefusal::Older { seen, offered })
            if *seen == late.token && *offered == early.token
    ));
    let refused = pay(&mut database, &fence(8)).await.unwrap_err();
    assert!(matches!(
        refused.refusal(),
        Some(FenceRefusal::SameTokenOtherOwner { .. })
    ));
    assert_eq!(balance(&mut database).await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_state_that_was_rolled_back_was_never_raised() {
    let server = PostgresServer::start().unwrap();
    let mut database = database(&server).await;
    let mut transaction = database.begin().await.unwrap();
    admit(&mut transaction, "account", &fence(9)).await.unwrap();
    transaction.rollback().await.unwrap();
    pay(&mut database, &fence(8)).await.unwrap();
    // Other resources have fence states of their own.
    admit(&mut database, "other", &fence(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_state_that_cannot_be_read_admits_nobody() {
    let server = PostgresServer::start().unwrap();
    let mut database = database(&server).await;
    pay(&mut database, &fence(7)).await.unwrap();
    sqlx::raw_sql("UPDATE distributed_fence SET state = 'garbage'")
        .execute(&mut database)
        .await
        .unwrap();
    match pay(&mut database, &fence(9)).await.unwrap_err() {
        FenceError::Failed(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
        refused => panic!("{refused}"),
    }
    sqlx::raw_sql("DROP TABLE distributed_fence")
        .execute(&mut database)
        .await
        .unwrap();
    assert!(pay(&mut database, &fence(10)).await.is_err());
    assert_eq!(balance(&mut database).await, 9);
}

/// Of two transactions at once, the second waits for the first, and its check uses the first
/// transaction's result.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_transaction_waits_for_the_first() {
    let server = PostgresServer::start().unwrap();
    let mut database = database(&server).await;
    for (first, second, balance_then) in [(9, 8, 9), (10, 11, 7)] {
        let mut transaction = database.begin().await.unwrap();
        admit(&mut transaction, "account", &fence(first))
            .await
            .unwrap();
        sqlx::query("UPDATE account SET balance = balance - 1")
            .execute(&mut *transaction)
            .await
            .unwrap();
        let mut other = PgConnection::connect(&server.url()).await.unwrap();
        let paying = tokio::spawn(async move { pay(&mut other, &fence(second)).await });
        eventually_async("it waits", SOON, || async {
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
            (server.sql(waits).unwrap() == "1").then_some(())
        })
        .await
        .unwrap();
        transaction.commit().await.unwrap();
        let paid = within(SOON, "answered", paying).await.unwrap();
        if second > first {
            paid.unwrap();
        } else {
            let refused = paid.unwrap_err();
            let older = matches!(refused.refusal(), Some(FenceRefusal::Older { .. }));
            assert!(older, "{refused}");
        }
        assert_eq!(balance(&mut database).await, balance_then);
    }
}

/// The caller's row contains its own fence state in two columns, without a second table.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_with_its_own_fence_state_refuses_earlier_holders() {
    let server = PostgresServer::start().unwrap();
    let mut database = database(&server).await;
    sqlx::raw_sql(
        "ALTER TABLE account ADD fence_token bigint NOT NULL DEFAULT 0, ADD fence_owner uuid",
    )
    .execute(&mut database)
    .await
    .unwrap();
    let pay = format!(
        "UPDATE account SET balance = balance - 1, fence_token = $1, fence_owner = $2 WHERE {}",
        sql_condition(1, 2)
    );
    let (early, late, other) = (fence(7), fence(8), fence(8));
    for (fence, let_through) in [
        (&early, 1),
        (&late, 1),
        (&late, 1),
        (&early, 0),
        (&other, 0),
    ] {
        let paid = sqlx::query(sqlx::AssertSqlSafe(pay.clone()))
            .bind(fence.token.get().cast_signed())
            .bind(fence.owner)
            .execute(&mut database)
            .await
            .unwrap();
        assert_eq!(paid.rows_affected(), let_through, "{fence:?}");
    }
    assert_eq!(balance(&mut database).await, 7);
}
