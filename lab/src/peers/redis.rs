//! Redis: distlock, the raw commands, distlock's scripts without the rest of distlock, and another
//! library. All arms use one server.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use distlock_core::SystemClock;
use distlock_harness::servers::redis::RedisServer;
use distlock_redis::{Redis, RedisConfig};
use distlock_report::{Arm, Options, Report, Subject, Workload};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::peers::{
    raw_redis::RawRedis,
    rslock::Rslock,
    scripts_redis::{PassOn, TakeAndFree},
    target::{Target, measure_beside},
};

/// Starts a private server without persistence, because persistence would cost every arm the same
/// time. `delay` is added to each direction.
pub(crate) fn start_private(delay: Option<Duration>) -> anyhow::Result<Target> {
    let server = RedisServer::with(&["appendonly no"])?;
    let (address, url) = (server.address(), server.url());
    Target::private_server(server, address, &url, delay)
}

/// Measures the arms on the server at `url`.
pub(crate) async fn run(workload: Workload, options: Options, url: &str) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let raw = RawRedis::connect(url).await.context("raw")?;
    let mut arms = vec![];
    if workload == Workload::Handoff {
        let ping = Ping {
            server: raw.clone(),
            turn: Arc::default(),
        };
        arms.push(Arm::new("redis-ping", ping));
        arms.push(Arm::new("redis-scripts", PassOn::new(raw.clone())));
    } else {
        arms.push(Arm::new("redis-raw", raw.clone()));
        arms.push(Arm::new("redis-scripts", TakeAndFree::new(raw.clone())));
        arms.push(Arm::new("rslock", Rslock::connect(url)?));
    }
    let store = open(url).await?;
    measure_beside(arms, "distlock-redis", store.lock(), workload, &options).await
}

/// Opens distlock's store by its own type.
pub(crate) async fn open(url: &str) -> distlock_core::Result<Redis> {
    Redis::open(RedisConfig::from_url(url)?, Arc::new(SystemClock)).await
}

/// The arm of the lower bound: an acquire is one round trip to the server, and a mutex admits one
/// task at a time. No hand-over that passes through the server can be faster.
#[derive(Debug)]
struct Ping {
    server: RawRedis,
    turn: Arc<Mutex<()>>,
}

impl Subject for Ping {
    type Held = OwnedMutexGuard<()>;
    type Error = ::redis::RedisError;

    async fn acquire(&self, _name: &str) -> Result<Self::Held, ::redis::RedisError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        self.server.ping().await?;
        Ok(turn)
    }

    async fn release(&self, turn: Self::Held) -> Result<(), ::redis::RedisError> {
        drop(turn);
        Ok(())
    }
}
