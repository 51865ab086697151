//! Tests on a real PostgreSQL server.

#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]

#[path = "../common/batches.rs"]
mod batches;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod failover;
mod fake_servers;
mod faults;
mod fence;
#[path = "../common/fake_servers.rs"]
mod garbage;
mod hosts;
mod many_tasks;
mod open;
mod pooler;
mod schema;
#[path = "../common/servers.rs"]
mod servers;
mod store_queue;
#[path = "../common/store_queue.rs"]
mod store_queue_cases;
#[cfg(feature = "tls")]
mod tls;
mod waiting;

use std::{sync::Arc, time::Duration};

use common::{
    a_hand_over_takes_one_statement, a_hint_of_another_process_becomes_that_of_several, lease,
    request, take,
};
use distlock_core::{Locker, OwnerId, Result, SystemClock};
use distlock_harness::servers::postgres::PostgresServer;
use distlock_sql::{Postgres, ServerConfig};
use servers::{LONG, Polls, SOON, a_release_keeps_the_token, hold, within};

fn config(url: &str) -> ServerConfig {
    ServerConfig::from_url(url).unwrap()
}

async fn try_open(url: &str) -> Result<Postgres> {
    Postgres::open(config(url), Arc::new(SystemClock)).await
}

async fn open(url: &str) -> Postgres {
    try_open(url).await.unwrap()
}

/// A locker whose keeper thread has connected.
async fn locker(url: &str) -> Locker {
    let locker = Locker::new(open(url).await.lock());
    locker.ready().await.unwrap();
    locker
}
