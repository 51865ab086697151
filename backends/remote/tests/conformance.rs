//! The conformance suite through real sockets: over a lock server that serves a store in memory,
//! and over one that serves a SQLite file. Each worker is a process of this same binary.

use std::{env, process::ExitCode, sync::Arc};

use distlock_backend_kit::Drivers;
use distlock_conformance::{Subject, Workers, trials, worker};
use distlock_core::{Result, Store};
use distlock_remote::RemoteDriver;
use distlock_server::{LockServer, ServerConfig};
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
    // The servers run on this runtime. Each case has a runtime of its own.
    let subjects = runtime.block_on(async {
        let mut subjects = Vec::new();
        for (name, behind) in [("memory", "memory:?private=true"), ("sqlite", &*sqlite)] {
            let served = serve(name, behind).await;
            subjects.push(served.unwrap_or_else(|error| panic!("{behind}: {error}")));
        }
        subjects
    });
    libtest_mimic::run(&arguments, trials(&subjects)).exit_code()
}

/// Opens a store of this URL, by the drivers of this test.
async fn open(url: &str) -> Result<Store> {
    let drivers = Drivers::new()
        .with(Arc::new(RemoteDriver))
        .with(Arc::new(distlock_memory::MemoryDriver))
        .with(Arc::new(distlock_sql::SqliteDriver));
    drivers.open(url).await
}

/// Serves the store behind a URL until this process ends.
async fn serve(name: &str, behind: &str) -> Result<Subject> {
    let mut config = ServerConfig::default();
    config.listen = "127.0.0.1:0".to_owned();
    let server = LockServer::start(config, open(behind).await?).await?;
    let url = format!("distlock://{}", server.address());
    tokio::spawn(server.run(std::future::pending()));
    let program = env::current_exe().expect("this program");
    let workers = Workers::new(program, [WORKER], url.clone());
    let subject = Subject::connect(name, move || {
        let url = url.clone();
        async move { open(&url).await }
    });
    Ok(subject.await?.with_workers(workers))
}
