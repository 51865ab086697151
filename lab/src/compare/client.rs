//! Measures the costs of a client itself: bytes on the wire, and the memory of a process that only
//! takes and releases locks. A client whose bytes are counted connects through a proxy.

use std::{net::SocketAddr, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock::{Store, Target};
use distlock_cli::program::{self, Outcome};
use distlock_harness::FaultProxy;
use distlock_report::{Arm, LockerSubject, Workload, compare::Measure};

use super::{
    plan::{ComparisonRun, Experiment, pause},
    rounds::{RoundResult, workload_round},
    stores::{Server, StoreUnderTest, zookeeper_url},
};
use crate::counts::as_f64;

/// The number of callers in the process whose memory is measured.
const CALLERS: u32 = 64;

impl ComparisonRun {
    /// Measures bytes per cycle on servers that this run started: the client connects to them
    /// through a counter.
    pub(super) async fn measure_traffic(&mut self) -> Outcome<()> {
        self.progress.begin_part("counting bytes");
        let time = self.plan.time;
        self.interleave("traffic", 1, time, |store, _| {
            let wire = CountedConnection::to_server_of(store)?;
            Some(async move { traffic_round(wire, time).await })
        })
        .await
    }

    /// Measures the peak memory of a process with many callers.
    pub(super) async fn measure_memory(&mut self) -> Outcome<()> {
        self.progress.begin_part("measuring a process of its own");
        let time = self.plan.time.max(Duration::from_millis(500));
        let key = format!("process-{CALLERS}");
        self.interleave(&key, 1, time + Duration::from_secs(10), |store, _| {
            let url = store.target.reveal_url();
            let key = &key;
            Some(async move {
                let peak = peak_memory(&url, time).await?;
                Ok(RoundResult::of(key, [(Measure::Memory, peak)]))
            })
        })
        .await
    }
}

/// Counts the bytes of one caller in one round.
async fn traffic_round(wire: CountedConnection, time: Duration) -> Result<RoundResult> {
    let (store, counter) = wire.open().await?;
    let subject = LockerSubject::new(store.backend());
    let locker = subject.locker().clone();
    let arm = Arm::new("traffic", subject);
    let caller = Experiment::new("traffic", Workload::Uncontended, 1);
    let round = |time| workload_round(&arm, &caller, 0, Duration::from_millis(1), time);
    // The first round opens connections and prepares statements. Its bytes are not counted.
    round(time / 4).await?;
    let before = counter.bytes();
    let done = round(time).await?;
    let moved = counter.bytes().saturating_sub(before);
    locker.close().await;
    store.close().await;
    let cycles = done.sample.map_or(0, |it| it.cycles());
    let bytes = (cycles > 0).then(|| (Measure::Bytes, as_f64(moved) / as_f64(cycles)));
    Ok(RoundResult::of("traffic", bytes))
}

/// Runs many callers in a process of this very program, and returns the peak memory of that process
/// in KiB.
async fn peak_memory(url: &str, time: Duration) -> Result<f64> {
    let mut process = tokio::process::Command::new(std::env::current_exe()?)
        .args(["bench", "--workload", "independent", "--rounds", "1"])
        .args(["--concurrency", &CALLERS.to_string()])
        .args(["--seconds", &time.as_secs_f64().to_string()])
        // The URL may hold a secret, and every user can read arguments, so it is passed as a
        // variable.
        .env("DISTLOCK_BACKEND", url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let id = process.id().unwrap_or_default();
    let mut peak = 0.0_f64;
    loop {
        // `VmHWM` is the peak so far. The last reading before the end is the result.
        if let Some(kib) = program::memory_kib(id, "VmHWM:") {
            peak = peak.max(as_f64(kib));
        }
        if let Some(ended) = process.try_wait()? {
            ensure!(ended.success(), "the process failed: {ended}");
            return Ok(peak);
        }
        pause(Duration::from_millis(20)).await;
    }
}

/// The server to which a counted connection leads.
pub(super) struct CountedConnection {
    server: SocketAddr,
    url: String,
}

impl CountedConnection {
    /// The server of this store; `None` for a server that this run did not start.
    pub(super) fn to_server_of(store: &StoreUnderTest) -> Option<Self> {
        let to = |server, url| Some(Self { server, url });
        match store.server.as_ref()? {
            Server::Redis(it) => to(it.address(), it.url()),
            // The servers of a group report their own addresses to clients, so clients would bypass
            // the proxy. A quorum, a ring and agents are several servers.
            Server::RedisSentinels(_)
            | Server::RedisCluster(_)
            | Server::Quorum(..)
            | Server::Ring(_) => None,
            Server::Served(it) => match &*it.servers {
                [server] => to(server.address(), server.url()),
                _ => None,
            },
            Server::MySql(it) => to(it.address(), it.url()),
            Server::Postgres(it) => to(it.address(), it.url()),
            Server::ZooKeeper(it) => to(it.address(0), zookeeper_url(&it.server(0))),
        }
    }

    /// Opens a client that connects through the returned proxy.
    pub(super) async fn open(self) -> Result<(Store, FaultProxy)> {
        let proxy = FaultProxy::start(self.server).await?;
        let (server, through) = (self.server.to_string(), proxy.address().to_string());
        let url = self.url.replace(&server, &through);
        let store = program::open(Target::new(url)).await;
        Ok((store.context("open a client through a proxy")?, proxy))
    }
}
