//! Measures strangers: connections that never log in must cause no call to the store, and must slow
//! down the logins of others only a little.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use distlock::{Clock as _, SystemClock};
use distlock_report::{Latencies, Sample};
use serde::Serialize;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::Semaphore, task::JoinSet};

use super::{
    client::{Client, STEP_LIMIT},
    group::{Group, SharedStore},
    load::{CONFIRMED, Pace, Players, Samples},
};
use distlock_cli::program::Progress;

/// The most connections that are being opened at the same time.
const MAX_OPENING: usize = 512;
/// The pause between two attempts to connect after the strangers.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The options of one flood.
#[derive(Clone, Debug)]
pub(crate) struct Flood {
    /// The number of connections of strangers.
    pub(crate) connects: u32,
    /// The number of accounts that log in at the same time.
    pub(crate) callers: u32,
    /// The logins per second of all accounts together.
    pub(crate) rate: f64,
    /// The time in which logins are measured with strangers. Logins without strangers are measured
    /// for the same time.
    pub(crate) time: Duration,
}

/// The figures of one flood.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FloodReport {
    workload: &'static str,
    backend: &'static str,
    connects: u32,
    /// Calls to the store while strangers connected and no account logged in.
    pub(crate) store_calls: u64,
    /// The time until the node had dropped all strangers.
    flood_seconds: f64,
    /// Logins without strangers, half of them before the flood and half after.
    without: Option<Quantiles>,
    /// Logins in a time of the same length that begins with the flood.
    with: Option<Quantiles>,
    p99_ratio: Option<f64>,
    pub(crate) failed: u64,
    first_failure: Option<String>,
}

/// Times of logins, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Quantiles {
    count: u64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// Floods one node with connections of strangers. Dropping the future ends the node.
pub(crate) async fn measure_flood(
    shared_store: &SharedStore,
    flood: &Flood,
) -> Result<FloodReport> {
    // With these intervals the node itself makes no call to the store meanwhile.
    let settings = [("node_lease", "1h"), ("sweep", "1h")];
    let group = Group::start(shared_store, "f", 1, false, &settings).await?;
    let address = group.addresses()[0];
    let calls = || group.calls().context("the store's calls cannot be counted");
    let progress = Progress::start();
    progress.begin_part(&format!("{} strangers by themselves", flood.connects));
    let before = calls()?;
    let start = SystemClock.now();
    open_and_drop_connections(address, flood.connects).await?;
    wait_for_room(address).await?;
    let flood_seconds = SystemClock.now().since(start).as_secs_f64();
    let store_calls = calls()? - before;

    let mut players = Players::new(shared_store, &group, "f", flood.callers)?;
    let pace = |time| Pace {
        time,
        rate: Some(flood.rate),
    };
    players
        .take_over(pace(flood.time.min(Duration::from_secs(1))))
        .await;
    progress.begin_part("logins without strangers");
    let first = players.take_over(pace(flood.time / 2)).await;
    progress.begin_part("logins with strangers");
    let coming = tokio::spawn(open_and_drop_connections(address, flood.connects));
    let with = players.take_over(pace(flood.time)).await;
    coming.await??;
    wait_for_room(address).await?;
    progress.begin_part("logins without strangers");
    let last = players.take_over(pace(flood.time / 2)).await;
    progress.finish();
    players.leave().await;
    group.stop().await;
    shared_store.remove_records().await?;
    let logins = |samples: &Samples| samples.get(CONFIRMED).cloned();
    let all: Vec<Sample> = [&first, &last, &with]
        .into_iter()
        .filter_map(logins)
        .collect();
    let without = quantiles(all.iter().take(2));
    let with = quantiles(all.iter().skip(2));
    Ok(FloodReport {
        workload: "takeover",
        backend: shared_store.backend(),
        connects: flood.connects,
        store_calls,
        flood_seconds,
        without,
        with,
        p99_ratio: with
            .zip(without)
            .map(|(with, without)| with.p99_us / without.p99_us),
        failed: all.iter().map(|it| it.errors).sum(),
        first_failure: all.into_iter().find_map(|it| it.first_error),
    })
}

/// The times of logins; `None` when there was none.
fn quantiles<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<Quantiles> {
    let mut all = Latencies::new();
    samples.for_each(|it| all.add(&it.latencies));
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    (all.count() > 0).then(|| Quantiles {
        count: all.count(),
        p50_us: us(all.quantile(0.5)),
        p90_us: us(all.quantile(0.9)),
        p99_us: us(all.quantile(0.99)),
        max_us: us(all.max()),
    })
}

/// Opens this number of connections, and drops each at once: before the first byte, in the middle
/// of a request, or right after a whole request.
async fn open_and_drop_connections(to: SocketAddr, connects: u32) -> Result<()> {
    let places = Arc::new(Semaphore::new(MAX_OPENING));
    let mut coming = JoinSet::new();
    for number in 0..connects {
        let place = Arc::clone(&places).acquire_owned().await?;
        coming.spawn(async move {
            let _place = place;
            let mut stream = TcpStream::connect(to)
                .await
                .context("a stranger connects")?;
            let request = match number % 3 {
                0 => String::new(),
                1 => "GET /ws HTTP/1.1\r\nHost: ".to_owned(),
                _ => format!(
                    "GET /ws HTTP/1.1\r\nHost: {to}\r\n\
                     Connection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: c3RyYW5nZXJzIGFyZSBoZQ==\r\n\r\n"
                ),
            };
            // The node may have refused the connection already, so an error is ignored.
            let _ = stream.write_all(request.as_bytes()).await;
            let _ = stream.set_zero_linger();
            anyhow::Ok(())
        });
        while let Some(done) = coming.try_join_next() {
            done??;
        }
    }
    while let Some(done) = coming.join_next().await {
        done??;
    }
    Ok(())
}

/// Waits until the node has accepted all earlier connections and accepts one more.
async fn wait_for_room(to: SocketAddr) -> Result<()> {
    let start = SystemClock.now();
    while SystemClock.now().since(start) < STEP_LIMIT {
        if Client::connect(to).await.is_ok() {
            return Ok(());
        }
        SystemClock.sleep(RETRY_PAUSE).await;
    }
    bail!("the node takes no connection {STEP_LIMIT:?} after the strangers")
}

impl std::fmt::Display for FloodReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} strangers on {}: {} calls to the store, gone after {:.1} s",
            self.connects, self.backend, self.store_calls, self.flood_seconds
        )?;
        for (name, quantiles) in [("without them", self.without), ("with them", self.with)] {
            if let Some(it) = quantiles {
                writeln!(
                    f,
                    "logins {name}: {} of them, p50 {:.2} ms, p99 {:.2} ms, at most {:.2} ms",
                    it.count,
                    it.p50_us / 1e3,
                    it.p99_us / 1e3,
                    it.max_us / 1e3
                )?;
            }
        }
        if let Some(ratio) = self.p99_ratio {
            writeln!(f, "p99 with them over without: x {ratio:.2}")?;
        }
        if let Some(failure) = &self.first_failure {
            writeln!(f, "{} logins failed, the first: {failure}", self.failed)?;
        }
        Ok(())
    }
}
