//! Tests that a program describes to its recorder exactly the metrics that docs/metrics.md lists,
//! that the metric of requests has the count of each store, and that the metrics of a ring follow a
//! change of its members.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock::{
    backend::sync::Mutex,
    ring::{self, Terms},
};
use distlock_harness::{
    eventually_async,
    servers::{
        mysql::{MySqlServer, Product},
        postgres::PostgresServer,
        redis::RedisServer,
        zookeeper::ZooKeeper,
    },
};
use distlock_recipes::{
    Periodic,
    cache_guard::{CacheGuard, MemoryCache, Settings},
    election::Election,
    idempotent::Idempotent,
    shared::RwLock,
    unread::OptimisticCounters,
};
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};

const PAGE: &str = include_str!("../docs/metrics.md");

const SOON: Duration = Duration::from_secs(20);

type Count = Arc<AtomicU64>;

/// A recorder that keeps the name of every metric that got a help text, and the value of every
/// counter and gauge.
#[derive(Clone, Default)]
struct Recorded {
    described: Arc<Mutex<BTreeSet<String>>>,
    counters: Arc<Mutex<Vec<(Key, Count)>>>,
    /// A gauge has the bits of its value.
    gauges: Arc<Mutex<Vec<(Key, Count)>>>,
}

/// The value of a metric, which is new if nobody has asked for it yet.
fn value_of(values: &Mutex<Vec<(Key, Count)>>, key: &Key) -> Count {
    let mut values = values.lock();
    if let Some((_, value)) = values.iter().find(|(known, _)| known == key) {
        return Arc::clone(value);
    }
    let value = Count::default();
    values.push((key.clone(), Arc::clone(&value)));
    value
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
        Counter::from_arc(value_of(&self.counters, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(value_of(&self.gauges, key))
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
    follow_a_ring(&recorded).await;

    // Later chapters list what the tool writes by itself.
    let (of_recorder, _) = PAGE.split_once("\n## ").unwrap();
    let rows = of_recorder
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

/// Checks the metrics of a ring while a member is removed.
async fn follow_a_ring(recorded: &Recorded) {
    const URL: &str = "ring:?records=memory:metrics&member=a=memory:metrics-a&\
                       member=b=memory:metrics-b";
    let gauge = |name: &'static str| {
        let value = value_of(&recorded.gauges, &Key::from_name(name));
        f64::from_bits(value.load(Ordering::Relaxed))
    };
    let moving = || {
        let labels = vec![Label::new("reason", "moving")];
        let key = Key::from_parts("distlock_ring_refused_total", labels);
        value_of(&recorded.counters, &key).load(Ordering::Relaxed)
    };
    let registry = distlock::Registry::builtin();
    let drivers = registry.drivers();
    let terms = Terms {
        validity: Duration::from_millis(300),
        max_lease: Duration::from_secs(1),
    };
    let made = ring::init(URL, drivers, terms, true).await.unwrap();
    let store = registry.open(URL).await.unwrap();
    let number = made.number as f64;
    assert_eq!(gauge("distlock_ring_view"), number);
    assert_eq!(gauge("distlock_ring_members"), 2.0);
    assert_eq!((gauge("distlock_ring_pending"), moving()), (0.0, 0));
    ring::remove(URL, drivers, "b").await.unwrap();
    let followed = eventually_async("the gauges follow", SOON, || async {
        let followed = gauge("distlock_ring_members") == 1.0
            && gauge("distlock_ring_pending") == 1.0
            && gauge("distlock_ring_view") > number;
        followed.then_some(())
    });
    followed.await.unwrap();
    for name in 0..20 {
        let _ = store.locker().lock(format!("n{name}")).try_acquire().await;
    }
    let refused = moving();
    assert!((1..=20).contains(&refused), "{refused} of 20 names move");
    let over = eventually_async("the quarantine is over", SOON, || async {
        (gauge("distlock_ring_pending") == 0.0).then_some(())
    });
    over.await.unwrap();
    store.close().await;
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
