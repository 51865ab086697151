//! Tests of locks whose processes are stopped, killed or blocked, or hold each other up. They use
//! SQLite, the store that processes of one host share.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use distlock::{
    Attempt, Clock as _, ErrorKind, Guard, Locker, LossReason, Moment, Released, Store, SystemClock,
};
use distlock_conformance::{
    Workers,
    history::History,
    worker::{Ask, Command, ReleaseReport, Reply, Worker},
};
use distlock_harness::{Signal, Watchdog, signal};
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

const TTL: Duration = Duration::from_millis(1000);
/// Additional time for a promised bound, on a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(2);
const NAME: &str = "order:42";

/// A store in a folder of its own.
struct TestStore {
    folder: TempDir,
}

impl TestStore {
    fn new() -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
        })
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.file().display())
    }

    /// Opens a client in this process.
    async fn open_client(&self) -> Result<Store> {
        let store = distlock::open(self.url()).await?;
        store.ready().await?;
        Ok(store)
    }

    /// Starts a client in a process of its own. The process ends with this test, even if the
    /// process is stopped at that time.
    async fn start_worker(&self) -> Result<(Worker, Watchdog)> {
        let tool = env!("CARGO_BIN_EXE_distlock");
        let workers = Workers::new(tool, ["conformance-worker"], self.url());
        let worker = Worker::start(&workers).await?;
        let watchdog = Watchdog::over_process(worker.id().context("the worker has ended")?)?;
        Ok((worker, watchdog))
    }

    /// Opens a connection without the library.
    async fn connect_directly(&self) -> Result<SqliteConnection> {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.file());
        Ok(SqliteConnection::connect_with(&options).await?)
    }
}

fn now() -> Moment {
    SystemClock.now()
}

async fn sleep(time: Duration) {
    SystemClock.sleep(time).await;
}

fn send_signal(worker: &Worker, which: Signal) -> Result<()> {
    signal(worker.id().context("the worker has ended")?, which)
}

async fn try_acquire(locker: &Locker) -> Result<Option<Guard>> {
    Ok(match locker.lock(NAME).ttl(TTL).try_acquire().await? {
        Attempt::Acquired(guard) => Some(guard),
        Attempt::Busy(_) => None,
    })
}

