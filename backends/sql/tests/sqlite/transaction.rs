//! Acquiring and releasing in one transaction. After any end of the transaction, other processes
//! can write to the file.

use distlock_core::ErrorKind;

use super::*;

/// A database of another program, without a write-ahead log.
async fn another_program(place: &Place) -> SqliteConnection {
    let mut raw = SqliteConnectOptions::new()
        .filename(&place.path)
        .create_if_missing(true)
        .connect()
        .await
        .unwrap();
    execute(&mut raw, "CREATE TABLE another_program (id INTEGER)").await;
    raw
}

/// In a database without a write-ahead log, a reader can keep a transaction from being committed.
#[tokio::test]
async fn after_a_refused_commit_other_processes_can_write() {
    let place = Place::new();
    let mut raw = another_program(&place).await;
    let (store, other) = (place.open().await, place.open().await.lock());
    let lock = store.lock();
    let leaving = request("old");
    let grant = take(&lock, &leaving).await;

    execute(&mut raw, "BEGIN; SELECT count(*) FROM distributed_lock").await;
    let (first, next) = (request("first"), request("next"));
    let released = lease(&leaving, &grant);
    let (_, (taken, freed)) = both(
        // This request is sent at once, so that the other requests form a batch.
        lock.try_acquire(&first),
        both(lock.try_acquire(&next), lock.release(&released)),
    )
    .await;
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(freed.unwrap_err().kind(), ErrorKind::Unavailable);
    execute(&mut raw, "COMMIT").await;

    take(&other, &request("a")).await;
    // Neither the acquire nor the release was carried out.
    assert_eq!(
        refused(&other, &request("old")).await.token,
        Some(grant.token)
    );
    take(&other, &next).await;
}

/// A runtime ends while a transaction is open, and its store sends no further request. The
/// transaction must be rolled back all the same.
#[test]
fn after_a_runtime_ends_in_a_transaction_other_processes_can_write() {
    let place = Place::new();
    let mine = tokio::runtime::Runtime::new().unwrap();
    let others = tokio::runtime::Runtime::new().unwrap();
    // In a database without a write-ahead log, SQLite itself waits for the write lock.
    let mut raw = others.block_on(another_program(&place));
    // The clock stands still, so that no reaper sends a statement during the test.
    let (_, clock) = manual();
    let store = mine.block_on(place.open_at(Arc::clone(&clock)));
    let lock = store.lock();
    let leaving = request("old");
    let grant = mine.block_on(take(&lock, &leaving));
    let other = others.block_on(async {
        let other = place.open_at(clock).await.lock();
        execute(&mut raw, "BEGIN IMMEDIATE").await;
        other
    });

    let before = store.statements();
    let (first, next) = (request("first"), request("next"));
    let released = lease(&leaving, &grant);
    mine.spawn(async move {
        both(
            // This request is sent at once, and fails after the file was busy for too long. Then
            // the other requests form a batch.
            lock.try_acquire(&first),
            both(lock.try_acquire(&next), lock.release(&released)),
        )
        .await
    });
    others.block_on(async {
        // The first request has one statement, and the batch has two statements.
        until("the batch is sent", async || {
            store.statements() >= before + 3
        })
        .await;
        mine.shutdown_background();
        execute(&mut raw, "ROLLBACK").await;
        // SQLite's thread may wait for the write lock until this moment.
        let begun = Instant::now() + place.config().busy_timeout;
        until("others can write", async || {
            other.try_acquire(&request("a")).await.is_ok() && Instant::now() > begun
        })
        .await;
    });
}

async fn execute(connection: &mut SqliteConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}
