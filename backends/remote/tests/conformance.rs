//! The conformance suite through real sockets: over a lock server with locks in its own memory, and
//! over an agent of a SQLite file. Each worker is a process of this same binary.

use std::{env, path::PathBuf, process::ExitCode, sync::Arc};

use distlock_backend_kit::Drivers;
use distlock_conformance::{Subject, Workers, trials, worker};
use distlock_core::{Result, Store, SystemClock};
use distlock_remote::RemoteDriver;
use distlock_server::{LockServer, ServerConfig, StateOptions};
use libtest_mimic::Arguments;
use tokio::runtime::Builder;

const WORKER: &str = "conformance-worker";

fn main() -> ExitCode {
    let runtime = Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    if env::args().nth(1).as_deref() == Some(WORKER) {
        let worked = runtime.block_on(worker::run(|url| async move { open(&url).await }));
        return worked.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let arguments = Arguments::from_args();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks.db");
    let sqlite = format!("sqlite:{}", file.display());
    let state = folder.path().join("server.state");
    // The servers run on this runtime. Each case has a runtime of its own.
    let subjects = runtime.block_on(async {
        let memory = serve_memory(state, &sqlite).await;
        [memory, serve(&sqlite).await].map(|subject| subject.expect("a server"))
    });
    libtest_mimic::run(&arguments, trials(&subjects)).exit_code()
}

/// Opens a store of this URL, by the drivers of this test.
async fn open(url: &str) -> Result<Store> {
    let drivers = Drivers::new()
        .with(Arc::new(RemoteDriver))
        .with(Arc::new(distlock_sql::SqliteDriver));
    drivers.open(url).await
}

fn config() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.listen = Some("127.0.0.1:0".to_owned());
    config
}

/// Serves locks in the memory of this process, and the records of another store.
async fn serve_memory(path: PathBuf, records: &str) -> Result<Subject> {
    let state = StateOptions { path, is_new: true };
    let (records, clock) = (open(records).await?.records(), Arc::new(SystemClock));
    let server = LockServer::start_in_memory(config(), state, records, clock).await?;
    subject("memory", server).await
}

/// Serves the store of a SQLite file.
async fn serve(url: &str) -> Result<Subject> {
    let server = LockServer::start(config(), open(url).await?).await?;
    subject("sqlite", server).await
}

/// The clients of a server, which serves until this process ends.
async fn subject(name: &str, server: LockServer) -> Result<Subject> {
    let url = server.url().to_owned();
    tokio::spawn(server.run(std::future::pending()));
    let program = env::current_exe().expect("this program");
    let workers = Workers::new(program, [WORKER], url.clone());
    let subject = Subject::connect(name, move || {
        let url = url.clone();
        async move { open(&url).await }
    });
    Ok(subject.await?.with_workers(workers))
}
