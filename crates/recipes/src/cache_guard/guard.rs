//! The guard of a cache.
//!
//! This module owns the loads of this process. Invariant: one load per key is under way in a
//! process, with one exception: after a delete a new load may start while an old load is under way.
//! The value of the old load is then not stored. A load that ends in any way is removed, so no
//! caller waits for it for ever.

use std::{collections::HashMap, fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use distlock_core::{
    Attempt, Clock, Error, ErrorKind, FencingToken, Guard, LockName, Locker, Result, Store,
    at_most, sync::Mutex,
};
use futures_util::FutureExt as _;
use tokio::sync::watch;

use super::{
    cache::{Cache, Found, Loaded, Mark, Seen},
    nesting::{LoadName, LoaderWait},
    settings::{Fallback, Settings},
};

/// The longest key, in bytes.
const LONGEST_KEY: usize = 240;
const RESULTS: &str = "distlock_cache_total";
const REFUSED: &str = "distlock_cache_refused_total";
const LOAD_SECONDS: &str = "distlock_cache_load_seconds";

/// The result of a load: a value, or `None` when there is none.
pub type Value = Option<Arc<[u8]>>;

/// Guards a cache. A clone is cheap, and clones share their loads.
#[derive(Clone)]
pub struct CacheGuard(Arc<Shared>);

struct Shared {
    locker: Locker,
    clock: Arc<dyn Clock>,
    cache: Arc<dyn Cache>,
    settings: Settings,
    /// The loads of this process that are under way.
    loads: Mutex<HashMap<String, SharedLoad>>,
}

/// A load that several callers wait for. Its value is the result; `None`: the load is under way.
type SharedLoad = watch::Receiver<Option<Result<LoadResult>>>;

/// The result of a load that did not fail.
#[derive(Clone, Debug)]
enum LoadResult {
    /// The value, which was loaded here or found in the cache.
    Here(Value),
    /// No value was loaded, because another process holds the key's lock or the lock's store
    /// failed. The caller that began this load has a usable value.
    Elsewhere,
}

/// The reason why a caller asks for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// The caller waits for the value.
    Value,
    /// The caller has a usable value with this token. The load replaces that value early.
    Refresh(FencingToken),
}

impl CacheGuard {
    /// Guards this cache with the locks of this store.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] with the setting that is out of range.
    pub fn new(store: &Store, cache: impl Cache + 'static, settings: Settings) -> Result<Self> {
        settings.check()?;
        metrics::describe_counter!(RESULTS, "Callers of a guarded cache, by their result");
        metrics::describe_counter!(REFUSED, "Values that came too late to be stored in a cache");
        metrics::describe_histogram!(
            LOAD_SECONDS,
            metrics::Unit::Seconds,
            "Time of each load of a guarded cache"
        );
        Ok(Self(Arc::new(Shared {
            locker: store.locker(),
            clock: store.clock(),
            cache: Arc::new(cache),
            settings,
            loads: Mutex::default(),
        })))
    }

