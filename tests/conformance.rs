//! Runs the conformance suite on each embedded store, and on the locks that are built on the
//! records of each.
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
    // The folder must exist until the last case has ended.
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let subjects = runtime.block_on(connect_subjects(folder.path()))?;
    Ok(libtest_mimic::run(&arguments, trials(&subjects)).exit_code())
}

/// Connects the suite to each store.
async fn connect_subjects(folder: &Path) -> distlock::Result<Vec<Subject>> {
    let file = |name: &str| folder.join(name).display().to_string();
    Ok(vec![
        memory_subject().await?,
        sqlite_subject(&file("locks.db")).await?,
        memory_records_subject().await?,
        sqlite_records_subject(&file("records.db")).await?,
    ])
}

/// Clients of one memory store. All clients share one lock table, as the tasks of one process do.
async fn memory_subject() -> distlock::Result<Subject> {
    let memory = Memory::new(Arc::new(SystemClock));
    Subject::connect("memory", move || {
        let store = Store::new(memory.lock(), memory.records());
        async { Ok(store) }
    })
    .await
}

/// Clients of one SQLite file.
async fn sqlite_subject(path: &str) -> distlock::Result<Subject> {
    let url = format!("sqlite:{path}");
    let workers = workers(&url);
    let subject = Subject::connect("sqlite", move || distlock::open(url.clone()));
    Ok(subject.await?.with_workers(workers))
}

/// Locks on the records of the memory store.
async fn memory_records_subject() -> distlock::Result<Subject> {
    let memory = Memory::new(Arc::new(SystemClock));
    Subject::connect("memory_records", move || {
        let store = Store::new(memory.lock(), memory.records());
        let over = KvLock::over(&store).map(|lock| Store::new(Arc::new(lock), store.records()));
        async { over }
    })
    .await
}

/// Locks on the records of a SQLite file.
async fn sqlite_records_subject(path: &str) -> distlock::Result<Subject> {
    let url = format!("kv+sqlite:{path}");
    let workers = workers(&url);
    let subject = Subject::connect("sqlite_records", move || distlock::open(url.clone()));
    Ok(subject.await?.with_workers(workers))
}

/// The way to start worker processes on a store.
fn workers(url: &str) -> Workers {
    Workers::new(env!("CARGO_BIN_EXE_distlock"), ["conformance-worker"], url)
}
