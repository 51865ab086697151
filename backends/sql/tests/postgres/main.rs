//! A real PostgreSQL server.

#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod failover;
mod faults;
mod fence;
mod open;
mod pooler;
mod storm;
#[cfg(feature = "tls")]
mod tls;
mod waiting;

use std::{future::Future, sync::Arc, time::Duration};

use common::{lease, passes_on_in_one_statement, request, take};
use distlock_core::{Guard, Locker, OwnerId, Result, SystemClock};
use distlock_harness::servers::postgres::PostgresServer;
use distlock_sql::{Postgres, ServerConfig};

/// What does not depend on a lease happens within this.
const SOON: Duration = Duration::from_secs(60);

/// Long enough that no lease ends by itself in a test.
const LONG: Duration = Duration::from_secs(120);

fn config(url: &str) -> ServerConfig {
    ServerConfig::from_url(url).unwrap()
}

async fn try_open(url: &str) -> Result<Postgres> {
    Postgres::open(config(url), Arc::new(SystemClock)).await
}

async fn open(url: &str) -> Postgres {
    try_open(url).await.unwrap()
}

/// A locker whose renewal thread is connected.
async fn locker(url: &str) -> Locker {
    let locker = Locker::new(open(url).await.lock());
    locker.ready().await.unwrap();
    locker
}

async fn hold(locker: &Locker, name: &str, ttl: Duration) -> Guard {
    locker.lock(name).ttl(ttl).acquire().await.unwrap()
}

/// Waits for `future`, and fails with `what` when it takes too long.
async fn within<T>(time: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {time:?}"))
}
