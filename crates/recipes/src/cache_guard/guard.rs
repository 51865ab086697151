//! The guard of a cache: loads of values, shared by their callers.

use std::{
    collections::HashMap,
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use distlock_core::{
    Attempt, Clock, Error, ErrorKind, FencingToken, Guard, LockName, Locker, Result, Store,
};
use futures_util::FutureExt as _;
use tokio::sync::watch;

use super::{
    cache::{Cache, Found, Loaded, Mark},
    settings::{Fallback, Settings},
};

/// Longest key in bytes.
const LONGEST_KEY: usize = 240;

/// What a load gives: a value, or that there is none.
pub type Value = Option<Arc<[u8]>>;

/// Guards a cache. Cheap to clone; clones share their loads.
#[derive(Clone)]
pub struct CacheGuard(Arc<Inner>);

struct Inner {
    locker: Locker,
    clock: Arc<dyn Clock>,
    cache: Arc<dyn Cache>,
    settings: Settings,
    /// The loads of this process that are under way.
    flights: Mutex<HashMap<String, Flight>>,
}

/// What a load comes to; `None` = it is under way.
type Flight = watch::Receiver<Option<Result<Rebuilt>>>;

/// How a load ends that did not fail.
#[derive(Clone, Debug)]
enum Rebuilt {
    Here(Value),
    /// Somebody else loads it, and whoever began this one had a value that will do meanwhile.
    Elsewhere,
}

/// Who asks for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    /// Somebody who waits for the value.
    InNeed,
    /// Somebody who has one that will do meanwhile, of this token.
    AheadOf(FencingToken),
}

impl CacheGuard {
    /// Guards this cache by the locks of this store.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], naming the setting that is out of range.
    pub fn new(store: &Store, cache: impl Cache + 'static, settings: Settings) -> Result<Self> {
        settings.check()?;
        Ok(Self(Arc::new(Inner {
            locker: store.locker(),
            clock: store.clock(),
            cache: Arc::new(cache),
            settings,
            flights: Mutex::default(),
        })))
    }

    /// The value under a key, loaded by `loader` unless it is there or somebody else loads it.
    /// `None` = the loader says that there is none.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a key that is empty, longer than 240 bytes or has control
    /// characters; the loader's own error; [`ErrorKind::Timeout`] for a load that takes longer than
    /// `max_load`, and for a wait that was too long; [`ErrorKind::Internal`] for a loader that
    /// panics; failures of the cache and of the lock's store, unless the fallback is to load.
    ///
    /// # Cancel safety
    /// Safe to drop: a load that has begun goes on, for others.
    pub async fn get_or_rebuild<L, F>(&self, key: &str, loader: L) -> Result<Value>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        let outcome = self.get(key, loader).await;
        if outcome.is_err() {
            counted("failed");
        }
        outcome
    }

    async fn get<L, F>(&self, key: &str, loader: L) -> Result<Value>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        lock_name(key)?;
        let found = match self.0.cache.get(key).await {
            Ok(seen) => seen.found,
            Err(error) => return self.0.fall_back(loader, error).await,
        };
        if let Some(found) = found {
            let is_stale = found.fresh_for.is_zero();
            if is_stale || is_early(&found, self.0.settings.beta) {
                // Nobody waits for it, and nobody hears of its failure but the log.
                self.flight(key, loader, Asks::AheadOf(found.token));
            }
            counted(if is_stale { "stale" } else { "hit" });
            return Ok(found.value);
        }
        let patience = self.0.clock.sleep(self.0.settings.wait);
        tokio::pin!(patience);
        let mut loader = loader;
        loop {
            let (flight, not_needed) = self.flight(key, loader, Asks::InNeed);
            let Some(back) = not_needed else {
                return match landed(flight).await? {
                    Rebuilt::Here(value) => Ok(value),
                    Rebuilt::Elsewhere => Err(broke_off()),
                };
            };
            loader = back;
            tokio::select! {
                biased;
                outcome = landed(flight) => if let Rebuilt::Here(value) = outcome? {
                    counted("waited");
                    return Ok(value);
                },
                () = &mut patience => {
                    let waited = self.0.settings.wait;
                    let says = format!("{key:?} was not loaded by somebody else within {waited:?}");
                    let error = Error::new(ErrorKind::Timeout, says);
                    return self.0.fall_back(loader, error).await;
                }
            }
        }
    }

    /// Removes the value under a key. What is being loaded now is given to those who wait for it,
    /// and is not stored.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] as [`get_or_rebuild`](Self::get_or_rebuild); failures of the
    /// cache.
    ///
    /// # Cancel safety
    /// When it is dropped the value is removed or not; repeating it is safe.
    pub async fn delete(&self, key: &str) -> Result<()> {
        lock_name(key)?;
        self.0.cache.delete(key, self.0.settings.max_load).await?;
        // Whoever comes from now on does not join a load that has begun before.
        self.0.flights().remove(key);
        Ok(())
    }

    /// Joins the load of this process that is under way, or begins one. The loader comes back where
    /// it was not needed.
    fn flight<L, F>(&self, key: &str, loader: L, asks: Asks) -> (Flight, Option<L>)
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        let mut flights = self.0.flights();
        if let Some(flight) = flights.get(key) {
            return (flight.clone(), Some(loader));
        }
        let (landing, flight) = watch::channel(None);
        flights.insert(key.to_owned(), flight.clone());
        drop(flights);
        let landing = Landing {
            inner: Arc::clone(&self.0),
            key: key.to_owned(),
            outcome: landing,
        };
        tokio::spawn(async move {
            let key = &landing.key;
            let outcome = landing.inner.rebuild(key, loader, asks).await;
            if let Err(error) = &outcome
                && asks != Asks::InNeed
            {
                tracing::warn!(key, %error, "a value that will do meanwhile was not loaded anew");
            }
            landing.end();
            landing.outcome.send_replace(Some(outcome));
        });
        (flight, None)
    }
}

