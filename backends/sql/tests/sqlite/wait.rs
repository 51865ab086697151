//! Waiting for a lock that another owner holds.

use distlock_core::Contender;

use super::*;

/// Waits until the contender has the lock.
async fn win(contender: &mut Box<dyn Contender>) -> Grant {
    loop {
        if let Attempt::Acquired(grant) = contender.attempt().await.unwrap() {
            return grant;
        }
        contender.wait(Duration::from_secs(20)).await;
    }
}

#[tokio::test]
async fn a_release_in_this_process_wakes_without_a_poll() {
    let place = Place::new();
    // The clock stands still, so that no poll becomes due.
    let (_, shared) = manual();
    let store = place.open_at(Arc::clone(&shared)).await;
    // Another store on the same file releases the lock.
    let releasing = place.open_at(shared).await.lock();
    let first = request("a");
    let grant = take(&releasing, &first).await;
    let lock = store.lock();
    let mut contender = lock.contend(&request("a")).await.unwrap();
    let waiting = tokio::spawn(async move { win(&mut contender).await });
    until("it waits", async || waits(&lock, &store).await).await;
    releasing.release(&lease(&first, &grant)).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    assert!(next.unwrap().unwrap().token > grant.token);
}

/// Whether the contender only waits now: no statement is sent during this function, except those
/// that read the lock and its queue.
async fn waits(lock: &Arc<dyn DistLock>, store: &Sqlite) -> bool {
    let before = store.statements();
    lock.inspect(&name("a")).await.unwrap();
    tokio::task::yield_now().await;
    store.statements() == before + 2
}

#[tokio::test]
async fn a_release_by_another_process_is_noticed() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let grant = take(&lock, &request("a")).await;
    let mut contender = lock.contend(&request("a")).await.unwrap();
    assert!(contender.attempt().await.unwrap().acquired().is_none());
    let waiting = tokio::spawn(async move { win(&mut contender).await });
    // The row has a hint, so that a release in another process would report the waiter.
    let mut raw = place.raw().await;
    until("the row is marked", async || {
        let wanted: i64 =
            sqlx::query_scalar("SELECT hint_id FROM distributed_lock WHERE hint_until > 0")
                .fetch_optional(&mut raw)
                .await
                .unwrap()
                .unwrap_or(0);
        wanted != 0
    })
    .await;
    place
        .sql("UPDATE distributed_lock SET holder_id = NULL")
        .await;
    let next = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    assert!(next.unwrap().unwrap().token > grant.token);
}

#[tokio::test]
async fn a_hint_becomes_that_of_several_processes() {
    let place = Place::new();
    let lock = place.open().await.lock();
    common::a_hint_of_another_process_becomes_that_of_several(
        &*lock,
        async |mark| {
            let marked = format!(
                "UPDATE distributed_lock SET hint_id = {mark}, hint_until = expires_at + \
                    3600000000"
            );
            place.sql(&marked).await;
        },
        async || {
            let mark = sqlx::query_scalar("SELECT hint_id FROM distributed_lock");
            mark.fetch_one(&mut place.raw().await).await.unwrap()
        },
    )
    .await;
}

#[tokio::test]
async fn the_end_of_a_lease_is_noticed() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let mut short = request("a");
    short.ttl = Ttl::from_millis(300).unwrap();
    let grant = take(&lock, &short).await;
    let mut contender = lock.contend(&request("a")).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(20), win(&mut contender)).await;
    assert!(next.unwrap().token > grant.token);
}

#[tokio::test]
async fn any_number_of_waiters_costs_at_most_twenty_statements_a_second() {
    let spent = statements_of_waiters(&Place::new()).await;
    assert!(spent > 0, "nobody polled");
}

/// A file without a write-ahead log cannot be watched, so its waiters poll more often.
#[tokio::test]
async fn any_number_of_waiters_that_poll_costs_at_most_twenty_statements_a_second() {
    let place = Place::new();
    close(&place.open().await).await;
    place.sql("PRAGMA journal_mode = DELETE").await;
    let spent = statements_of_waiters(&place).await;
    assert!(spent >= 20 + REAPED, "{spent} statements: nobody polled");
}

/// The reaper of each of two handles may run during a test, with three statements.
const REAPED: u64 = 6;

