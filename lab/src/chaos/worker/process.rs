//! The process of a worker: it opens the store, runs its tasks, and closes the store.

use std::sync::Arc;

use anyhow::Result;
use distlock::{Clock as _, Store, SystemClock};
use fastrand::Rng;
use tokio::{runtime::Builder, sync::watch, task::JoinSet};

use super::{
    control,
    leftovers::leftovers,
    meter,
    notes::{Notes, Questions},
    settings::{AGAIN, LOOK, Settings},
    task::Task,
};
use crate::chaos::{
    history::{Answer, Call, Event, now},
    plants,
};

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
            Some(plant) => plants::open(plant, url, settings.worker).await,
            None => distlock::open(url).await.map_err(Into::into),
        };
        match store {
            Ok(store) => return store,
            Err(_) => SystemClock.sleep(AGAIN).await,
        }
    }
}