/// A load under way. Where it breaks off, with its runtime or by a cache that panics, nobody joins
/// it any more.
struct Landing {
    inner: Arc<Inner>,
    key: String,
    outcome: watch::Sender<Option<Result<Rebuilt>>>,
}

impl Landing {
    /// From now on nobody joins it.
    fn end(&self) {
        let mut flights = self.inner.flights();
        // After a delete, another load may be under way.
        let its_own = self.outcome.subscribe();
        if flights
            .get(&self.key)
            .is_some_and(|it| it.same_channel(&its_own))
        {
            flights.remove(&self.key);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.end();
    }
}

impl Inner {
    /// Loads the value under the key's lock, unless somebody has in between.
    async fn rebuild<L, F>(&self, key: &str, loader: L, asks: Asks) -> Result<Rebuilt>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        let guard = match self.lock(key, asks).await {
            Ok(Some(guard)) => guard,
            Ok(None) => return Ok(Rebuilt::Elsewhere),
            Err(error) if asks == Asks::InNeed => {
                return self.fall_back(loader, error).await.map(Rebuilt::Here);
            }
            // Whoever is in need has joined it, perhaps, and has a fallback of its own.
            Err(error) => {
                tracing::warn!(key, %error, "a value that will do meanwhile was not loaded anew");
                return Ok(Rebuilt::Elsewhere);
            }
        };
        let seen = match self.cache.get(key).await {
            Err(error) if asks == Asks::InNeed => {
                return self.fall_back(loader, error).await.map(Rebuilt::Here);
            }
            seen => seen?,
        };
        if let Some(found) = seen.found
            && !found.fresh_for.is_zero()
            && asks != Asks::AheadOf(found.token)
        {
            counted("waited");
            return Ok(Rebuilt::Here(found.value));
        }
        let (value, load) = self.load(loader).await?;
        counted("rebuilt");
        let loaded = Loaded {
            value: value.clone(),
            token: guard.token(),
            ttl: self.settings.time_of(value.is_none()),
            stale: self.settings.stale,
            floor: self.settings.max_load,
            load,
        };
        self.store(key, &loaded, seen.mark).await;
        // It is released behind the caller's back.
        drop(guard);
        Ok(Rebuilt::Here(value))
    }