async fn acquire_within(locker: &Locker, wait: Duration) -> Result<Guard> {
    Ok(locker.lock(NAME).ttl(TTL).wait(wait).acquire().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_holder_reports_its_loss_when_it_continues() -> Result<()> {
    let test_store = TestStore::new()?;
    let store = test_store.open_client().await?;
    let (mut holder, _watchdog) = test_store.start_worker().await?;
    let held = holder.acquire(NAME, TTL, Duration::ZERO).await?;
    send_signal(&holder, Signal::STOP)?;
    // The command is sent while the process is stopped, so the process reads it as soon as it
    // continues.
    holder.send(&Command::State).await?;
    let next = acquire_within(&store.locker(), TTL + SLACK).await?;
    ensure!(next.token().get() > held.token, "tokens rise");
    send_signal(&holder, Signal::CONT)?;
    let Reply::State {
        valid,
        lost,
        remaining,
        ..
    } = holder.reply().await?
    else {
        anyhow::bail!("the worker did not tell its state");
    };
    ensure!(
        !valid && remaining.is_zero(),
        "valid for {remaining:?} after the lock was given away"
    );
    ensure!(
        lost.is_some(),
        "the loss was not ready when it was first asked for"
    );
    let report = holder.release().await?;
    ensure!(
        matches!(report, ReleaseReport::AlreadyLost(_)),
        "the late release: {report:?}"
    );
    ensure!(next.is_valid(), "the next holder was disturbed");
    ensure!(next.release().await.is_clean(), "the next holder's release");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_a_killed_holder_is_free_within_its_ttl() -> Result<()> {
    let test_store = TestStore::new()?;
    let store = test_store.open_client().await?;
    let (mut holder, _watchdog) = test_store.start_worker().await?;
    let held = holder.acquire(NAME, TTL, Duration::ZERO).await?;
    // This is long enough for a renewal.
    sleep(TTL).await;
    holder.kill().await?;
    let killed = now();
    ensure!(
        try_acquire(&store.locker()).await?.is_none(),
        "free at once, although nobody released it"
    );
    let next = acquire_within(&store.locker(), TTL + SLACK).await?;
    ensure!(
        now().since(killed) < TTL + SLACK,
        "free only after {:?}",
        now().since(killed)
    );
    ensure!(next.token().get() > held.token, "tokens rise");
    ensure!(next.release().await.is_clean(), "the next holder's release");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_runtime_keeps_its_lock() -> Result<()> {
    let test_store = TestStore::new()?;
    let store = test_store.open_client().await?;
    let (mut holder, _watchdog) = test_store.start_worker().await?;
    holder.acquire(NAME, TTL, Duration::ZERO).await?;
    // The command blocks the only thread of that process's runtime. Renewals run on another thread.
    holder.send(&Command::Block { time: 2 * TTL }).await?;
    holder.send(&Command::State).await?;
    let end = now() + 2 * TTL;
    while now() < end {
        ensure!(
            try_acquire(&store.locker()).await?.is_none(),
            "granted while its holder was blocked"
        );
        sleep(Duration::from_millis(20)).await;
    }
    ensure!(
        matches!(holder.reply().await?, Reply::Done),
        "the worker was blocked"
    );
    let Reply::State { valid, lost, .. } = holder.reply().await? else {
        anyhow::bail!("the worker did not tell its state");
    };
    ensure!(
        valid && lost.is_none(),
        "lost ({lost:?}) while the runtime was blocked"
    );
    ensure!(
        holder.release().await? == ReleaseReport::Clean,
        "the release"
    );
    ensure!(
        try_acquire(&store.locker()).await?.is_some(),
        "free after the release"
    );
    Ok(())
}

#[test]
fn a_lock_outlives_the_runtime_that_took_it() -> Result<()> {
    let test_store = TestStore::new()?;
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let first = runtime()?;
    let (store, guard) = first.block_on(async {
        let store = test_store.open_client().await?;
        let guard = acquire_within(&store.locker(), Duration::ZERO).await?;
        anyhow::Ok((store, guard))
    })?;
    drop(first);
    runtime()?.block_on(async {
        let other = test_store.open_client().await?;
        let end = now() + 2 * TTL;
        while now() < end {
            ensure!(
                try_acquire(&other.locker()).await?.is_none(),
                "granted while it was held"
            );
            ensure!(guard.is_valid(), "lost with the runtime");
            sleep(Duration::from_millis(20)).await;
        }
        drop(guard);
        let next = acquire_within(&other.locker(), SLACK).await?;
        ensure!(next.release().await.is_clean(), "the next holder's release");
        drop(store);
        Ok(())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_by_a_deleted_row_has_the_reason_removed() -> Result<()> {
    let test_store = TestStore::new()?;
    let store = test_store.open_client().await?;
    let guard = acquire_within(&store.locker(), Duration::ZERO).await?;
    let deadline = now() + guard.remaining();
    let mut direct = test_store.connect_directly().await?;
    let deleted = sqlx::query("DELETE FROM distributed_lock WHERE lock_name = ?")
        .bind(NAME)
        .execute(&mut direct)
        .await?;
    ensure!(deleted.rows_affected() == 1, "the row was there");
    let reason = tokio::time::timeout(TTL + SLACK, guard.lost()).await?;
    ensure!(reason == LossReason::Removed, "told {reason:?}");
    // A renewal that was in flight when the row was deleted may have moved the deadline once.
    ensure!(
        now() < deadline + TTL + SLACK,
        "told only after {:?}",
        now().since(deadline)
    );
    match guard.release().await {
        Released::AlreadyLost(LossReason::Removed) => {}
        other => anyhow::bail!("the release of a removed lock: {other:?}"),
    }
    ensure!(try_acquire(&store.locker()).await?.is_some(), "free again");
    Ok(())
}

/// A process that is stopped in the middle of a write transaction has this effect: nobody can write
/// until the process continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_writer_never_gives_two_holders() -> Result<()> {
    let test_store = TestStore::new()?;
    let (one, two) = (
        test_store.open_client().await?,
        test_store.open_client().await?,
    );
    let guard = acquire_within(&one.locker(), Duration::ZERO).await?;
    let mut direct = test_store.connect_directly().await?;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut direct).await?;
    sqlx::query("UPDATE distributed_meta SET created_at = created_at")
        .execute(&mut direct)
        .await?;
    let stuck = now();
    let mut refusals = Vec::new();
    while now().since(stuck) < 4 * TTL {
        let asked = now();
        match try_acquire(&two.locker()).await {
            Ok(Some(_)) => anyhow::bail!("granted although nothing can be written"),
            Ok(None) => {}
            Err(error) => refusals.push(error.downcast::<distlock::Error>()?),
        }
        let took = now().since(asked);
        ensure!(took < Duration::from_secs(8), "one attempt took {took:?}");
        sleep(Duration::from_millis(50)).await;
    }
    // The renewals of the holder could not be written. So the holder has lost the lock, and knows
    // the reason.
    let reason = tokio::time::timeout(SLACK, guard.lost()).await?;
    ensure!(reason == LossReason::Unreachable, "told {reason:?}");
    ensure!(
        !guard.is_valid(),
        "valid without a renewal for {:?}",
        now().since(stuck)
    );
    for error in &refusals {
        ensure!(
            matches!(
                error.kind(),
                ErrorKind::Unavailable | ErrorKind::OutcomeUnknown | ErrorKind::Timeout
            ),
            "an attempt ended with {error:?}"
        );
        ensure!(error.is_retryable(), "not to be tried again: {error:?}");
    }
    sqlx::query("COMMIT").execute(&mut direct).await?;
    let next = acquire_within(&two.locker(), TTL + 2 * SLACK).await?;
    ensure!(next.token() > guard.token(), "tokens rise");
    ensure!(next.release().await.is_clean(), "the next holder's release");
    ensure!(
        !refusals.is_empty(),
        "no attempt noticed that nothing can be written"
    );
    Ok(())
}

/// A writer that is killed in the middle of a write must leave no held lock and no locked file.
#[tokio::test(flavor = "multi_thread")]
async fn killed_writers_leave_the_file_usable() -> Result<()> {
    let test_store = TestStore::new()?;
    let store = test_store.open_client().await?;
    let seed = read_seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..6 {
        let (mut worker, _watchdog) = test_store.start_worker().await?;
        worker.send(&cycles_command(Duration::ZERO, 10_000)).await?;
        sleep(Duration::from_millis(random.u64(20..250))).await;
        worker.kill().await?;
        let next = acquire_within(&store.locker(), TTL + SLACK)
            .await
            .with_context(|| format!("seed {seed}, round {round}"))?;
        ensure!(
            next.release().await.is_clean(),
            "seed {seed}, round {round}: the next holder's release"
        );
    }
    check_integrity(&test_store.file()).await
}

/// Workers take and release one lock. Meanwhile some workers are stopped for less or for more than
/// a lease, and continue.
#[tokio::test(flavor = "multi_thread")]
async fn many_stopped_workers_never_give_two_holders() -> Result<()> {
    let test_store = TestStore::new()?;
    let seed = read_seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(test_store.start_worker().await?);
    }
    for (worker, _) in &mut workers {
        worker
            .send(&cycles_command(Duration::from_millis(15), 120))
            .await?;
    }
    for _ in 0..12 {
        let (victim, _) = &workers[random.usize(0..workers.len())];
        send_signal(victim, Signal::STOP)?;
        sleep(TTL.mul_f64(random.f64() * 1.8)).await;
        send_signal(victim, Signal::CONT)?;
        sleep(Duration::from_millis(random.u64(0..150))).await;
    }
    let history = History::new();
    for (worker, _) in &mut workers {
        let Reply::Cycles { holds, refused, .. } = worker.reply().await? else {
            anyhow::bail!("seed {seed}: a worker did not answer with its cycles");
        };
        for refusal in refused {
            ensure!(
                ["Timeout", "Unavailable", "OutcomeUnknown"].contains(&refusal.kind.as_str()),
                "seed {seed}: {refusal:?}"
            );
        }
        history.extend(holds);
    }
    ensure!(
        history.holds().len() > 100,
        "seed {seed}: only {} holds",
        history.holds().len()
    );
    history
        .check()
        .map_err(|problem| anyhow::anyhow!("seed {seed}: {problem}"))?;
    check_integrity(&test_store.file()).await
}

fn cycles_command(hold: Duration, count: u32) -> Command {
    Command::Cycles {
        ask: Ask {
            name: NAME.into(),
            ttl: TTL,
            wait: Duration::from_secs(20),
            renew: true,
            fair: false,
            not_before: Duration::ZERO,
        },
        hold,
        count,
    }
}

/// Reads the seed from `FAULTS_SEED`, which repeats a run, or chooses a random seed. Each failure
/// prints the seed.
fn read_seed() -> u64 {
    std::env::var("FAULTS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..))
}

async fn check_integrity(file: &Path) -> Result<()> {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let answer: String = sqlx::query_scalar("PRAGMA integrity_check")
        .fetch_one(&mut connection)
        .await?;
    ensure!(answer == "ok", "the file is damaged: {answer}");
    Ok(())
}
