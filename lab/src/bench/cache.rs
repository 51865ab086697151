//! `distlock-lab bench --workload cache`: many callers want one value, with the guard and without.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock::{Clock as _, FencingToken, Store, SystemClock, Target};
use distlock_recipes::cache_guard::{
    Cache, CacheGuard, Loaded, MemoryCache, RecordsCache, RedisCache, Seen, Settings,
};
use distlock_report::{Arm, Counters, Options, Report, Subject, Workload, measure};

use distlock_cli::program::{self, Context, Outcome, Sharing};

/// The time for which a value is fresh.
const TTL: Duration = Duration::from_millis(200);
/// The time that a load takes.
const LOAD: Duration = Duration::from_millis(20);

/// One way to get the value. A cycle reads the value once.
struct Way {
    key: String,
    reader: CacheReader,
    loads: Arc<AtomicU64>,
}

enum CacheReader {
    Guarded(CacheGuard),
    /// Cache-aside: each caller that finds no fresh value loads it.
    Naive(Arc<dyn Cache>),
}

impl Subject for Way {
    type Held = ();
    type Error = distlock::Error;

    async fn acquire(&self, _name: &str) -> distlock::Result<()> {
        let loads = Arc::clone(&self.loads);
        let load = async move || {
            loads.fetch_add(1, Ordering::Relaxed);
            SystemClock.sleep(LOAD).await;
            Ok(Some(b"value".to_vec()))
        };
        match &self.reader {
            CacheReader::Guarded(guard) => guard.get_or_rebuild(&self.key, load).await.map(drop),
            CacheReader::Naive(cache) => {
                let Seen { found, mark } = cache.get(&self.key).await?;
                if found.is_none() {
                    let value = load().await?;
                    cache
                        .put(&self.key, &loaded_without_lock(value)?, mark)
                        .await?;
                }
                Ok(())
            }
        }
    }

    async fn release(&self, (): ()) -> distlock::Result<()> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        let loads = Some(self.loads.load(Ordering::Relaxed));
        Counters {
            loads,
            ..Counters::default()
        }
    }
}

/// A loaded value, for callers that take no lock. All loads have the same token.
fn loaded_without_lock(value: Option<Vec<u8>>) -> distlock::Result<Loaded> {
    Ok(Loaded {
        value: value.map(Arc::from),
        token: FencingToken::new(1)?,
        ttl: TTL,
        stale: Duration::ZERO,
        floor: Duration::from_secs(30),
        load: LOAD,
    })
}

/// Opens the store and measures both ways.
pub(super) async fn measure_store(context: &Context, options: &Options) -> Outcome<Report> {
    let target = context.target(Sharing::Optional)?;
    let store = program::open(target.clone()).await?;
    program::print_message(format_args!(
        "measuring a value that is fresh for {TTL:?} and takes {LOAD:?} to load, for {:.1} s each",
        options.duration.as_secs_f64()
    ));
    let report = measure_ways(&target, &store, options).await;
    store.close().await;
    report
}

/// Measures the cache with the guard and without the guard.
pub(crate) async fn measure_ways(
    target: &Target,
    store: &Store,
    options: &Options,
) -> Outcome<Report> {
    let name = options.name.clone().unwrap_or_else(|| "bench:cache".into());
    let mut settings = Settings::ttl(TTL);
    settings.jitter = 0.0;
    settings.beta = 0.0;
    let guard = CacheGuard::new(store, open_cache(target, store)?, settings)?;
    let arms = [
        ("guarded", CacheReader::Guarded(guard)),
        ("naive", CacheReader::Naive(open_cache(target, store)?)),
    ];
    let arms = arms.map(|(arm, reader)| {
        let way = Way {
            key: format!("{name}:{arm}"),
            reader,
            loads: Arc::default(),
        };
        Arm::new(arm, way)
    });
    Ok(measure(&arms, Workload::Cache, options).await?)
}

/// Opens the cache that belongs to the store: Redis itself, the records of the store, or the memory
/// of this process.
fn open_cache(target: &Target, store: &Store) -> Outcome<Arc<dyn Cache>> {
    let url = target.reveal_url();
    Ok(match target.scheme().as_deref() {
        Some("redis" | "rediss") => Arc::new(RedisCache::new(&url)?),
        _ if store.records().tells_ages() => Arc::new(RecordsCache::new(store)?),
        _ => Arc::new(MemoryCache::new(100)),
    })
}
