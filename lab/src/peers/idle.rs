//! A lock server with many waiters and nothing to do: its processor time, and its memory for each
//! waiter.
//!
//! Each connection has many waiters, for as many locks, which somebody holds for the whole run.
//! Each waiter behaves as the engine lets one behave: it waits, and asks again when it is woken.

use std::{fmt, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use distlock_cli::program;
use distlock_core::{
    AcquireRequest, Attempt, Clock as _, Contender, DistLock, HolderLabel, LockName, OwnerId,
    SystemClock, Ttl,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::task::JoinSet;

use super::server::{MAX_LEASE, hold, name, resident_bytes, start};
use crate::processor_time::processor_seconds;

/// Locks that waiters wait for.
const LOCKS: u32 = 100;
/// Connections that are opened, and waiters that join, at a time.
const AT_A_TIME: usize = 64;
/// Open files besides the connections.
const SPARE_FILES: u64 = 100;
/// The time after the last waiter has joined in which the server comes to rest.
const REST: Duration = Duration::from_secs(1);

/// What the waiters cost the server.
#[derive(Debug)]
pub(super) struct IdleCost {
    waiters: u32,
    connections: u32,
    /// The time of the measurement.
    seconds: f64,
    /// Processor time in this time.
    processor: f64,
    /// Memory with all connections and no waiter, in bytes.
    before: u64,
    /// Memory with all waiters.
    resident: u64,
}

/// Lets this many waiters wait on this many connections, and measures the server for `time`.
pub(super) async fn run(
    waiters: u32,
    connections: u32,
    time: Duration,
) -> anyhow::Result<IdleCost> {
    let (files, wanted) = (
        program::raise_open_files(),
        u64::from(connections) + SPARE_FILES,
    );
    ensure!(
        files >= wanted,
        "{connections} connections need {wanted} open files, and {files} are allowed: raise the \
         hard limit (ulimit -Hn)"
    );
    let server = start()?;
    // Waiters that all join at once may wait for their answers.
    let url = format!("{}?request_timeout=30s", server.url());
    let store = distlock::open(&*url).await?;
    let holder = store.backend();
    hold(&*holder, 0..LOCKS).await?;
    let handles: Vec<_> = stream::iter(0..connections)
        .map(|_| holder.reopen())
        .buffer_unordered(AT_A_TIME)
        .try_collect()
        .await?;
    let before = resident_bytes(&server)?;
    let mut waiting = JoinSet::new();
    let mut joining = stream::iter(0..waiters)
        .map(|number| {
            let handle = &handles[number as usize % handles.len()];
            join(Arc::clone(handle), number / connections % LOCKS)
        })
        .buffer_unordered(AT_A_TIME);
    while let Some(contender) = joining.next().await {
        waiting.spawn(stay(contender?));
    }
    SystemClock.sleep(REST).await;
    let process = server.id().context("the server runs")?;
    let (spent, since) = (processor_seconds(process)?, SystemClock.now());
    SystemClock.sleep(time).await;
    let processor = processor_seconds(process)? - spent;
    let seconds = SystemClock.now().since(since).as_secs_f64();
    if let Some(ended) = waiting.try_join_next() {
        ended?.context("a waiter did not wait to the end")?;
    }
    Ok(IdleCost {
        waiters,
        connections,
        seconds,
        processor,
        before,
        resident: resident_bytes(&server)?,
    })
}

/// Joins the queue of a lock.
async fn join(lock: Arc<dyn DistLock>, number: u32) -> anyhow::Result<Box<dyn Contender>> {
    let (ttl, holder) = (Ttl::new(MAX_LEASE)?, HolderLabel::new("waiting")?);
    let name = LockName::new(name(number))?;
    let request = AcquireRequest::new(name, OwnerId::new(), ttl, holder);
    let mut contender = lock.contend(&request).await?;
    ask(&mut *contender).await?;
    Ok(contender)
}

/// Waits, and asks again after each wake-up. Ends only by an error.
async fn stay(mut contender: Box<dyn Contender>) -> anyhow::Result<()> {
    loop {
        contender.wait(MAX_LEASE).await;
        ask(&mut *contender).await?;
    }
}

/// Asks for a lock that is held.
async fn ask(contender: &mut dyn Contender) -> anyhow::Result<()> {
    let attempt = contender.attempt().await?;
    ensure!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
    Ok(())
}

impl IdleCost {
    /// The share of one core that the server uses.
    fn percent_of_a_core(&self) -> f64 {
        self.processor / self.seconds * 100.0
    }

    fn bytes_per_waiter(&self) -> u64 {
        self.resident.saturating_sub(self.before) / u64::from(self.waiters)
    }

    /// Returns the costs as one JSON object.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "waiters": self.waiters,
            "connections": self.connections,
            "seconds": self.seconds,
            "processor_ms_a_second": self.processor / self.seconds * 1000.0,
            "percent_of_a_core": self.percent_of_a_core(),
            "bytes_a_waiter": self.bytes_per_waiter(),
            "resident": self.resident,
        })
    }
}

impl fmt::Display for IdleCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} waiters on {} connections for {:.1} s: {:.1} ms of processor time a second \
             ({:.2} % of one core), {} bytes for each waiter, {} MB resident",
            self.waiters,
            self.connections,
            self.seconds,
            self.processor / self.seconds * 1000.0,
            self.percent_of_a_core(),
            self.bytes_per_waiter(),
            self.resident / 1_000_000,
        )
    }
}
