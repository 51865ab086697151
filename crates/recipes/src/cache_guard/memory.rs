//! A cache in the memory of this process.
//!
//! Invariant: the number of keys never exceeds the capacity. The key whose floor ends first is
//! removed first.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Clock, FencingToken, Moment, Result, SystemClock, sync::Mutex};

use super::cache::{Cache, Found, Loaded, Mark, Seen};

/// A cache for this process alone. When several processes have one such cache each, and load from
/// the same source, the guard's lock still lets one of them load at a time.
///
/// A full cache removes the key whose floor ends first, with its value and its floor. Make the
/// cache large enough for all keys that are loaded or deleted within the time of the longest load.
#[derive(Clone)]
pub struct MemoryCache {
    clock: Arc<dyn Clock>,
    capacity: usize,
    keys: Arc<Mutex<HashMap<String, CachedKey>>>,
}

/// The value and the floor of a key.
struct CachedKey {
    /// `None`: the key has only a floor.
    value: Option<CachedValue>,
    /// The highest token with which a value was stored.
    token: Option<FencingToken>,
    /// The time of the last delete.
    deleted_at: Option<Moment>,
    /// The moment at which the floor expires.
    floor_until: Moment,
}

struct CachedValue {
    /// `None`: the loader has said that there is no value.
    value: Option<Arc<[u8]>>,
    fresh_until: Moment,
    stale_until: Moment,
    load: Duration,
}

impl MemoryCache {
    /// A cache for this many keys.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self::with_clock(capacity, Arc::new(SystemClock))
    }

    /// A cache on another clock than the machine's, to test the expiry of values.
    #[must_use]
    pub fn with_clock(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            capacity,
            keys: Arc::default(),
        }
    }

    /// Stores a loaded value, unless it comes too late. Returns whether it was stored.
    fn put_if_in_time(&self, key: &str, loaded: &Loaded, mark: Mark) -> bool {
        let now = self.clock.now();
        let began = Moment::from_boot(Duration::from_micros(mark.0));
        let mut keys = self.keys.lock();
        if now.since(began) > loaded.floor {
            return false;
        }
        let floor = keys.get(key).filter(|entry| entry.floor_until > now);
        if floor.is_some_and(|floor| {
            floor.token.is_some_and(|token| token > loaded.token)
                || floor
                    .deleted_at
                    .is_some_and(|deleted_at| deleted_at >= began)
        }) {
            return false;
        }
        let deleted_at = floor.and_then(|floor| floor.deleted_at);
        let fresh_until = now + loaded.ttl;
        let stale_until = fresh_until + loaded.stale;
        let entry = CachedKey {
            value: Some(CachedValue {
                value: loaded.value.clone(),
                fresh_until,
                stale_until,
                load: loaded.load,
            }),
            token: Some(loaded.token),
            deleted_at,
            floor_until: stale_until + loaded.floor,
        };
        make_room_for(&mut keys, key, self.capacity, now);
        keys.insert(key.to_owned(), entry);
        true
    }
}

/// Removes other keys until there is room for this one: first those with expired floors, then those
/// whose floors end first.
fn make_room_for(keys: &mut HashMap<String, CachedKey>, key: &str, capacity: usize, now: Moment) {
    if keys.len() < capacity || keys.contains_key(key) {
        return;
    }
    keys.retain(|_, entry| entry.floor_until > now);
    while keys.len() >= capacity.max(1) {
        let first = keys.iter().min_by_key(|(_, entry)| entry.floor_until);
        let Some(first) = first.map(|(key, _)| key.clone()) else {
            return;
        };
        keys.remove(&first);
    }
}

#[async_trait]
impl Cache for MemoryCache {
    async fn get(&self, key: &str) -> Result<Seen> {
        let now = self.clock.now();
        let keys = self.keys.lock();
        let found = keys.get(key).and_then(|entry| {
            let cached = entry
                .value
                .as_ref()
                .filter(|cached| cached.stale_until > now)?;
            Some(Found {
                value: cached.value.clone(),
                token: entry.token?,
                fresh_for: cached.fresh_until.since(now),
                load: cached.load,
            })
        });
        let micros = now.since_boot().as_micros();
        Ok(Seen {
            found,
            mark: Mark(u64::try_from(micros).unwrap_or(u64::MAX)),
        })
    }

    async fn put(&self, key: &str, loaded: &Loaded, mark: Mark) -> Result<bool> {
        Ok(self.put_if_in_time(key, loaded, mark))
    }

    async fn delete(&self, key: &str, floor: Duration) -> Result<()> {
        let now = self.clock.now();
        let mut keys = self.keys.lock();
        make_room_for(&mut keys, key, self.capacity, now);
        let entry = keys.entry(key.to_owned()).or_insert(CachedKey {
            value: None,
            token: None,
            deleted_at: None,
            floor_until: now,
        });
        entry.value = None;
        entry.deleted_at = Some(now);
        entry.floor_until = entry.floor_until.max(now + floor);
        Ok(())
    }
}

impl fmt::Debug for MemoryCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCache")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
