//! Tests that a program describes to its recorder exactly the metrics that docs/metrics.md lists,
//! and that the metric of requests has the count of each store.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use distlock::{
    backend::sync::Mutex,
    ring::{Terms, init},
};
use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::PostgresServer,
    redis::RedisServer,
    zookeeper::ZooKeeper,
};
use distlock_recipes::{
    Periodic,
    cache_guard::{CacheGuard, MemoryCache, Settings},
    election::Election,
    idempotent::Idempotent,
    shared::RwLock,
    unread::OptimisticCounters,
};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

const PAGE: &str = include_str!("../docs/metrics.md");

type Count = Arc<AtomicU64>;

/// A recorder that keeps the name of every metric that got a help text, and the value of every
/// counter.
#[derive(Clone, Default)]
struct Recorded {
    described: Arc<Mutex<BTreeSet<String>>>,
    counters: Arc<Mutex<Vec<(Key, Count)>>>,
}

impl Recorded {
    fn add(&self, key: &KeyName, help: &SharedString) {
        assert!(!help.is_empty(), "{key:?}");
        let mut described = self.described.lock();
        described.insert(key.as_str().to_owned());
    }

    /// The number of requests to stores of this backend.
    fn requests_to(&self, backend: &str) -> u64 {
        let counters = self.counters.lock();
        let of_backend = counters.iter().filter(|(key, _)| {
            let mut labels = key.labels();
            key.name() == "distlock_store_requests_total"
                && labels.any(|label| label.key() == "backend" && label.value() == backend)
        });
        of_backend
            .map(|(_, count)| count.load(Ordering::Relaxed))
            .sum()
    }
}

impl Recorder for Recorded {
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

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.counters.lock();
        if let Some((_, count)) = counters.iter().find(|(known, _)| known == key) {
            return Counter::from_arc(Arc::clone(count));
        }
        let count = Arc::default();
        counters.push((key.clone(), Arc::clone(&count)));
        Counter::from_arc(count)
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

// This file has one test, because a process has one recorder.
#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_the_page_has_a_help_text_and_requests_are_counted() {
    let recorded = Recorded::default();
    metrics::set_global_recorder(recorded.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let store = distlock::open(url.as_str()).await.unwrap();
    let _election = Election::new(&store, "election", "candidate").unwrap();
    let _idempotent = Idempotent::new(&store);
    let _periodic = Periodic::new(&store).unwrap();
    let _cache = CacheGuard::new(&store, MemoryCache::new(1), Settings::default()).unwrap();
    let _unread = OptimisticCounters::new(&store);
    let _shared = RwLock::new(&store, "shared").unwrap();
    let ring = "ring:?records=memory:metrics&member=a=memory:metrics-a";
    let drivers = distlock::Registry::builtin();
    let made = init(ring, drivers.drivers(), Terms::default(), true).await;
    made.unwrap();
    let _ring = drivers.open(ring).await.unwrap();

    let rows = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `distlock_"));
    let listed: BTreeSet<_> = rows
        .map(|row| format!("distlock_{}", row.split(['`', '{']).next().unwrap()))
        .collect();
    assert_eq!(*recorded.described.lock(), listed);
    count_requests(&recorded, store).await;

    let redis = RedisServer::start().unwrap();
    let zookeeper = ZooKeeper::start().unwrap();
    let at_zookeeper = format!("zookeeper://{}/distlock", zookeeper.servers());
    let postgres = PostgresServer::start().unwrap();
    let mysql = MySqlServer::start(Product::MariaDb).unwrap();
    for url in [redis.url(), at_zookeeper, postgres.url(), mysql.url()] {
        count_requests(&recorded, distlock::open(url).await.unwrap()).await;
    }
}

/// Checks that the metric has counted each request of this store, the only one of its backend.
async fn count_requests(recorded: &Recorded, store: distlock::Store) {
    let guard = store.locker().lock("counted").acquire().await.unwrap();
    assert!(guard.release().await.is_clean());
    store.close().await;
    // A closed store sends nothing more.
    let backend = store.backend();
    let (name, sent) = (backend.capabilities().backend, backend.requests_sent());
    assert!(sent >= Some(2), "{name}: {sent:?}");
    assert_eq!(Some(recorded.requests_to(name)), sent, "{name}");
}
