//! The process of a worker. The process opens the store, runs its tasks, and closes the store.

use std::sync::Arc;

use anyhow::Result;
use distlock::{Clock as _, Store, SystemClock};
use fastrand::Rng;
use tokio::{runtime::Builder, sync::watch, task::JoinSet};

use super::{
    control,
    leftovers::leftovers,
    meter,
    referee_client::{HistoryWriter, RefereeClient},
    settings::{READ_BOUND, RETRY_PAUSE, WorkerSettings},
    task::WorkerTask,
};
use crate::chaos::{
    history::{CallKind, CallResult, Event, now},
    planted_bugs,
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
    meter::start(Arc::clone(&history))?;
    if let Some(control) = settings.control {
        return control::work(&settings, control, history).await;
    }
    let mut stores = Vec::new();
    for _ in 0..settings.clients {
        stores.push(open_store(&settings).await);
    }
    history.record(Event::Started {
        pid: std::process::id(),
    });
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let mut rng = Rng::with_seed(settings.seed);
    for (number, store) in (0..settings.tasks).flat_map(|at| stores.iter().map(move |it| (at, it)))
    {
        let referee = RefereeClient::connect(&settings.socket, settings.worker).await?;
        let task = WorkerTask {
            settings: Arc::clone(&settings),
            history: Arc::clone(&history),
            referee,
            locker: store.locker(),
            store: store.clone(),
            records: store.records(),
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
    for store in &stores {
        if settings.checks_leftovers {
            let locker = store.locker();
            for (name, holder) in leftovers(&locker, settings.longest_ttl()).await {
                history.record(Event::Left { name, holder });
            }
        }
    }
    for store in stores {
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
            Some(bug) => planted_bugs::open(bug, url, settings.worker).await,
            None => distlock::open(url).await.map_err(Into::into),
        };
        match store {
            Ok(store) => return store,
            Err(_) => SystemClock.sleep(RETRY_PAUSE).await,
        }
    }
}
