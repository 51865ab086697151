//! Redis: the raw commands and another library beside ours, all against one server.

use std::sync::Arc;

use anyhow::Context as _;
use distlock_core::SystemClock;
use distlock_harness::servers::redis::RedisServer;
use distlock_redis::{Redis, RedisConfig};
use distlock_report::{Arm, LockerSubject, Options, Report, Subject, Workload, measure};

use crate::{raw_redis::RawRedis, rslock::Rslock};

/// The server that everything is measured against.
#[derive(Debug)]
pub(crate) enum Server {
    /// Somebody else's.
    Given(String),
    /// Our own, without persistence, which would cost everybody the same.
    Private(RedisServer),
}

impl Server {
    pub(crate) fn new(url: Option<String>) -> anyhow::Result<Self> {
        Ok(match url {
            Some(url) => Self::Given(url),
            None => Self::Private(RedisServer::with(&["appendonly no"])?),
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Given(url) => url.clone(),
            Self::Private(server) => server.url(),
        }
    }
}

pub(crate) async fn run(
    workload: Workload,
    options: Options,
    server: &Server,
) -> anyhow::Result<Report> {
    options.callers(workload)?;
    let url = server.url();
    let raw = RawRedis::connect(&url).await.context("raw")?;
    let mut arms = vec![];
    if workload == Workload::Handoff {
        // What one trip to the server takes, for comparison: it has no lock in it.
        arms.push(Arm::new("redis-ping", Ping(raw.clone())));
    } else {
        arms.push(Arm::new("redis-raw", raw.clone()));
        arms.push(Arm::new("rslock", Rslock::connect(&url)?));
    }
    let store = open(&url).await?;
    let subject = LockerSubject::new(store.lock());
    let locker = subject.locker().clone();
    locker.ready().await?;
    arms.push(Arm::new("distlock-redis", subject));
    let report = measure(&arms, workload, &options).await?;
    locker.close().await;
    Ok(report)
}

/// Our store, opened directly, because it tells how many commands it has sent.
pub(crate) async fn open(url: &str) -> distlock_core::Result<Redis> {
    Redis::open(RedisConfig::from_url(url)?, Arc::new(SystemClock)).await
}

/// One trip to the server and back.
#[derive(Debug)]
struct Ping(RawRedis);

impl Subject for Ping {
    type Held = ();
    type Error = ::redis::RedisError;

    async fn acquire(&self, _name: &str) -> Result<(), ::redis::RedisError> {
        self.0.ping().await
    }

    async fn release(&self, (): ()) -> Result<(), ::redis::RedisError> {
        Ok(())
    }
}
