//! MySQL and MariaDB, on real servers.
#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod counts;
mod crowds;
mod failover;
mod faults;
mod fence;
mod open;
#[cfg(feature = "tls")]
mod tls;

use std::{future::Future, sync::Arc, time::Duration};

use distlock_core::{Guard, KvLock, Locker, Result, Store, SystemClock};
use distlock_harness::servers::mysql::{MySqlServer, Product};
use distlock_sql::{MySql, ServerConfig};

/// What does not depend on a lease happens within this.
const SOON: Duration = Duration::from_secs(60);

/// A lease that does not end within any test.
const LONG: Duration = Duration::from_secs(120);

/// Runs a test on both products, each with a server of its own.
macro_rules! on_both {
    ($($name:ident => $test:ident;)*) => {$(
        mod $name {
            use distlock_harness::servers::mysql::Product;

            #[tokio::test(flavor = "multi_thread")]
            async fn mariadb() {
                super::$test(Product::MariaDb).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn mysql() {
                super::$test(Product::MySql).await;
            }
        }
    )*};
}
pub(crate) use on_both;

fn start(product: Product) -> MySqlServer {
    MySqlServer::start(product).expect("starts")
}

async fn mysql(url: &str) -> Result<MySql> {
    MySql::open(ServerConfig::from_url(url)?, Arc::new(SystemClock)).await
}

async fn open(url: String) -> Result<Store> {
    let mysql = mysql(&url).await?;
    Ok(Store::new(mysql.lock(), mysql.records()))
}

async fn over_records(url: String) -> Result<Store> {
    let records = open(url).await?.records();
    Ok(Store::new(
        Arc::new(KvLock::new(Arc::clone(&records))?),
        records,
    ))
}

/// A locker whose renewal thread is connected.
async fn locker(url: &str) -> Locker {
    let locker = Locker::new(mysql(url).await.expect("opens").lock());
    locker.ready().await.expect("connects");
    locker
}

async fn hold(locker: &Locker, name: &str, ttl: Duration) -> Guard {
    locker.lock(name).ttl(ttl).acquire().await.expect("granted")
}

/// Waits for `future`, and fails with `what` when it takes too long.
async fn within<T>(time: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {time:?}"))
}
