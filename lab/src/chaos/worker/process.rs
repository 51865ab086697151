//! The process of a worker. The process opens the store, runs its tasks, and closes the store.
//!
//! Measures the stalls of this process, and its memory and descriptors.
//!
//! A late notice is no defect of the library if the process was stopped or the machine was busy. A
//! thread of its own records such times.

use std::{fs, sync::Arc, thread, time::Duration};

use anyhow::Result;
use distlock::{Clock as _, Store, SystemClock};
use fastrand::Rng;
use tokio::{runtime::Builder, sync::watch, task::JoinSet};

use super::{
    control,
    referee_client::{HistoryWriter, RefereeClient},
    run::leftovers,
    shared::SharedLocks,
    task::WorkerTask,
};
use crate::chaos::{
    history::{CallKind, CallResult, Event, Micros, now},
    planted_bugs,
    stores::target,
    worker_settings::{READ_BOUND, RETRY_PAUSE, WorkerSettings},
};

/// Runs a worker until it has answered the roll call and closed its store.
pub(crate) fn run(settings: WorkerSettings) -> Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::ERROR)
        .with_writer(std::io::stderr)
        .init();
    let mut runtime = if settings.single_threaded {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    runtime.block_on(work(Arc::new(settings)))
}

/// Runs the tasks of a worker until the roll call is answered.
async fn work(settings: Arc<WorkerSettings>) -> Result<()> {
    let history = Arc::new(HistoryWriter::connect(&settings.socket, settings.worker)?);
    start_meter(Arc::clone(&history))?;
    if let Some(control) = settings.control {
        return control::work(&settings, control, history).await;
    }
    let mut stores = Vec::new();
    for _ in 0..settings.clients {
        let store = open_store(&settings).await;
        let shared_locks = SharedLocks::new(&store)?;
        stores.push((store, shared_locks));
    }
    history.record(Event::Started {
        pid: std::process::id(),
    });
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let mut rng = Rng::with_seed(settings.seed);
    let clients = (0..settings.tasks).flat_map(|at| stores.iter().map(move |it| (at, it)));
    for (number, (store, shared_locks)) in clients {
        let referee = RefereeClient::connect(&settings.socket, settings.worker).await?;
        let task = WorkerTask {
            settings: Arc::clone(&settings),
            history: Arc::clone(&history),
            referee,
            locker: store.locker(),
            store: store.clone(),
            records: store.records(),
            shared_locks: shared_locks.clone(),
            rng: rng.fork(),
            number,
            is_brief: number < settings.brief_tasks,
            stop: stopped.clone(),
        };
        tasks.spawn(task.run());
    }
    let mut referee = RefereeClient::connect(&settings.socket, settings.worker).await?;
    tokio::select! {
        called = referee.wait_for_roll_call() => called?,
        // No task ends before the roll call, so a task that ends here has failed.
        Some(ended) = tasks.join_next() => ended??,
    }
    stop.send_replace(true);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    for (store, _) in &stores {
        if settings.checks_leftovers {
            let locker = store.locker();
            for (name, holder) in leftovers(&locker, settings.longest_ttl()).await {
                history.record(Event::Left { name, holder });
            }
        }
    }
    for (store, _) in stores {
        let closing = history.begin_call(CallKind::Close, READ_BOUND);
        store.close().await;
        closing.finish(CallResult::Done);
    }
    history.record(Event::Finished { at: now() });
    Ok(())
}

/// Opens the store, with as many attempts as needed, because the store may be broken at this
/// moment.
async fn open_store(settings: &WorkerSettings) -> Store {
    loop {
        let url = settings.url.as_str();
        let store = match settings.bug {
            Some(bug) => planted_bugs::open(bug, settings).await,
            None => {
                let records_url = settings.records_url.clone();
                distlock::open(target(url, records_url))
                    .await
                    .map_err(Into::into)
            }
        };
        match store {
            Ok(store) => return store,
            Err(_) => SystemClock.sleep(RETRY_PAUSE).await,
        }
    }
}

/// Time between two wake-ups.
const TICK: Duration = Duration::from_millis(20);
/// A wake-up this much later than planned counts as a stall.
const LATE_US: Micros = 40_000;
/// Number of ticks between two measurements of memory and descriptors.
const MEASURE_TICKS: u32 = 10;

/// Starts the thread that measures until the process ends.
fn start_meter(history: Arc<HistoryWriter>) -> std::io::Result<()> {
    let watching = move || {
        let tick_us = u64::try_from(TICK.as_micros()).unwrap_or_default();
        let mut ticks = 0_u32;
        loop {
            let from = now();
            thread::park_timeout(TICK);
            let to = now();
            if to > from + tick_us + LATE_US {
                history.record(Event::Stalled { from, to });
            }
            ticks += 1;
            if ticks.is_multiple_of(MEASURE_TICKS)
                && let Some((resident_kib, descriptors)) = measure_usage()
            {
                history.record(Event::Usage {
                    at: to,
                    resident_kib,
                    descriptors,
                });
            }
        }
    };
    thread::Builder::new()
        .name("meter".into())
        .spawn(watching)
        .map(drop)
}

/// Returns the memory in KiB, and the number of open descriptors.
fn measure_usage() -> Option<(u64, u64)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let resident = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let descriptors = fs::read_dir("/proc/self/fd").ok()?.count();
    Some((resident, u64::try_from(descriptors).ok()?))
}