    /// Under which it is loaded; `None` = nobody is in need of it, and somebody else has the lock.
    async fn lock(&self, key: &str, asks: Asks) -> Result<Option<Guard>> {
        let mut lock = self.locker.lock_named(&lock_name(key)?);
        if let Some(ttl) = self.settings.lock_ttl {
            lock = lock.ttl(ttl);
        }
        if asks == Asks::InNeed {
            return lock.wait(self.settings.wait).acquire().await.map(Some);
        }
        Ok(match lock.try_acquire().await? {
            Attempt::Acquired(guard) => Some(guard),
            Attempt::Busy(_) => None,
        })
    }

    /// The value is its caller's, whether it can be stored or not.
    async fn store(&self, key: &str, loaded: &Loaded, mark: Mark) {
        let size = loaded.value.as_ref().map_or(0, |value| value.len());
        if size > self.settings.max_value {
            let most = self.settings.max_value;
            tracing::warn!(key, size, most, "a value is too large to be stored");
            return;
        }
        if loaded.value.is_none() && self.settings.negative_ttl.is_zero() {
            return;
        }
        match self.cache.put(key, loaded, mark).await {
            Ok(true) => {}
            Ok(false) => {
                metrics::counter!("distlock_cache_refused_total").increment(1);
                tracing::debug!(key, token = %loaded.token, "a value came too late to be stored");
            }
            Err(error) => tracing::warn!(key, %error, "a value could not be stored"),
        }
    }

    /// What becomes of somebody who can neither have the value nor be the one to load it.
    async fn fall_back<L, F>(&self, loader: L, why: Error) -> Result<Value>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        if self.settings.fallback == Fallback::Error {
            return Err(why);
        }
        tracing::debug!(error = %why, "a value is loaded beside the cache");
        let (value, _) = self.load(loader).await?;
        counted("loaded_anyway");
        Ok(value)
    }

    /// Loads a value, and says how long it took.
    async fn load<L, F>(&self, loader: L) -> Result<(Value, Duration)>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        let began = self.clock.now();
        // The loader itself may panic, and so may its future.
        let loading = AssertUnwindSafe(async { loader().await }).catch_unwind();
        let most = self.settings.max_load;
        let loaded = tokio::select! {
            biased;
            loaded = loading => loaded.unwrap_or_else(|panic| {
                let why = panic.downcast_ref::<&str>().map(|it| (*it).to_owned());
                let why = why.or_else(|| panic.downcast_ref::<String>().cloned());
                let says = format!("the loader panicked: {}", why.unwrap_or_default());
                Err(Error::new(ErrorKind::Internal, says))
            }),
            () = self.clock.sleep(most) => {
                let says = format!("the load took longer than {most:?}, and was given up");
                Err(Error::new(ErrorKind::Timeout, says))
            }
        };
        let took = self.clock.now().since(began);
        metrics::histogram!("distlock_cache_load_seconds").record(took.as_secs_f64());
        Ok((loaded?.map(Arc::from), took))
    }

    fn flights(&self) -> std::sync::MutexGuard<'_, HashMap<String, Flight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CacheGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheGuard")
            .field("cache", &self.0.cache)
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}

async fn landed(mut flight: Flight) -> Result<Rebuilt> {
    let outcome = flight.wait_for(Option::is_some).await;
    let outcome = outcome.ok().and_then(|outcome| outcome.clone());
    outcome.unwrap_or_else(|| Err(broke_off()))
}

/// The runtime ends.
fn broke_off() -> Error {
    Error::new(ErrorKind::Internal, "the load broke off")
}

/// Whether a fresh value is loaded anew before its end: the likelier, the nearer its end is, and
/// the longer its load takes.
fn is_early(found: &Found, beta: f64) -> bool {
    // 0 is not among the random numbers.
    let ahead = -(1.0 - fastrand::f64()).ln() * beta * found.load.as_secs_f64();
    ahead > 0.0 && ahead >= found.fresh_for.as_secs_f64()
}

fn lock_name(key: &str) -> Result<LockName> {
    let name = LockName::new(format!("cache/{key}")).ok();
    let name = name.filter(|_| (1..=LONGEST_KEY).contains(&key.len()));
    name.ok_or_else(|| {
        let bytes = key.len();
        let says = format!(
            "the key {key:?} has {bytes} bytes: 1 to {LONGEST_KEY} are allowed, without control \
             characters"
        );
        Error::new(ErrorKind::InvalidName, says)
    })
}

fn counted(result: &'static str) {
    metrics::counter!("distlock_cache_total", "result" => result).increment(1);
}