    /// The value under a key. `loader` loads the value, unless the value is in the cache or another
    /// caller loads it. `None`: the loader says that there is no value.
    ///
    /// A loader may ask this guard for other keys. A loader that waits for itself, directly or
    /// through loaders of other keys, gets an error at once. This holds within one process, and in
    /// the loader's own task; a circle of loaders in several processes ends after `wait` with
    /// [`ErrorKind::Timeout`].
    ///
    /// If the runtime of the caller that loads is shut down, the loader of another caller takes
    /// over.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a key that is empty, longer than 240 bytes or has control
    /// characters. [`ErrorKind::InvalidArgument`] for a loader that waits for itself. The loader's
    /// own error. [`ErrorKind::Timeout`] for a load that takes longer than `max_load`, and for a
    /// wait that was too long. [`ErrorKind::Internal`] for a loader that panics, and when the
    /// runtime of this caller is shut down. Failures of the cache and of the lock's store, unless
    /// the fallback is to load.
    ///
    /// # Cancel safety
    /// Safe: a load that has begun continues for other callers.
    pub async fn get_or_rebuild<L, F>(&self, key: &str, loader: L) -> Result<Value>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        let outcome = self.get_or_load(key, loader).await;
        if outcome.is_err() {
            count_result("failed");
        }
        outcome
    }

    /// Does what [`get_or_rebuild`](Self::get_or_rebuild) promises, without counting failures.
    async fn get_or_load<L, F>(&self, key: &str, loader: L) -> Result<Value>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        lock_name(key)?;
        let seen = self.0.cache.get(key).await;
        if let Ok(Seen {
            found: Some(found), ..
        }) = seen
        {
            let is_stale = found.fresh_for.is_zero();
            if is_stale || should_load_early(&found, self.0.settings.beta) {
                // No caller waits for this load, and its failure is only logged.
                self.join_or_start_load(key, loader, Need::Refresh(found.token));
            }
            count_result(if is_stale { "stale" } else { "hit" });
            return Ok(found.value);
        }
        let _waiting = LoaderWait::begin(&LoadName::new(&self.0, key))?;
        if let Err(error) = seen {
            return self.0.fall_back(key, loader, error).await;
        }
        let wait_over = self.0.clock.sleep(self.0.settings.wait);
        tokio::pin!(wait_over);
        let mut loader = loader;
        loop {
            let (load, unused_loader) = self.join_or_start_load(key, loader, Need::Value);
            let Some(unused) = unused_loader else {
                return match wait_for_load(load).await {
                    Some(Ok(LoadResult::Here(value))) => Ok(value),
                    Some(Err(error)) => Err(error),
                    // The runtime of this caller is shut down.
                    Some(Ok(LoadResult::Elsewhere)) | None => Err(load_interrupted_error()),
                };
            };
            loader = unused;
            tokio::select! {
                biased;
                outcome = wait_for_load(load) => match outcome {
                    Some(Ok(LoadResult::Here(value))) => {
                        count_result("waited");
                        return Ok(value);
                    }
                    Some(Err(error)) => return Err(error),
                    // The load has ended without a result, for example because the runtime of its
                    // caller was shut down. So this caller's loader takes over.
                    Some(Ok(LoadResult::Elsewhere)) | None => {}
                },
                () = &mut wait_over => {
                    let waited = self.0.settings.wait;
                    let says = format!("{key:?} was not loaded by somebody else within {waited:?}");
                    let error = Error::new(ErrorKind::Timeout, says);
                    return self.0.fall_back(key, loader, error).await;
                }
            }
        }
    }

    /// Removes the value under a key. A value that is being loaded now reaches the callers that
    /// wait for it, and is not stored.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] as [`get_or_rebuild`](Self::get_or_rebuild); failures of the
    /// cache.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the value removed or not. A repeated call is safe.
    pub async fn delete(&self, key: &str) -> Result<()> {
        lock_name(key)?;
        self.0.cache.delete(key, self.0.settings.max_load).await?;
        // A later caller must not join a load that began before the delete.
        self.0.loads.lock().remove(key);
        Ok(())
    }

    /// Joins the load of this key that is under way in this process, or starts a load in a task of
    /// its own. Returns the load, and also the unused loader when another load is joined.
    fn join_or_start_load<L, F>(&self, key: &str, loader: L, need: Need) -> (SharedLoad, Option<L>)
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        let mut loads = self.0.loads.lock();
        if let Some(load) = loads.get(key) {
            return (load.clone(), Some(loader));
        }
        let (outcome, load) = watch::channel(None);
        loads.insert(key.to_owned(), load.clone());
        drop(loads);
        let in_progress = LoadInProgress {
            shared: Arc::clone(&self.0),
            key: key.to_owned(),
            outcome,
        };
        tokio::spawn(async move {
            let key = &in_progress.key;
            let outcome = in_progress.shared.load_under_lock(key, loader, need).await;
            if let Err(error) = &outcome
                && need != Need::Value
            {
                tracing::warn!(key, %error, "a value that will do meanwhile was not loaded anew");
            }
            in_progress.unregister();
            in_progress.outcome.send_replace(Some(outcome));
        });
        (load, None)
    }
}

/// A load under way. Its drop removes the load from the list also when the runtime ends or the
/// cache panics. Otherwise later callers would join a load that never ends.
struct LoadInProgress {
    shared: Arc<Shared>,
    key: String,
    outcome: watch::Sender<Option<Result<LoadResult>>>,
}

impl LoadInProgress {
    /// Removes the load from the list, so that no later caller joins it.
    fn unregister(&self) {
        let mut loads = self.shared.loads.lock();
        // After a delete, another load of this key may be in the list. That other load must stay in
        // the list.
        let its_own = self.outcome.subscribe();
        if loads
            .get(&self.key)
            .is_some_and(|it| it.same_channel(&its_own))
        {
            loads.remove(&self.key);
        }
    }
}

impl Drop for LoadInProgress {
    fn drop(&mut self) {
        self.unregister();
    }
}

