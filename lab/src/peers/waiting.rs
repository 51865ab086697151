//! The cost of waiting: another process holds a lock, many tasks wait for the lock, and the run
//! counts every statement that the tasks cause.

use std::{fmt, io::Read as _, path::Path, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use distlock_core::{ErrorKind, Locker, Released};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::Barrier,
    task::JoinSet,
};

use crate::peers::sqlite;

const NAME: &str = "bench:waited-for";

/// The TTL of the holder, which is long enough that the holder does not renew during the count.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// The counts of one run.
#[derive(Debug)]
pub(crate) struct WaitingCost {
    waiters: u32,
    seconds: f64,
    statements: u64,
}

/// Lets `waiters` tasks of this process wait, and counts the statements during `time`.
pub(crate) async fn run(
    waiters: u32,
    time: Duration,
    folder: &Path,
) -> anyhow::Result<WaitingCost> {
    let file = folder.join("waiting.db");
    let mut holder = start_holder(&file).await?;
    let store = sqlite::open(&file).await?;
    let locker = Locker::new(store.lock());
    locker.ready().await?;

    // In the first second the tasks enter the queue. The statements of that second are not counted.
    let joining = Duration::from_secs(1);
    let mut tasks = start_waiters(&locker, waiters, joining + time + joining).await;
    pause(joining).await;
    let before = store.statements();
    pause(time).await;
    let statements = store.statements() - before;
    let mut timed_out = 0;
    while let Some(outcome) = tasks.join_next().await {
        timed_out += u32::from(outcome?);
    }
    ensure!(
        timed_out == waiters,
        "{} of {waiters} did not wait to the end",
        waiters - timed_out
    );
    locker.close().await;
    // When the input of the holder ends, the holder releases the lock and exits.
    drop(holder.stdin.take());
    let status = holder.wait().await?;
    ensure!(status.success(), "the holder failed: {status}");
    Ok(WaitingCost {
        waiters,
        seconds: time.as_secs_f64(),
        statements,
    })
}

/// The main function of the holder's process. The process holds the lock until its input ends.
pub(crate) async fn run_holder(file: &Path) -> anyhow::Result<()> {
    let store = sqlite::open(file).await?;
    let locker = Locker::new(store.lock());
    let guard = locker.lock(NAME).ttl(TTL).acquire().await?;
    println!("held");
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    let released = guard.release().await;
    ensure!(
        matches!(released, Released::Clean),
        "the lock was not held to the end: {released:?}"
    );
    locker.close().await;
    Ok(())
}

/// Starts the holder's process, and waits until the process holds the lock.
async fn start_holder(file: &Path) -> anyhow::Result<Child> {
    let mut holder = Command::new(std::env::current_exe()?)
        .args(["peers", "hold"])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("starting the holder")?;
    let stdout = holder.stdout.take().context("the holder's output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).await?;
    ensure!(line == "held\n", "the holder did not get the lock");
    Ok(holder)
}

impl WaitingCost {
    #[expect(clippy::cast_precision_loss, reason = "a count of some hundreds")]
    fn per_second(&self) -> f64 {
        self.statements as f64 / self.seconds
    }

    /// Returns the counts as one JSON object.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "waiters": self.waiters,
            "seconds": self.seconds,
            "statements": self.statements,
            "statements_per_second": self.per_second(),
        })
    }
}

impl fmt::Display for WaitingCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} waiters for {:.1} s: {} statements, {:.1} a second",
            self.waiters,
            self.seconds,
            self.statements,
            self.per_second()
        )
    }
}

/// Starts the waiters. Each task returns whether its wait timed out. Every wait must time out,
/// because the lock is held.
async fn start_waiters(locker: &Locker, waiters: u32, wait: Duration) -> JoinSet<bool> {
    let started = Arc::new(Barrier::new(waiters as usize + 1));
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let (locker, started) = (locker.clone(), Arc::clone(&started));
        tasks.spawn(async move {
            started.wait().await;
            let answer = locker.lock(NAME).wait(wait).acquire().await;
            answer.is_err_and(|error| error.kind() == ErrorKind::Timeout)
        });
    }
    started.wait().await;
    tasks
}

#[expect(
    clippy::disallowed_methods,
    reason = "statements per second of real time are what is measured"
)]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