/// The number of statements of a process whose tasks wait for many locks. Checks that they are no
/// more than twenty a second.
async fn statements_of_waiters(place: &Place) -> u64 {
    let store = place.open().await;
    let other = place.open().await;
    let mut contenders = Vec::new();
    for id in 0..100 {
        let text = format!("n{}", id % 40);
        let holder = request(&text);
        // The locks are held for much longer than the test waits. The first request for each name
        // is granted.
        store.lock().try_acquire(&holder).await.unwrap();
        let lock = if id % 2 == 0 {
            store.lock()
        } else {
            other.lock()
        };
        let mut contender = lock.contend(&request(&text)).await.unwrap();
        assert!(contender.attempt().await.unwrap().acquired().is_none());
        contenders.push(contender);
    }
    let statements = || store.statements() + other.statements();
    let before = statements();
    let started = Instant::now();
    let waiting: Vec<_> = contenders
        .into_iter()
        .map(|mut contender| {
            tokio::spawn(async move {
                contender.wait(Duration::from_secs(3)).await;
                contender.leave().await
            })
        })
        .collect();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
    let spent = statements() - before;
    let budget = 20.0 * started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let waited = spent.saturating_sub(REAPED) as f64;
    assert!(waited <= budget, "{waited} statements, {budget} allowed");
    spent
}

#[tokio::test]
async fn without_waiters_no_poll_is_sent() {
    let place = Place::new();
    let (clock, shared) = manual();
    let store = place.open_at(shared).await;
    let lock = store.lock();
    take(&lock, &request("a")).await;
    let mut contender = lock.contend(&request("a")).await.unwrap();
    contender.attempt().await.unwrap();
    let waiting = tokio::spawn(async move {
        contender.wait(Duration::from_millis(500)).await;
    });
    // The reaper is one of the sleepers.
    until("it polls", async || clock.sleepers() >= 3).await;
    while !waiting.is_finished() {
        clock.advance(Duration::from_millis(60));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    until("the poller stops", async || {
        clock.advance(Duration::from_millis(60));
        clock.sleepers() <= 1
    })
    .await;
}

#[tokio::test]
async fn a_wake_up_that_nobody_received_is_kept() {
    let place = Place::new();
    let (_, shared) = manual();
    let lock = place.open_at(shared).await.lock();
    let first = request("a");
    let grant = take(&lock, &first).await;
    let mut contender = lock.contend(&request("a")).await.unwrap();
    assert!(contender.attempt().await.unwrap().acquired().is_none());
    lock.release(&lease(&first, &grant)).await.unwrap();
    tokio::time::timeout(
        Duration::from_secs(20),
        contender.wait(Duration::from_secs(100)),
    )
    .await
    .unwrap();
    assert!(contender.attempt().await.unwrap().acquired().is_some());
}

#[test]
fn a_poller_whose_runtime_has_ended_is_replaced() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (gone, here) = (runtime(), runtime());
    let place = Place::new();
    let (lock, grant) = gone.block_on(async {
        let lock = place.open().await.lock();
        let grant = take(&lock, &request("a")).await;
        let mut contender = lock.contend(&request("a")).await.unwrap();
        contender.wait(Duration::from_millis(10)).await;
        (lock, grant)
    });
    drop(gone);
    here.block_on(async {
        let mut contender = lock.contend(&request("a")).await.unwrap();
        let waiting = tokio::spawn(async move { win(&mut contender).await });
        place
            .sql("UPDATE distributed_lock SET holder_id = NULL")
            .await;
        let next = tokio::time::timeout(Duration::from_secs(20), waiting).await;
        assert!(next.unwrap().unwrap().token > grant.token);
    });
}

/// A runtime that is not driven may be driven again later, or never.
#[test]
fn a_poller_whose_runtime_is_not_driven_is_replaced() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (still, here) = (runtime(), runtime());
    let place = Place::new();
    let lock = still.block_on(async {
        let lock = place.open().await.lock();
        take(&lock, &common::request("a", Duration::from_secs(300))).await;
        let mut contender = lock.contend(&request("a")).await.unwrap();
        contender.wait(Duration::from_millis(10)).await;
        lock
    });
    here.block_on(async {
        let mut contender = lock.contend(&request("a")).await.unwrap();
        assert!(contender.attempt().await.unwrap().acquired().is_none());
        place
            .sql("UPDATE distributed_lock SET holder_id = NULL")
            .await;
        let woken = contender.wait(Duration::from_secs(250));
        let woken = tokio::time::timeout(Duration::from_secs(60), woken).await;
        woken.expect("somebody polls");
        assert!(contender.attempt().await.unwrap().acquired().is_some());
    });
    drop(still);
}