impl Shared {
    /// Loads the value under the key's lock, unless another caller has loaded it in between.
    async fn load_under_lock<L, F>(
        self: &Arc<Self>,
        key: &str,
        loader: L,
        need: Need,
    ) -> Result<LoadResult>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        let guard = match self.lock_for_load(key, need).await {
            Ok(Some(guard)) => guard,
            Ok(None) => return Ok(LoadResult::Elsewhere),
            Err(error) if need == Need::Value => {
                return self
                    .fall_back(key, loader, error)
                    .await
                    .map(LoadResult::Here);
            }
            // A caller without a value may have joined this load. That caller gets no error,
            // because it starts its own load next, with its own fallback.
            Err(error) => {
                tracing::warn!(key, %error, "a value that will do meanwhile was not loaded anew");
                return Ok(LoadResult::Elsewhere);
            }
        };
        let seen = match self.cache.get(key).await {
            Err(error) if need == Need::Value => {
                return self
                    .fall_back(key, loader, error)
                    .await
                    .map(LoadResult::Here);
            }
            seen => seen?,
        };
        if let Some(found) = seen.found
            && !found.fresh_for.is_zero()
            && need != Need::Refresh(found.token)
        {
            count_result("waited");
            return Ok(LoadResult::Here(found.value));
        }
        let (value, load) = self.run_loader(key, loader).await?;
        count_result("rebuilt");
        let loaded = Loaded {
            value: value.clone(),
            token: guard.token(),
            ttl: self.settings.fresh_time(value.is_none()),
            stale: self.settings.stale,
            floor: self.settings.max_load,
            load,
        };
        self.store_loaded(key, &loaded, seen.mark).await;
        // The drop of the guard releases the lock in the background, so no caller waits for the
        // release.
        drop(guard);
        Ok(LoadResult::Here(value))
    }

    /// Takes the lock for a load. A refresh does not wait for the lock. `None`: the load is a
    /// refresh, and another caller holds the lock.
    async fn lock_for_load(&self, key: &str, need: Need) -> Result<Option<Guard>> {
        let mut lock = self.locker.lock_named(&lock_name(key)?);
        if let Some(ttl) = self.settings.lock_ttl {
            lock = lock.ttl(ttl);
        }
        if need == Need::Value {
            return lock.wait(self.settings.wait).acquire().await.map(Some);
        }
        Ok(match lock.try_acquire().await? {
            Attempt::Acquired(guard) => Some(guard),
            Attempt::Busy(_) => None,
        })
    }

    /// Stores a loaded value. A failure is only logged, because the caller gets the value anyway.
    async fn store_loaded(&self, key: &str, loaded: &Loaded, mark: Mark) {
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
                metrics::counter!(REFUSED).increment(1);
                tracing::debug!(key, token = %loaded.token, "a value came too late to be stored");
            }
            Err(error) => tracing::warn!(key, %error, "a value could not be stored"),
        }
    }

    /// Returns `why`, or loads the value without the lock, as the settings say. A caller comes here
    /// when it can neither get the value nor load the value under the lock.
    async fn fall_back<L, F>(self: &Arc<Self>, key: &str, loader: L, why: Error) -> Result<Value>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        if self.settings.fallback == Fallback::Error {
            return Err(why);
        }
        tracing::debug!(error = %why, "a value is loaded beside the cache");
        let (value, _) = self.run_loader(key, loader).await?;
        count_result("loaded_anyway");
        Ok(value)
    }

    /// Runs the loader with a time limit. Returns the value and the time that the load took.
    async fn run_loader<L, F>(self: &Arc<Self>, key: &str, loader: L) -> Result<(Value, Duration)>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>>> + Send + 'static,
    {
        let began = self.clock.now();
        // The loader function may panic, and so may its future.
        let loading = LoadName::new(self, key).run(async { loader().await });
        let loading = AssertUnwindSafe(loading).catch_unwind();
        let most = self.settings.max_load;
        let loaded = match at_most(&*self.clock, most, loading).await {
            Some(loaded) => loaded.unwrap_or_else(|panic| {
                let why = panic.downcast_ref::<&str>().map(|it| (*it).to_owned());
                let why = why.or_else(|| panic.downcast_ref::<String>().cloned());
                let says = format!("the loader panicked: {}", why.unwrap_or_default());
                Err(Error::new(ErrorKind::Internal, says))
            }),
            None => {
                let says = format!("the load took longer than {most:?}, and was given up");
                Err(Error::new(ErrorKind::Timeout, says))
            }
        };
        let took = self.clock.now().since(began);
        metrics::histogram!(LOAD_SECONDS).record(took.as_secs_f64());
        Ok((loaded?.map(Arc::from), took))
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

/// Waits for the result of a load; `None`: the load has ended without a result.
async fn wait_for_load(mut load: SharedLoad) -> Option<Result<LoadResult>> {
    let outcome = load.wait_for(Option::is_some).await;
    outcome.ok().and_then(|outcome| outcome.clone())
}

/// The error of a caller whose own load ended without a result.
fn load_interrupted_error() -> Error {
    Error::new(
        ErrorKind::Internal,
        "the load broke off, because the runtime that ran it was shut down",
    )
}

/// Decides at random whether a value is loaded anew while it is fresh. The chance grows as the end
/// of its freshness comes near, and with the time that a load takes.
fn should_load_early(found: &Found, beta: f64) -> bool {
    // The argument of the logarithm is never 0.
    let ahead = -(1.0 - fastrand::f64()).ln() * beta * found.load.as_secs_f64();
    ahead > 0.0 && ahead >= found.fresh_for.as_secs_f64()
}

/// The name of the lock of a key; an error for a key that is not allowed.
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

fn count_result(result: &'static str) {
    metrics::counter!(RESULTS, "result" => result).increment(1);
}
