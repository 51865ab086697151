//! The lock server: its stream and its unary calls, an agent of Redis, and what they cost beside
//! raw Redis commands and empty calls.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use distlock_core::{AcquireRequest, Attempt, DistLock, HolderLabel, LockName, OwnerId, Ttl};
use distlock_harness::servers::lock_server::LockServer;
use distlock_report::{Arm, LockerSubject, Options, Report, Subject, Workload, measure};
use distlock_wire::v1::{self, acquire_answer, lock_service_client::LockServiceClient};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tonic::{Status, transport::Channel};
use uuid::Uuid;

use crate::peers::{
    echo::{self, EchoPair, EchoServer, EchoTurn},
    raw_redis::RawRedis,
    redis,
};

/// The TTL and the longest wait of a unary call, in microseconds.
const TTL_US: u64 = 10_000_000;

/// The longest lease: idle locks stay held for the whole run.
pub(super) const MAX_LEASE: Duration = Duration::from_secs(24 * 3600);

/// Starts a server with locks in its memory. The function blocks.
pub(super) fn start() -> anyhow::Result<LockServer> {
    LockServer::in_memory(MAX_LEASE)
}

/// Measures all arms. Every server is a private one.
pub(super) async fn run(workload: Workload, options: Options) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let empty = EchoServer::start()?;
    let pair = EchoPair(empty.connect().await?);
    let server = start()?;
    let redis = redis::start_private(None)?;
    let agent = LockServer::agent(redis.url(), MAX_LEASE)?;
    let beside = redis::open(redis.url()).await?;
    let mut arms = Vec::new();
    if matches!(workload, Workload::Contended | Workload::Handoff) {
        let turn = Arc::default();
        arms.push(Arm::new("grpc-echo", EchoTurn { pair, turn }));
    } else {
        let raw = RawRedis::connect(redis.url()).await.context("raw")?;
        arms.push(Arm::new("redis-raw", raw));
        arms.push(Arm::new("grpc-echo", pair));
        arms.push(Arm::new(
            "distlock-redis",
            LockerSubject::new(beside.lock()),
        ));
    }
    arms.push(Arm::new(
        "server-unary",
        Unary::connect(&server.url()).await?,
    ));
    for (name, url) in [("server", server.url()), ("agent", agent.url())] {
        let subject = LockerSubject::new(distlock::open(&*url).await?.backend());
        subject.locker().ready().await?;
        arms.push(Arm::new(name, subject));
    }
    let report = measure(&arms, workload, &options).await?;
    ensure!(!report.has_errors(), "cycles failed: {report}");
    Ok(report)
}

/// The unary calls of a generated client.
#[derive(Clone, Debug)]
struct Unary(LockServiceClient<Channel>);

impl Unary {
    async fn connect(url: &str) -> anyhow::Result<Self> {
        Ok(Self(connect(url).await?))
    }
}

/// The generated client of a server at this URL.
pub(super) async fn connect(url: &str) -> anyhow::Result<LockServiceClient<Channel>> {
    echo::connect(&url.replace("distlock://", "http://")).await
}

impl Subject for Unary {
    type Held = v1::Lease;
    type Error = Status;

    async fn acquire(&self, name: &str) -> Result<v1::Lease, Status> {
        let owner = Uuid::new_v4().as_bytes().to_vec();
        let request = v1::AcquireLock {
            name: name.to_owned(),
            owner: owner.clone(),
            ttl_us: TTL_US,
            holder: "unary".to_owned(),
            meta: None,
            in_order: false,
        };
        let call = v1::AcquireCall {
            request: Some(request),
            wait_us: TTL_US,
        };
        let answer = self.0.clone().acquire(call).await?.into_inner().answer;
        let Some(acquire_answer::Answer::Granted(grant)) = answer else {
            return Err(Status::aborted("the lock is busy"));
        };
        Ok(v1::Lease {
            name: name.to_owned(),
            owner,
            token: Some(grant.token),
            nonce: None,
        })
    }

    async fn release(&self, lease: v1::Lease) -> Result<(), Status> {
        let release = v1::ReleaseLease { lease: Some(lease) };
        match self.0.clone().release(release).await?.into_inner().released {
            true => Ok(()),
            false => Err(Status::aborted("the lock was not held")),
        }
    }
}

/// Measures cycles beside few and beside many held locks, with names of 32 bytes, in turns on two
/// servers. The memory of both is that before the cycles.
pub(super) async fn run_held(
    counts: [u32; 2],
    options: &Options,
) -> anyhow::Result<([u64; 2], Report)> {
    let mut servers = Vec::new();
    let mut arms = Vec::new();
    for count in counts {
        let server = start()?;
        let store = distlock::open(&*server.url()).await?;
        hold(&*store.backend(), 0..count).await?;
        store.close().await;
        let subject = LockerSubject::new(distlock::open(&*server.url()).await?.backend());
        subject.locker().ready().await?;
        arms.push(Arm::new(format!("{count} held"), subject));
        servers.push(server);
    }
    let resident = [resident_bytes(&servers[0])?, resident_bytes(&servers[1])?];
    let report = measure(&arms, Workload::Independent, options).await?;
    ensure!(!report.has_errors(), "cycles failed: {report}");
    Ok((resident, report))
}

/// The memory of a server's process.
pub(super) fn resident_bytes(server: &LockServer) -> anyhow::Result<u64> {
    let id = server.id().context("the server runs")?;
    let status = procfs::process::Process::new(id.try_into()?)?.status()?;
    Ok(status.vmrss.context("its memory")? * 1024)
}

/// The name of a held lock, of 32 bytes.
pub(super) fn name(number: u32) -> String {
    format!("{number:032}")
}

/// Takes these locks, which nobody releases.
pub(super) async fn hold(lock: &dyn DistLock, numbers: std::ops::Range<u32>) -> anyhow::Result<()> {
    let ttl = Ttl::new(MAX_LEASE)?;
    let holder = HolderLabel::new("held")?;
    let requests = numbers.map(|number| {
        let name = LockName::new(name(number));
        name.map(|name| AcquireRequest::new(name, OwnerId::new(), ttl, holder.clone()))
    });
    stream::iter(requests)
        .map(async |request| {
            let attempt = lock.try_acquire(&request?).await?;
            ensure!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
            anyhow::Ok(())
        })
        .buffer_unordered(512)
        .try_collect()
        .await
}
