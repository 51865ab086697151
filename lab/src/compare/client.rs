//! Measures the costs of a client itself: bytes on the wire, and the memory of a process that only
//! takes and releases locks.
//!
//! Counts the bytes between a client and a server: the client connects through a counting proxy.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock::{Store, Target};
use distlock_cli::program::{self, Outcome};
use distlock_report::{Arm, LockerSubject, Workload, compare::Measure};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    plan::{ComparisonRun, pause},
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
            Some(async move {
                traffic_round(wire, time)
                    .await
                    .unwrap_or_else(|error| RoundResult::failed(format!("{error:#}")))
            })
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
            Some(async move {
                memory_round(&url, time)
                    .await
                    .unwrap_or_else(|error| RoundResult::failed(error.to_string()))
            })
        })
        .await
    }
}

/// Counts the bytes of one caller in one round.
async fn traffic_round(wire: CountedConnection, time: Duration) -> anyhow::Result<RoundResult> {
    let (store, counter) = wire.open().await?;
    let subject = LockerSubject::new(store.backend());
    let locker = subject.locker().clone();
    let arm = Arm::new("traffic", subject);
    // The first round opens connections and prepares statements. Its bytes are not counted.
    workload_round(
        &arm,
        Workload::Uncontended,
        1,
        0,
        Duration::from_millis(1),
        time / 4,
    )
    .await;
    let before = counter.bytes();
    let turn = workload_round(
        &arm,
        Workload::Uncontended,
        1,
        0,
        Duration::from_millis(1),
        time,
    )
    .await;
    let moved = counter.bytes().saturating_sub(before);
    locker.close().await;
    store.close().await;
    Ok(RoundResult {
        values: turn
            .sample
            .as_ref()
            .filter(|sample| sample.cycles() > 0 && turn.error.is_none())
            .map(|sample| (Measure::Bytes, as_f64(moved) / as_f64(sample.cycles())))
            .into_iter()
            .collect(),
        ..RoundResult::default()
    })
}

/// Runs many callers in a process of this very program, and reads the memory of that process.
async fn memory_round(url: &str, time: Duration) -> std::io::Result<RoundResult> {
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
        match process.try_wait()? {
            Some(ended) if ended.success() => break,
            Some(ended) => return Ok(RoundResult::failed(format!("the process failed: {ended}"))),
            None => pause(Duration::from_millis(20)).await,
        }
    }
    Ok(RoundResult {
        values: vec![(Measure::Memory, peak)],
        ..RoundResult::default()
    })
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
            // the proxy.
            Server::RedisSentinels(_) | Server::RedisCluster(_) => None,
            Server::MySql(it) => to(it.address(), it.url()),
            Server::Postgres(it) => to(it.address(), it.url()),
            Server::ZooKeeper(it) => to(it.address(0), zookeeper_url(&it.server(0))),
        }
    }

    /// Opens a client that connects through the proxy. The proxy lives as long as the returned
    /// counter.
    pub(super) async fn open(self) -> anyhow::Result<(Store, ByteCounter)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let bytes = Arc::new(AtomicU64::new(0));
        let mut forwarding = JoinSet::new();
        forwarding.spawn(forward(listener, self.server, Arc::clone(&bytes)));
        let through_counter = format!("127.0.0.1:{port}");
        let url = self.url.replace(&self.server.to_string(), &through_counter);
        let store = program::open(Target::new(url)).await?;
        let counter = ByteCounter {
            bytes,
            _forwarding: forwarding,
        };
        Ok((store, counter))
    }
}

/// The counter of a proxy, for both directions.
pub(super) struct ByteCounter {
    bytes: Arc<AtomicU64>,
    _forwarding: JoinSet<()>,
}

impl ByteCounter {
    /// The bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Accepts connections, and connects each to the server.
async fn forward(listener: TcpListener, server: SocketAddr, bytes: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let bytes = Arc::clone(&bytes);
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else {
                return;
            };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::join!(
                copy(from_client, to_server, &bytes),
                copy(from_server, to_client, &bytes)
            );
        });
    }
}

/// Copies one direction of a connection, and counts its bytes.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    bytes: &AtomicU64,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length) = from.read(&mut buffer).await {
        let Some(read) = buffer.get(..length).filter(|read| !read.is_empty()) else {
            break;
        };
        bytes.fetch_add(u64::try_from(length).unwrap_or(0), Ordering::Relaxed);
        if to.write_all(read).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
