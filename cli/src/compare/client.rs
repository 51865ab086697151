//! What a client costs by itself: bytes on the wire, and the memory of a process that does nothing else.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock::Target;
use distlock_report::{Arm, LockerSubject, Workload, compare::Measure};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{
    Run,
    rounds::{Turn, count, pause, workload_turn},
    stores::{Candidate, Server, zookeeper_url},
};
use crate::exit::Outcome;

/// Callers of the process whose memory is looked at.
const CALLERS: u32 = 64;

impl Run {
    /// Bytes per cycle, for servers of ours: their clients are led through a counter.
    pub(super) async fn traffic(&mut self) -> Outcome<()> {
        self.progress.part("counting bytes");
        let time = self.plan.time;
        self.interleave("traffic", 1, time, |store, _| {
            let (address, url) = reached(store)?;
            Some(async move {
                traffic(address, url, time)
                    .await
                    .unwrap_or_else(|error| Turn::failed(format!("{error:#}")))
            })
        })
        .await
    }

    /// Peak memory of a process with many callers.
    pub(super) async fn memory(&mut self) -> Outcome<()> {
        self.progress.part("measuring a process of its own");
        let time = self.plan.time.max(Duration::from_millis(500));
        let key = format!("process-{CALLERS}");
        self.interleave(&key, 1, time + Duration::from_secs(10), |store, _| {
            let url = store.target.reveal_url();
            Some(async move {
                memory(&url, time)
                    .await
                    .unwrap_or_else(|error| Turn::failed(error.to_string()))
            })
        })
        .await
    }
}

/// A URL with a given port in it.
type Led = Box<dyn Fn(u16) -> String>;

/// Where a server of ours listens, and its URL with another port in it.
fn reached(store: &Candidate) -> Option<(SocketAddr, Led)> {
    let through = |address: SocketAddr, url: String| {
        let own = address.to_string();
        let led: Led = Box::new(move |port| url.replace(&own, &format!("127.0.0.1:{port}")));
        Some((address, led))
    };
    match store.server.as_ref()? {
        Server::Redis(it) => through(it.address(), it.url()),
        Server::MySql(it) => through(it.address(), it.url()),
        Server::Postgres(it) => through(it.address(), it.url()),
        Server::ZooKeeper(it) => {
            let address = it.address(0);
            through(address, zookeeper_url(&address.to_string()))
        }
    }
}

async fn traffic(server: SocketAddr, url: Led, time: Duration) -> anyhow::Result<Turn> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let bytes = Arc::new(AtomicU64::new(0));
    let mut forwarding = JoinSet::new();
    forwarding.spawn(forward(listener, server, Arc::clone(&bytes)));
    let store = distlock::open(Target::new(url(port))).await?;
    let subject = LockerSubject::new(store.lock());
    let locker = subject.locker().clone();
    let arm = Arm::new("traffic", subject);
    // Connections are made, statements prepared.
    workload_turn(
        &arm,
        Workload::Uncontended,
        1,
        0,
        Duration::from_millis(1),
        time / 4,
    )
    .await;
    let before = bytes.load(Ordering::Relaxed);
    let turn = workload_turn(
        &arm,
        Workload::Uncontended,
        1,
        0,
        Duration::from_millis(1),
        time,
    )
    .await;
    let moved = bytes.load(Ordering::Relaxed).saturating_sub(before);
    locker.close().await;
    store.close().await;
    forwarding.shutdown().await;
    Ok(Turn {
        values: turn
            .sample
            .as_ref()
            .filter(|sample| sample.cycles() > 0 && turn.error.is_none())
            .map(|sample| (Measure::Bytes, count(moved) / count(sample.cycles())))
            .into_iter()
            .collect(),
        ..Turn::default()
    })
}

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

/// A process of this very program with many callers, watched from outside.
async fn memory(url: &str, time: Duration) -> std::io::Result<Turn> {
    let mut process = tokio::process::Command::new(std::env::current_exe()?)
        .args(["bench", "--workload", "independent", "--rounds", "1"])
        .args(["--concurrency", &CALLERS.to_string()])
        .args(["--seconds", &time.as_secs_f64().to_string()])
        // Not as a flag: it may hold a secret.
        .env("DISTLOCK_BACKEND", url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let status = process
        .id()
        .map(|id| format!("/proc/{id}/status"))
        .unwrap_or_default();
    let mut peak = 0.0_f64;
    loop {
        if let Some(kib) = peak_of(&status) {
            peak = peak.max(kib);
        }
        match process.try_wait()? {
            Some(ended) if ended.success() => break,
            Some(ended) => return Ok(Turn::failed(format!("the process failed: {ended}"))),
            None => pause(Duration::from_millis(20)).await,
        }
    }
    Ok(Turn {
        values: vec![(Measure::Memory, peak)],
        ..Turn::default()
    })
}

/// The most that a process had resident so far, in KiB.
fn peak_of(status: &str) -> Option<f64> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
