//! Tests that a program describes to its recorder exactly the metrics that docs/metrics.md lists.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use distlock_recipes::{
    Periodic,
    cache_guard::{CacheGuard, MemoryCache, Settings},
    election::Election,
    idempotent::Idempotent,
    unread::OptimisticCounters,
};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

const PAGE: &str = include_str!("../docs/metrics.md");

/// A recorder that keeps the name of every metric that got a help text.
#[derive(Clone, Default)]
struct Described(Arc<Mutex<BTreeSet<String>>>);

impl Described {
    fn add(&self, key: &KeyName, help: &SharedString) {
        assert!(!help.is_empty(), "{key:?}");
        self.0.lock().unwrap().insert(key.as_str().to_owned());
    }
}

impl Recorder for Described {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.add(&key, &help);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.add(&key, &help);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, help: SharedString) {
        assert_eq!(unit, Some(Unit::Seconds), "{key:?}");
        self.add(&key, &help);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

// This file has one test, because a process has one recorder.
#[tokio::test]
async fn every_metric_of_the_page_has_a_help_text() {
    let described = Described::default();
    metrics::set_global_recorder(described.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let store = distlock::open(url.as_str()).await.unwrap();
    let _election = Election::new(&store, "election", "candidate").unwrap();
    let _idempotent = Idempotent::new(&store);
    let _periodic = Periodic::new(&store).unwrap();
    let _cache = CacheGuard::new(&store, MemoryCache::new(1), Settings::default()).unwrap();
    let _unread = OptimisticCounters::new(&store);

    let rows = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `distlock_"));
    let listed: BTreeSet<_> = rows
        .map(|row| format!("distlock_{}", row.split(['`', '{']).next().unwrap()))
        .collect();
    assert_eq!(*described.0.lock().unwrap(), listed);
    store.close().await;
}
