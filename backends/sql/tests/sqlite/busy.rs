//! Operations while other programs write to the file all the time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use distlock_core::Renewal;
use sqlx::Connection as _;

use super::*;

/// Another program writes one transaction after the other. Between two of these transactions, the
/// store can write too.
#[test]
fn a_writer_without_pauses_does_not_stop_renewals() {
    let place = Place::new();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let over = AtomicBool::new(false);
    let written = AtomicU32::new(0);
    // The clock stands still, so that a renewal does not time out on a slow machine.
    let (_, clock) = manual();
    let ours = runtime();
    let (lock, mine, grant) = ours.block_on(async {
        let lock = place.open_at(clock).await.lock();
        let mine = request("a");
        let grant = take(&lock, &mine).await;
        (lock, mine, grant)
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            runtime().block_on(async {
                let mut raw = place.raw().await;
                while !over.load(Ordering::Relaxed) {
                    let transaction = raw.begin_with("BEGIN IMMEDIATE").await.unwrap();
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    transaction.commit().await.unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        let renewed = ours.block_on(async {
            let mut renewed = Ok(());
            for _ in 0..30 {
                // The other program has written since the last renewal.
                let before = written.load(Ordering::Relaxed);
                until("they write", async || {
                    written.load(Ordering::Relaxed) > before
                })
                .await;
                let renewal = lock
                    .renew(&lease(&mine, &grant), &Renewal::plain(mine.ttl))
                    .await;
                renewed = renewed.and(renewal.map(drop));
            }
            renewed
        });
        over.store(true, Ordering::Relaxed);
        renewed.unwrap();
    });
}
