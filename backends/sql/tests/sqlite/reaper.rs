//! The reaper removes idle rows and no other rows.

use distlock_core::{Expect, RecordKey, Written};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

async fn rows(place: &Place, table: &str) -> i64 {
    let mut raw = place.raw().await;
    let sql = format!("SELECT count(*) FROM {table}");
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(&mut raw)
        .await
        .unwrap()
}

#[tokio::test]
async fn idle_rows_are_removed_and_used_rows_stay() {
    let place = Place::new();
    let (clock, shared) = manual();
    let store = place.open_at(shared).await;
    let lock = store.lock();
    // There are released, expired and recently renewed locks. The released locks fill more than one
    // page.
    for text in ["released", "expired"] {
        let request = request(text);
        let grant = take(&lock, &request).await;
        if text == "released" {
            lock.release(&lease(&request, &grant)).await.unwrap();
        }
    }
    let many: Vec<_> = (0..2500).map(|id| request(&format!("many{id}"))).collect();
    let grants = join_all(many.iter().map(|request| take(&lock, request))).await;
    let leases: Vec<_> = many
        .iter()
        .zip(&grants)
        .map(|(request, grant)| lease(request, grant))
        .collect();
    join_all(leases.iter().map(|lease| lock.release(lease))).await;

    clock.advance(HOUR - Duration::from_secs(1));
    reap(&store, &clock).await;
    assert_eq!(rows(&place, "distributed_lock").await, 2502);
    let late = request("late");
    take(&lock, &late).await;
    clock.advance(Duration::from_secs(2));
    reap(&store, &clock).await;
    // The expired lock has been idle since the end of its lease.
    assert_eq!(rows(&place, "distributed_lock").await, 2);
    clock.advance(Duration::from_secs(30));
    reap(&store, &clock).await;
    assert_eq!(rows(&place, "distributed_lock").await, 1);
    assert!(take(&lock, &many[0]).await.token > grants[0].token);
}

/// Reaps, and moves the clock a little for the pauses between pages. The background reaper of the
/// store may remove some of the rows.
async fn reap(store: &Sqlite, clock: &ManualClock) {
    let store = store.clone();
    let reaping = tokio::spawn(async move { store.reap().await.unwrap() });
    while !reaping.is_finished() {
        clock.advance(Duration::from_millis(1));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    reaping.await.unwrap();
}

#[tokio::test]
async fn a_row_with_a_token_ahead_of_the_clock_is_not_removed() {
    let place = Place::new();
    let (clock, shared) = manual();
    let store = place.open_at(shared).await;
    let lock = store.lock();
    let mine = request("a");
    let grant = take(&lock, &mine).await;
    lock.release(&lease(&mine, &grant)).await.unwrap();
    // This is the state after the wall clock was set back by three hours.
    let ahead = i64::try_from(3 * HOUR.as_micros()).unwrap();
    place
        .sql(&format!(
            "UPDATE distributed_lock SET token = token + {ahead}"
        ))
        .await;
    clock.advance(2 * HOUR);
    reap(&store, &clock).await;
    assert_eq!(rows(&place, "distributed_lock").await, 1);
    let next = take(&lock, &request("a")).await;
    assert_eq!(
        next.token.get(),
        grant.token.get() + ahead.unsigned_abs() + 1
    );
    clock.advance(3 * HOUR);
    reap(&store, &clock).await;
    assert_eq!(rows(&place, "distributed_lock").await, 0);
    assert!(take(&lock, &request("a")).await.token > next.token);
}

#[tokio::test]
async fn rows_of_an_earlier_boot_are_removed_when_this_boot_is_old_enough() {
    let place = Place::new();
    let (clock, shared) = manual();
    let store = place.open_at(shared).await;
    take(&store.lock(), &request("a")).await;
    place
        .sql("UPDATE distributed_lock SET boot_id = randomblob(16), expires_at = 9000000000000000")
        .await;
    // A manual clock starts one hour after boot, and `reap_after` is one hour too.
    clock.advance(Duration::from_millis(1));
    reap(&store, &clock).await;
    assert_eq!(rows(&place, "distributed_lock").await, 0);
}

#[tokio::test]
async fn tombstones_are_removed_and_records_stay() {
    let place = Place::new();
    let (clock, shared) = manual();
    let store = place.open_at(shared).await;
    let records = store.records();
    let (gone, kept) = (
        RecordKey::new("gone").unwrap(),
        RecordKey::new("kept").unwrap(),
    );
    let Written::Stored(version) = records.put(&gone, b"1", Expect::Absent).await.unwrap() else {
        panic!("not stored")
    };
    records.put(&kept, b"1", Expect::Absent).await.unwrap();
    records.delete(&gone, version).await.unwrap();
    assert_eq!(rows(&place, "distributed_record").await, 2);
    clock.advance(2 * HOUR);
    reap(&store, &clock).await;
    assert_eq!(rows(&place, "distributed_record").await, 1);
    assert!(records.get(&kept).await.unwrap().is_some());
    let Written::Stored(next) = records.put(&gone, b"2", Expect::Absent).await.unwrap() else {
        panic!("not stored")
    };
    assert!(next > version);
}

#[tokio::test]
async fn the_background_reaper_runs_once_for_all_handles() {
    let place = Place::new();
    let (clock, shared) = manual();
    let stores = [
        place.open_at(Arc::clone(&shared)).await,
        place.open_at(Arc::clone(&shared)).await,
        place.open_at(shared).await,
    ];
    let lock = stores[0].lock();
    let mine = request("a");
    let grant = take(&lock, &mine).await;
    lock.release(&lease(&mine, &grant)).await.unwrap();
    until("the idle row is removed", async || {
        clock.advance(Duration::from_secs(60));
        rows(&place, "distributed_lock").await == 0
    })
    .await;
}

/// A handle is opened on one runtime and reopened on another runtime, in the way of a keeper
/// thread. The reopened handle continues to reap after the first runtime has ended.
#[test]
fn reaping_continues_after_the_runtime_that_opened_the_file_has_ended() {
    let place = Place::new();
    let mut config = place.config();
    config.reap_after = Duration::from_secs(1);
    let first = tokio::runtime::Runtime::new().unwrap();
    let opened = first.block_on(Sqlite::open(config, Arc::new(SystemClock)));
    let (lock, records) = opened.map(|it| (it.lock(), it.records())).unwrap();
    first.shutdown_background();

    let second = tokio::runtime::Runtime::new().unwrap();
    second.block_on(async {
        let idle = async |what: &str| {
            place
                .sql(
                    "INSERT INTO distributed_lock (lock_name, token, boot_id, expires_at, \
                        acquired_at, holder)
                     VALUES ('a', 1, zeroblob(16), 0, 0, '')",
                )
                .await;
            until(what, async || rows(&place, "distributed_lock").await == 0).await;
        };
        let renewing = lock.reopen().await.unwrap();
        idle("a handle for locks reaps").await;
        renewing.close().await;
        let _renewing = records.reopen().await.unwrap();
        idle("a handle for records reaps").await;
    });
}
