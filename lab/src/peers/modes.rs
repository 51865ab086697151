//! Readers, writers and permits beside the exclusive lock of the same store.

use std::collections::HashMap;

use distlock_core::{Released, Store, sync::Mutex};
use distlock_recipes::shared::{RwLock, Semaphore, SharedBuilder, SharedGuard};
use distlock_report::{
    Arm, Counters, CountingStore, LockerSubject, Options, Report, Subject, Workload, measure,
};

use super::hand_over::open_store;

/// The number of permits of each semaphore.
const CAPACITY: u32 = 64;

/// Measures the arms on the store at `url`.
pub(super) async fn run(workload: Workload, options: Options, url: &str) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let store = open_store(url).await?;
    let exclusive = LockerSubject::new(store.backend());
    let locker = exclusive.locker().clone();
    locker.ready().await?;
    let mut arms = vec![Arm::new("exclusive", exclusive)];
    let mut opened = Vec::new();
    for (name, way) in [
        ("write", Way::Write),
        ("read", Way::Read),
        ("permits", Way::Permits),
    ] {
        let subject = SharedSubject::new(&store, way);
        subject.store.ready().await?;
        opened.push(subject.store.clone());
        arms.push(Arm::new(name, subject));
    }
    let report = measure(&arms, workload, &options).await?;
    for it in opened {
        it.locker().close().await;
    }
    locker.close().await;
    Ok(report)
}

/// What the callers of an arm ask for.
#[derive(Clone, Copy, Debug)]
enum Way {
    Write,
    Read,
    Permits,
}

/// Shared locks by name. The callers of one name share one value, as the documentation advises.
#[derive(Debug)]
struct SharedSubject {
    calls: CountingStore,
    store: Store,
    way: Way,
    builders: Mutex<HashMap<String, SharedBuilder>>,
}

impl SharedSubject {
    fn new(store: &Store, way: Way) -> Self {
        let calls = CountingStore::new(store);
        Self {
            store: calls.store(),
            calls,
            way,
            builders: Mutex::default(),
        }
    }

    /// Returns the builder of a name, which keeps the shared lock between the cycles.
    fn builder(&self, name: &str) -> distlock_core::Result<SharedBuilder> {
        let mut builders = self.builders.lock();
        if let Some(builder) = builders.get(name) {
            return Ok(builder.clone());
        }
        let builder = match self.way {
            Way::Write => RwLock::new(&self.store, name)?.write(),
            Way::Read => RwLock::new(&self.store, name)?.read(),
            Way::Permits => Semaphore::new(&self.store, name, CAPACITY)?.permits(1),
        };
        builders.insert(name.to_owned(), builder.clone());
        Ok(builder)
    }
}

impl Subject for SharedSubject {
    type Held = SharedGuard;
    type Error = String;

    async fn acquire(&self, name: &str) -> Result<SharedGuard, String> {
        let builder = self.builder(name).map_err(|error| error.to_string())?;
        builder.acquire().await.map_err(|error| error.to_string())
    }

    async fn release(&self, guard: SharedGuard) -> Result<(), String> {
        match guard.release().await {
            Released::Clean => Ok(()),
            other => Err(format!("not released: {other:?}")),
        }
    }

    fn counters(&self) -> Counters {
        Counters {
            operations: Some(self.calls.calls()),
            statements: self.store.backend().requests_sent(),
            ..Counters::default()
        }
    }
}
