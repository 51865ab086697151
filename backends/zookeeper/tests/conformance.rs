//! The conformance suite on a real three-server ensemble, with worker processes. `CASE` names the part to run.
//!
//! The workers are this very binary.

use std::{env, process::ExitCode, sync::Arc, time::Duration};

use distlock_conformance::{
    Subject, Workers,
    worker::{self, Command, ReleaseReport, Reply, Worker},
};
use distlock_core::{Clock as _, ErrorKind, KvLock, Result as Opened, Store, SystemClock};
use distlock_harness::{Signal, Watchdog, servers::zookeeper::ZooKeeper, signal};
use distlock_zookeeper::{self as zookeeper, ZooKeeperConfig};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;

const WORKER: &str = "conformance-worker";

/// Long enough for a machine that is busy with other tests, and what a tick of 250 ms allows at the most.
const SESSION: Duration = Duration::from_secs(5);

type Outcome = Result<(), Failed>;

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some(WORKER) {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let worked = runtime.block_on(worker::run(|servers| async move { open(&servers).await }));
        return worked.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let arguments = Arguments::from_args();
    let runtime = Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let handle = runtime.handle().clone();
    // One test, because every test of a binary that a runner starts by itself would need an ensemble of its own.
    let all = Trial::test("conformance_and_processes", move || handle.block_on(all()));
    libtest_mimic::run(&arguments, vec![all]).exit_code()
}

/// A client with a session of its own.
async fn open(servers: &str) -> Opened<Store> {
    let mut config = ZooKeeperConfig::new(servers.split(','));
    config.session_timeout = SESSION;
    let store = zookeeper::ZooKeeper::open(config, Arc::new(SystemClock)).await?;
    Ok(Store::new(store.lock(), store.records()))
}

async fn all() -> Outcome {
    let ensemble = ZooKeeper::start()?;
    let servers = ensemble.servers();
    let program = env::current_exe()?;
    let workers = Workers::new(program, [WORKER], servers.clone());
    conformance(&servers, workers.clone()).await?;
    if env::var_os("CASE").is_none() {
        no_lock_over_records(&servers).await?;
        a_stopped_holder_knows_at_once(&workers).await?;
    }
    Ok(())
}

async fn conformance(servers: &str, workers: Workers) -> Outcome {
    let servers = servers.to_owned();
    let subject = Subject::connect("zookeeper", move || {
        let servers = servers.clone();
        async move { open(&servers).await }
    });
    let subject = subject.await?.with_workers(workers);
    let filter = env::var("CASE").ok();
    let results = distlock_conformance::run(&subject, filter.as_deref()).await;
    let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
    ensure(failed.is_empty(), || {
        let names: Vec<_> = failed.iter().map(|result| result.name).collect();
        format!("failed: {}\n{failed:#?}", names.join(", "))
    })?;
    ensure(!results.is_empty(), || "no case of this name".into())
}

/// Records carry the time they were written by the leader of that time, and nobody tells what time it is now.
async fn no_lock_over_records(servers: &str) -> Outcome {
    let store = open(servers).await?;
    let refused = KvLock::new(store.records()).map(drop);
    ensure(
        refused
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Unsupported),
        || format!("{refused:?}"),
    )?;
    store.close().await;
    Ok(())
}

/// A holder that is stopped for two session timeouts: its lock goes to the next one after its own deadline, and it learns
/// that before it does anything else.
async fn a_stopped_holder_knows_at_once(workers: &Workers) -> Outcome {
    let mut stopped = Worker::start(workers).await?;
    let mut next = Worker::start(workers).await?;
    let process = stopped.id().ok_or("the worker has ended")?;
    let _watchdog = Watchdog::over_process(process)?;
    let first = stopped.acquire("stopped", SESSION, Duration::ZERO).await?;
    let since = SystemClock.now();
    signal(process, Signal::STOP)?;
    let second = next.acquire("stopped", SESSION, SESSION * 4).await?;
    ensure(second.token > first.token, || {
        format!("{first:?} {second:?}")
    })?;
    let slept = SystemClock.now().since(since);
    SystemClock.sleep((SESSION * 2).saturating_sub(slept)).await;
    signal(process, Signal::CONT)?;
    let state = stopped.ask(&Command::State).await?;
    ensure(
        matches!(
            state,
            Reply::State {
                valid: false,
                lost: Some(_),
                ..
            }
        ),
        || format!("{state:?}"),
    )?;
    // Whatever it still does, the next holder keeps its lock.
    let released = stopped.release().await?;
    ensure(released != ReleaseReport::Clean, || {
        "a clean release".into()
    })?;
    let released = next.release().await?;
    ensure(released == ReleaseReport::Clean, || format!("{released:?}"))
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(otherwise().into())
    }
}
