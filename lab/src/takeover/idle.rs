//! Measures the cost of idle sessions: the memory of a node that has many, and the processor time
//! of their heartbeats. The node is a process of its own.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use distlock::{Clock as _, SystemClock};
use serde::Serialize;
use tokio::task::JoinSet;

use super::{
    client::Client,
    group::{Group, SharedStore},
};
use crate::processor_time::processor_seconds;
use distlock_cli::program::{self, Progress};

/// The most logins at the same time.
const MAX_LOGINS: u32 = 64;
/// Heartbeats that are sent at the least, one after the other, the same number by each session.
const MIN_HEARTBEATS: u32 = 20_000;
/// The time for the node to finish the work of the last login.
const SETTLING_TIME: Duration = Duration::from_secs(2);
/// Open files of this process that are not clients.
const SPARE_FILES: u64 = 200;

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IdleReport {
    workload: &'static str,
    backend: &'static str,
    idle_sessions: u32,
    /// Memory of the node's process before the first login.
    resident_kib_before: u64,
    /// Memory with all sessions.
    resident_kib: u64,
    pub(crate) bytes_per_session: u64,
    seconds: f64,
    logins_per_second: f64,
    heartbeats: u32,
    /// Processor time of the node while one heartbeat came and was answered.
    processor_us_per_heartbeat: f64,
}

/// Logs this number of accounts in to one node, and reads the memory of the node. Dropping the
/// future ends the node.
pub(crate) async fn measure_idle(
    shared_store: &SharedStore,
    sessions: u32,
    progress: &Progress,
) -> Result<IdleReport> {
    let files = program::raise_open_files();
    if files < u64::from(sessions) + SPARE_FILES {
        bail!("{sessions} sessions need as many open files, and {files} are allowed (ulimit -n)");
    }
    let most = (sessions + MAX_LOGINS).to_string();
    // The sessions are idle on purpose, so no limit may end them.
    let settings = [
        ("max_connections", most.as_str()),
        ("max_pending", most.as_str()),
        ("heartbeat", "1h"),
    ];
    let group = Group::start(shared_store, "i", 1, true, &settings).await?;
    let node = group.process_id().context("the node has no process")?;
    let memory =
        || program::memory_kib(node, "VmRSS:").context("the memory of a process cannot be told");
    let resident_kib_before = memory()?;
    progress.set_expected(usize::try_from(sessions)?);
    progress.begin_part(&format!("logging {sessions} accounts in"));
    let start = SystemClock.now();
    let address = group.addresses()[0];
    let mut clients = Vec::new();
    let mut entering = JoinSet::new();
    for number in 0..sessions {
        if entering.len() >= usize::try_from(MAX_LOGINS)?
            && let Some(entered) = entering.join_next().await
        {
            clients.push(entered??);
            progress.finish_step();
        }
        let (_, token) = shared_store.new_account(&format!("i{number}"))?;
        entering.spawn(async move {
            let mut client = Client::connect(address).await?;
            client.send_login(&token, "device").await?;
            client.wait_until_in().await?;
            anyhow::Ok(client)
        });
    }
    while let Some(entered) = entering.join_next().await {
        clients.push(entered??);
        progress.finish_step();
    }
    let seconds = SystemClock.now().since(start).as_secs_f64();
    SystemClock.sleep(SETTLING_TIME).await;
    let resident_kib = memory()?;
    progress.begin_part("sending heartbeats");
    let rounds = MIN_HEARTBEATS.div_ceil(sessions);
    let spent = processor_seconds(node)?;
    for _ in 0..rounds {
        for client in &mut clients {
            client.send(r#"{"type":"ping"}"#).await?;
            let answer = client.wait_for_answer().await?;
            if answer.kind != "pong" {
                bail!("an idle session was told {answer}");
            }
        }
    }
    let spent = processor_seconds(node)? - spent;
    drop(clients);
    group.stop().await;
    if shared_store.is_shared_by_processes() {
        shared_store.remove_records().await?;
    }
    let grown = resident_kib.saturating_sub(resident_kib_before);
    Ok(IdleReport {
        workload: "takeover",
        backend: shared_store.backend(),
        idle_sessions: sessions,
        resident_kib_before,
        resident_kib,
        bytes_per_session: grown * 1024 / u64::from(sessions.max(1)),
        seconds,
        logins_per_second: f64::from(sessions) / seconds,
        heartbeats: rounds * sessions,
        processor_us_per_heartbeat: spent * 1e6 / f64::from(rounds * sessions),
    })
}

impl std::fmt::Display for IdleReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} idle sessions on one node over {}: {:.1} MiB resident, {:.1} MiB of them before \
            the first, {} bytes a session",
            self.idle_sessions,
            self.backend,
            mib(self.resident_kib),
            mib(self.resident_kib_before),
            self.bytes_per_session
        )?;
        writeln!(
            f,
            "logged in within {:.1} s ({:.0}/s)",
            self.seconds, self.logins_per_second
        )?;
        writeln!(
            f,
            "{} heartbeats: {:.0} us of processor time each",
            self.heartbeats, self.processor_us_per_heartbeat
        )
    }
}

/// Converts KiB to MiB.
fn mib(kib: u64) -> f64 {
    crate::counts::as_f64(kib) / 1024.0
}
