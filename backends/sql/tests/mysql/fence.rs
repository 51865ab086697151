//! Fenced writes in the caller's own transaction.

use distlock_core::{
    Epoch, ErrorKind, Fence, FenceError, FenceGuard, FenceRefusal, FencingToken, OwnerId,
};
use distlock_harness::{
    eventually_async,
    servers::mysql::{MySqlServer, Product},
};
use distlock_sql::fence::mysql::{CREATE_TABLE, admit};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection};

use crate::{
    on_both,
    servers::{SOON, within},
    start,
};

on_both! {
    an_earlier_holder_changes_nothing => an_earlier_holder_changes_nothing;
    a_concurrent_transaction_waits_for_the_first => a_concurrent_transaction_waits_for_the_first;
    a_row_with_its_own_state_refuses_old_holders => a_row_with_its_own_state_refuses_old_holders;
}

fn fence(token: u64) -> Fence {
    Fence::new(
        FencingToken::new(token).unwrap(),
        OwnerId::new().tag(),
        Epoch::new("e"),
    )
}

async fn accounts(server: &MySqlServer) -> MySqlConnection {
    let mut database = MySqlConnection::connect(&server.url()).await.unwrap();
    for statement in [
        "CREATE TABLE account (balance BIGINT NOT NULL)",
        "INSERT INTO account VALUES (10)",
        CREATE_TABLE,
    ] {
        sqlx::raw_sql(statement)
            .execute(&mut database)
            .await
            .unwrap();
    }
    database
}

/// Takes 1 from the balance, if `fence` is admitted.
async fn pay(database: &mut MySqlConnection, fence: &Fence) -> Result<(), FenceError> {
    let mut transaction = database.begin().await.unwrap();
    admit(&mut transaction, "account", fence).await?;
    sqlx::raw_sql("UPDATE account SET balance = balance - 1")
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    Ok(())
}

async fn an_earlier_holder_changes_nothing(product: Product) {
    let server = start(product);
    let mut database = accounts(&server).await;
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
    // After a rollback, the fence state is not raised. Each resource has its own fence state.
    let mut transaction = database.begin().await.unwrap();
    admit(&mut transaction, "account", &fence(20))
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    pay(&mut database, &fence(9)).await.unwrap();
    admit(&mut database, "other", &fence(1)).await.unwrap();
    let balance = "SELECT balance FROM account";
    assert_eq!(server.sql(balance).unwrap(), "6");
    server
        .sql("UPDATE distributed_fence SET state = 'garbage'")
        .unwrap();
    match pay(&mut database, &fence(30)).await.unwrap_err() {
        FenceError::Failed(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
        refused => panic!("{refused}"),
    }
    assert_eq!(server.sql(balance).unwrap(), "6");
}

/// Of two transactions at once, the second waits for the first, and its check uses the first
/// transaction's result.
async fn a_concurrent_transaction_waits_for_the_first(product: Product) {
    let server = start(product);
    let mut database = accounts(&server).await;
    for (first, second, balance) in [(9, 8, "9"), (10, 11, "7")] {
        let mut transaction = database.begin().await.unwrap();
        admit(&mut transaction, "account", &fence(first))
            .await
            .unwrap();
        sqlx::raw_sql("UPDATE account SET balance = balance - 1")
            .execute(&mut *transaction)
            .await
            .unwrap();
        let mut other = MySqlConnection::connect(&server.url()).await.unwrap();
        let paying = tokio::spawn(async move { pay(&mut other, &fence(second)).await });
        eventually_async("it waits", SOON, || async {
            let waits = server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'");
            waits.unwrap().ends_with("\t1").then_some(())
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
        let left = server.sql("SELECT balance FROM account");
        assert_eq!(left.unwrap(), balance);
    }
}

/// With this setting (the default of MariaDB from 11.6), MariaDB refuses to lock a row that was
/// changed after the transaction's first read. The caller learns that the transaction can be begun
/// again.
#[tokio::test]
async fn a_row_that_changed_after_the_first_read_gives_a_retryable_error() {
    let server =
        MySqlServer::with(Product::MariaDb, &["innodb-snapshot-isolation=ON"]).expect("starts");
    let mut database = accounts(&server).await;
    let mut other = MySqlConnection::connect(&server.url()).await.unwrap();
    // The row of the fence is absent before the first round, and present before the second.
    for token in [7, 9] {
        let mut transaction = database.begin().await.unwrap();
        sqlx::raw_sql("SELECT balance FROM account")
            .fetch_all(&mut *transaction)
            .await
            .unwrap();
        pay(&mut other, &fence(token)).await.unwrap();
        let late = fence(token + 1);
        let error = match admit(&mut transaction, "account", &late).await {
            Err(FenceError::Failed(error)) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable(), "{error}");
        assert!(
            error.to_string().contains("begin the transaction again"),
            "{error}"
        );
        transaction.rollback().await.unwrap();
        pay(&mut database, &late).await.unwrap();
    }
    assert_eq!(server.sql("SELECT balance FROM account").unwrap(), "6");
}

/// The caller's row contains its own fence state in two columns, without a second table.
async fn a_row_with_its_own_state_refuses_old_holders(product: Product) {
    let server = start(product);
    let mut database = accounts(&server).await;
    sqlx::raw_sql(
        "ALTER TABLE account ADD fence_token BIGINT NOT NULL DEFAULT 0, ADD fence_owner BINARY(16)",
    )
    .execute(&mut database)
    .await
    .unwrap();
    let pay = format!(
        "UPDATE account SET balance = balance - 1, fence_token = ?, fence_owner = ? WHERE {}",
        FenceGuard::SQL_CONDITION
    );
    let (early, late, other) = (fence(7), fence(8), fence(8));
    for (fence, let_through) in [
        (&early, 1),
        (&late, 1),
        (&late, 1),
        (&early, 0),
        (&other, 0),
    ] {
        let (token, owner) = (fence.token.get(), fence.owner.as_bytes().to_vec());
        let paid = sqlx::query(AssertSqlSafe(pay.clone()))
            .bind(token)
            .bind(owner.clone())
            .bind(token)
            .bind(token)
            .bind(owner)
            .execute(&mut database)
            .await
            .unwrap();
        assert_eq!(paid.rows_affected(), let_through, "{fence:?}");
    }
    assert_eq!(server.sql("SELECT balance FROM account").unwrap(), "7");
}
