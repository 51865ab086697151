//! The line of processes that wait, and tables of the version before.

use std::sync::Arc;

use distlock_core::{Locker, SystemClock, Verdict};
use distlock_harness::servers::mysql::Product;
use distlock_sql::{MySql, ServerConfig};

use crate::{
    lines::{a_lock_passes_on, doctor, no_place_stays},
    locker, on_both, start,
};

on_both! {
    no_place_is_left => left;
    tables_of_the_version_before => before;
}

async fn left(product: Product) {
    let server = start(product);
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let places = async || {
        let count = server.sql("SELECT COUNT(*) FROM distributed_line");
        count.unwrap().parse().unwrap()
    };
    let die = async || {
        server
            .sql(
                "INSERT INTO distributed_line SELECT lock_name, -1, 1, expires_at - 5500000 \
                 FROM distributed_lock WHERE lock_name = 'a'",
            )
            .unwrap();
    };
    no_place_stays(&holder, &waiter, places, die).await;
}

/// Programs that know no line, and those that may not make one, wait beside those that do.
async fn before(product: Product) {
    let server = start(product);
    let url = server.url();
    let new = locker(&url).await;
    for number in 0..500 {
        let held = new.lock(format!("row {number}")).acquire().await.unwrap();
        assert!(held.release().await.is_clean());
    }
    server.sql("DROP TABLE distributed_line").unwrap();
    let config = ServerConfig::from_url(&url).unwrap();
    let status = async || {
        let status = MySql::status(config.clone(), Arc::new(SystemClock)).await;
        let status = status.unwrap();
        (status.version, status.migrations.len())
    };
    assert_eq!(status().await, (1, 1));
    let old: Locker = locker(&format!("{url}&migrate=false")).await;
    a_lock_passes_on(&new, &old, "without a line").await;
    assert_eq!(doctor(&old).await, Verdict::Warn);
    let migrated = MySql::migrate(config.clone(), Arc::new(SystemClock)).await;
    assert_eq!(migrated.unwrap().version, 1);
    assert_eq!(status().await, (2, 0));
    a_lock_passes_on(&old, &new, "with one").await;
    assert_eq!(doctor(&old).await, Verdict::Pass);
    // Opening makes it as well, where that is allowed.
    server.sql("DROP TABLE distributed_line").unwrap();
    let newest = locker(&url).await;
    assert_eq!(status().await, (2, 0));
    a_lock_passes_on(&old, &newest, "with one again").await;
}
