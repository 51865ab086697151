//! The conformance suite over every embedded store, and over the lock that stands on their records.
//!
//! Each case is a test of its own: `cargo nextest run -p distlock-cli --test conformance
//! sqlite::fencing`.

use std::{error::Error, path::Path, process::ExitCode, sync::Arc};

use distlock::{KvLock, Store, SystemClock};
use distlock_conformance::{Subject, Workers, trials};
use distlock_memory::Memory;
use libtest_mimic::Arguments;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::from_args();
    // The folder lives until the last case has ended.
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let subjects = runtime.block_on(subjects(folder.path()))?;
    Ok(libtest_mimic::run(&arguments, trials(&subjects)).exit_code())
}

async fn subjects(folder: &Path) -> distlock::Result<Vec<Subject>> {
    let file = |name: &str| folder.join(name).display().to_string();
    Ok(vec![
        memory().await?,
        sqlite(&file("locks.db")).await?,
        memory_records().await?,
        sqlite_records(&file("records.db")).await?,
    ])
}

/// All clients share one table, as the tasks of one process do.
async fn memory() -> distlock::Result<Subject> {
    let memory = Memory::new(Arc::new(SystemClock));
    Subject::connect("memory", move || {
        let store = Store::new(memory.lock(), memory.records());
        async { Ok(store) }
    })
    .await
}

async fn sqlite(path: &str) -> distlock::Result<Subject> {
    let url = format!("sqlite:{path}");
    let workers = workers(&url);
    let subject = Subject::connect("sqlite", move || distlock::open(url.clone()));
    Ok(subject.await?.with_workers(workers))
}

async fn memory_records() -> distlock::Result<Subject> {
    let memory = Memory::new(Arc::new(SystemClock));
    Subject::connect("memory_records", move || {
        let store = Store::new(memory.lock(), memory.records());
        let over = KvLock::over(&store).map(|lock| Store::new(Arc::new(lock), store.records()));
        async { over }
    })
    .await
}

async fn sqlite_records(path: &str) -> distlock::Result<Subject> {
    let url = format!("kv+sqlite:{path}");
    let workers = workers(&url);
    let subject = Subject::connect("sqlite_records", move || distlock::open(url.clone()));
    Ok(subject.await?.with_workers(workers))
}

fn workers(url: &str) -> Workers {
    Workers::new(env!("CARGO_BIN_EXE_distlock"), ["conformance-worker"], url)
}
