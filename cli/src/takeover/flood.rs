//! Strangers: connections that never log in must cost the store nothing, and other users little.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use distlock::{Clock as _, SystemClock};
use distlock_report::{Latencies, Quantiles};
use serde::Serialize;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::Semaphore, task::JoinSet};

use super::{
    client::{Client, PATIENCE},
    group::{Ground, Group},
    load::{Pace, Seats},
};
use crate::progress::Progress;

/// Connections of strangers that are being opened at the same time.
const AT_A_TIME: usize = 512;
/// Between two tries to get a word in after the strangers.
const PAUSE: Duration = Duration::from_millis(20);

/// What is done.
#[derive(Clone, Debug)]
pub(crate) struct Flood {
    /// Connections of strangers.
    pub(crate) connects: u32,
    /// Accounts that log in at the same time.
    pub(crate) callers: u32,
    /// Their logins per second in all.
    pub(crate) rate: f64,
    /// How long logins are watched with the strangers, and how long without.
    pub(crate) time: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FloodReport {
    workload: &'static str,
    backend: &'static str,
    connects: u32,
    /// Calls to the store while strangers came and went and nobody else was there.
    pub(crate) store_calls: u64,
    /// How long it took until all of them were gone.
    flood_seconds: f64,
    /// Logins without strangers, half of them before and half after.
    without: Option<Quantiles>,
    /// Logins in a time of the same length that begins with the strangers.
    with: Option<Quantiles>,
    p99_ratio: Option<f64>,
    pub(crate) failed: u64,
    first_failure: Option<String>,
}

/// Floods one node. Cancelling it ends the node.
pub(crate) async fn flood(ground: &Ground, flood: &Flood) -> Result<FloodReport> {
    // Nothing of the node's own falls into the time of the count.
    let settings = [("node_lease", "1h"), ("sweep", "1h")];
    let group = Group::start(ground, "f", 1, false, &settings).await?;
    let address = group.addresses()[0];
    let calls = || group.calls().context("the store's calls cannot be counted");
    let progress = Progress::new();
    progress.part(&format!("{} strangers by themselves", flood.connects));
    let before = calls()?;
    let start = SystemClock.now();
    strangers(address, flood.connects).await?;
    has_room(address).await?;
    let flood_seconds = SystemClock.now().since(start).as_secs_f64();
    let store_calls = calls()? - before;

    let mut seats = Seats::new(ground, &group, "f", flood.callers)?;
    let pace = |time| Pace {
        time,
        rate: Some(flood.rate),
    };
    seats
        .take_over(pace(flood.time.min(Duration::from_secs(1))))
        .await;
    progress.part("logins without strangers");
    let first = seats.take_over(pace(flood.time / 2)).await;
    progress.part("logins with strangers");
    let coming = tokio::spawn(strangers(address, flood.connects));
    let with = seats.take_over(pace(flood.time)).await;
    coming.await??;
    has_room(address).await?;
    progress.part("logins without strangers");
    let last = seats.take_over(pace(flood.time / 2)).await;
    progress.finish();
    seats.leave().await;
    group.stop().await;
    ground.tidy().await?;
    let mut failures = first.clone();
    failures.add(&last);
    failures.add(&with);
    let of = |parts: &[&Latencies]| Quantiles::of(parts.iter().copied());
    let without = of(&[&first.confirmed, &last.confirmed]);
    let with = of(&[&with.confirmed]);
    Ok(FloodReport {
        workload: "takeover",
        backend: ground.backend(),
        connects: flood.connects,
        store_calls,
        flood_seconds,
        without,
        with,
        p99_ratio: with
            .zip(without)
            .map(|(with, without)| with.p99_us / without.p99_us),
        failed: failures.errors,
        first_failure: failures.first_error,
    })
}

/// So many connections, each of which drops as soon as it is there: without a word, in the middle of a request, or right after
/// a whole one.
async fn strangers(to: SocketAddr, connects: u32) -> Result<()> {
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let mut coming = JoinSet::new();
    for number in 0..connects {
        let place = Arc::clone(&places).acquire_owned().await?;
        coming.spawn(async move {
            let _place = place;
            let mut stream = TcpStream::connect(to).await.context("a stranger connects")?;
            let request = match number % 3 {
                0 => String::new(),
                1 => "GET /ws HTTP/1.1\r\nHost: ".to_owned(),
                _ => format!(
                    "GET /ws HTTP/1.1\r\nHost: {to}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c3RyYW5nZXJzIGFyZSBoZQ==\r\n\r\n"
                ),
            };
            // It may have been refused by now.
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

/// Waits until the node has looked at every connection that came before, and takes one more.
async fn has_room(to: SocketAddr) -> Result<()> {
    let start = SystemClock.now();
    while SystemClock.now().since(start) < PATIENCE {
        if Client::connect(to).await.is_ok() {
            return Ok(());
        }
        SystemClock.sleep(PAUSE).await;
    }
    bail!("the node takes no connection {PATIENCE:?} after the strangers")
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
