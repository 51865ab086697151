//! Fenced writes in the caller's own transaction.

use distlock_core::{Epoch, ErrorKind, Fence, FenceError, FenceRefusal, FencingToken, OwnerId};
use distlock_harness::servers::mysql::Product;
use distlock_sql::fence::mysql::{CREATE_TABLE, admit};
use sqlx::{Connection as _, MySqlConnection};

use crate::{on_both, start};

on_both! {
    an_earlier_holder_changes_nothing => earlier;
}

fn fence(token: u64) -> Fence {
    Fence::new(
        FencingToken::new(token).unwrap(),
        OwnerId::new().tag(),
        Epoch::new("e"),
    )
}

/// Takes 1 from the balance, if `fence` is let through.
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

async fn earlier(product: Product) {
    let server = start(product);
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
    let (early, late) = (fence(7), fence(8));
    pay(&mut database, &early).await.unwrap();
    pay(&mut database, &late).await.unwrap();
    pay(&mut database, &late).await.unwrap();
    let refused = pay(&mut database, &early).await.unwrap_err();
    assert!(matches!(
        refused.refusal(),
        Some(FenceRefusal::Older { seen, offered }) if *seen == late.token && *offered == early.token
    ));
    let refused = pay(&mut database, &fence(8)).await.unwrap_err();
    assert!(matches!(
        refused.refusal(),
        Some(FenceRefusal::SameTokenOtherOwner { .. })
    ));
    // A bar that was rolled back was never raised; other resources have bars of their own.
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
