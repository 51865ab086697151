//! A process that takes locks, uses them, and says all that it sees.
//!
//! Its settings come through the environment: they hold the store's URL, which may have a password.

mod control;
mod hold;
mod line;
mod meter;
mod notes;
mod recipes;
mod records;
mod task;
mod ways;

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, Locker, Store, SystemClock};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tokio::{runtime::Builder, sync::watch, task::JoinSet};

use self::{
    notes::{Notes, Questions},
    task::Task,
};
use super::{
    controls::Control,
    history::{Answer, Call, Event, now},
    plants::Plant,
    workload::Workload,
};

/// The variable that makes a process a worker.
const SETTINGS: &str = "DISTLOCK_LAB_WORKER";
/// How often a store that cannot be opened is tried again.
const AGAIN: Duration = Duration::from_millis(50);
/// The documented bound of a call that only looks, and of `close`.
const LOOK: Duration = Duration::from_secs(10);
/// Time that the library may add to the wait that was asked for.
const BEYOND_WAIT: Duration = Duration::from_secs(5);
/// A loss that is not told by then is never told.
const NOTICE: Duration = Duration::from_secs(2);

/// The settings of a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Settings {
    pub(crate) worker: u32,
    pub(crate) socket: PathBuf,
    pub(crate) url: String,
    pub(crate) seed: u64,
    /// The locks that all fight for.
    pub(crate) names: Vec<String>,
    /// More locks, which are held for a moment each.
    pub(crate) quiet_names: Vec<String>,
    pub(crate) ttl_ms: (u64, u64),
    /// Longest time that a lock is held on purpose.
    pub(crate) hold_ms: u64,
    /// Independent clients of the store in this process, tasks of each, and how many of these
    /// tasks hurry.
    pub(crate) clients: u32,
    pub(crate) tasks: u32,
    pub(crate) hurrying: u32,
    /// One thread for everything, instead of two.
    pub(crate) single_threaded: bool,
    /// Whether it looks at the end what the store still holds: of a store that nobody else sees.
    pub(crate) looks_at_the_end: bool,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) plant: Option<Plant>,
    /// The lock that is used instead of distlock.
    pub(crate) control: Option<Control>,
}

impl Settings {
    /// `None` = this process is no worker.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        match env::var(SETTINGS) {
            Ok(text) => Ok(Some(serde_json::from_str(&text).context(SETTINGS)?)),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn variable(&self) -> Result<(&'static str, String)> {
        Ok((SETTINGS, serde_json::to_string(self)?))
    }

    const fn longest_ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.1)
    }
}

/// Runs until the referee calls the workers together.
pub(crate) fn run(settings: Settings) -> Result<()> {
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

async fn work(settings: Arc<Settings>) -> Result<()> {
    let notes = Arc::new(Notes::connect(&settings.socket, settings.worker)?);
    meter::start(Arc::clone(&notes))?;
    if let Some(control) = settings.control {
        return control::work(&settings, control, notes).await;
    }
    let mut stores = Vec::new();
    for _ in 0..settings.clients {
        stores.push(opened(&settings).await);
    }
    notes.note(Event::Started {
        pid: std::process::id(),
    });
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let mut rng = Rng::with_seed(settings.seed);
    for (number, store) in (0..settings.tasks).flat_map(|at| stores.iter().map(move |it| (at, it)))
    {
        let questions = Questions::connect(&settings.socket, settings.worker).await?;
        let task = Task {
            settings: Arc::clone(&settings),
            notes: Arc::clone(&notes),
            questions,
            locker: store.locker(),
            store: store.clone(),
            records: store.records(),
            rng: rng.fork(),
            number,
            hurries: number < settings.hurrying,
            stop: stopped.clone(),
        };
        tasks.spawn(task.run());
    }
    let mut questions = Questions::connect(&settings.socket, settings.worker).await?;
    tokio::select! {
        called = questions.roll_call() => called?,
        // No task ends before: the first that does has failed.
        Some(ended) = tasks.join_next() => ended??,
    }
    stop.send_replace(true);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    for store in &stores {
        if settings.looks_at_the_end {
            let locker = store.locker();
            for (name, holder) in leftovers(&locker, settings.longest_ttl()).await {
                notes.note(Event::Left { name, holder });
            }
        }
    }
    for store in stores {
        let closing = notes.call(Call::Close, LOOK);
        store.close().await;
        closing.answered(Answer::Done);
    }
    notes.note(Event::Finished { at: now() });
    Ok(())
}

/// Opens the store, however long it takes: it may be broken at the moment.
async fn opened(settings: &Settings) -> Store {
    loop {
        let url = settings.url.as_str();
        let store = match settings.plant {
            Some(plant) => plant.open(url, settings.worker).await,
            None => distlock::open(url).await.map_err(Into::into),
        };
        match store {
            Ok(store) => return store,
            Err(_) => SystemClock.sleep(AGAIN).await,
        }
    }
}

/// Names and holders of the locks that are still held long after everybody has left: longer than
/// the longest TTL of the run, and than the store's own, which recipes ask for.
pub(crate) async fn leftovers(locker: &Locker, longest_ttl: Duration) -> Vec<(String, String)> {
    let longest = longest_ttl.max(locker.capabilities().default_ttl);
    let until = SystemClock.now() + longest + BEYOND_WAIT;
    loop {
        let left = match locker.list("").await {
            Ok(held) => held
                .into_iter()
                .filter_map(|it| Some((it.name.to_string(), it.held?.holder)))
                .collect(),
            Err(error) => vec![("the store".to_owned(), error.to_string())],
        };
        if left.is_empty() || SystemClock.now() >= until {
            return left;
        }
        SystemClock.sleep(AGAIN).await;
    }
}
