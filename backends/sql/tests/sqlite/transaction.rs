//! Taking and freeing in one transaction: however that ends, the file is free for others.

use distlock_core::ErrorKind;

use super::*;

/// In a database that does not log ahead, whoever reads can keep a transaction from being committed.
#[tokio::test]
async fn a_commit_that_is_refused_leaves_the_file_to_others() {
    let place = Place::new();
    let mut raw = SqliteConnectOptions::new()
        .filename(&place.path)
        .create_if_missing(true)
        .connect()
        .await
        .unwrap();
    execute(&mut raw, "CREATE TABLE another_program (id INTEGER)").await;
    let (store, other) = (place.open().await, place.open().await.lock());
    let lock = store.lock();
    let leaving = request("old");
    let grant = take(&lock, &leaving).await;

    execute(&mut raw, "BEGIN; SELECT count(*) FROM distributed_lock").await;
    let (first, next) = (request("first"), request("next"));
    let released = lease(&leaving, &grant);
    let (_, (taken, freed)) = both(
        // Goes out at once, so that the rest makes a batch.
        lock.try_acquire(&first),
        both(lock.try_acquire(&next), lock.release(&released)),
    )
    .await;
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(freed.unwrap_err().kind(), ErrorKind::Unavailable);
    execute(&mut raw, "COMMIT").await;

    take(&other, &request("a")).await;
    // Neither half of it happened.
    assert_eq!(
        refused(&other, &request("old")).await.token,
        Some(grant.token)
    );
    take(&other, &next).await;
}

async fn execute(connection: &mut SqliteConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}
