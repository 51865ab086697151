//! Fenced writes in the caller's own transaction.

use distlock_core::{Epoch, ErrorKind, Fence, FenceError, FenceRefusal, FencingToken};
use distlock_sql::fence::sqlite::{CREATE_TABLE, admit};
use sqlx::Connection as _;

use super::*;

fn fence(token: u64) -> Fence {
    Fence::new(
        FencingToken::new(token).unwrap(),
        OwnerId::new().tag(),
        Epoch::new("e"),
    )
}

async fn database(place: &Place) -> SqliteConnection {
    let mut database = SqliteConnectOptions::new()
        .filename(&place.path)
        .create_if_missing(true)
        .connect()
        .await
        .unwrap();
    sqlx::raw_sql("CREATE TABLE account (balance INTEGER); INSERT INTO account VALUES (10)")
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
async fn pay(database: &mut SqliteConnection, fence: &Fence) -> Result<(), FenceError> {
    let mut transaction = database.begin_with("BEGIN IMMEDIATE").await.unwrap();
    admit(&mut transaction, "account", fence).await?;
    sqlx::query("UPDATE account SET balance = balance - 1")
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    Ok(())
}

async fn balance(database: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("SELECT balance FROM account")
        .fetch_one(database)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_earlier_holder_changes_nothing() {
    let place = Place::new();
    let mut database = database(&place).await;
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

#[tokio::test]
async fn a_fence_state_that_was_rolled_back_was_never_raised() {
    let place = Place::new();
    let mut database = database(&place).await;
    let mut transaction = database.begin_with("BEGIN IMMEDIATE").await.unwrap();
    admit(&mut transaction, "account", &fence(9)).await.unwrap();
    transaction.rollback().await.unwrap();
    pay(&mut database, &fence(8)).await.unwrap();
    // Other resources have fence states of their own.
    admit(&mut database, "other", &fence(1)).await.unwrap();
}

#[tokio::test]
async fn a_fence_state_that_cannot_be_read_admits_nobody() {
    let place = Place::new();
    let mut database = database(&place).await;
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
