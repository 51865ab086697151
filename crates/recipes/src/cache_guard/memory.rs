//! A cache in this process's memory.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{Clock, FencingToken, Moment, Result, SystemClock};

use super::cache::{Cache, Found, Loaded, Mark, Seen};

/// Values of this process alone. For processes that each have their own, and load from the same
/// place, the guard's lock still lets one of them load at a time.
///
/// When it is full, what ends first makes room, with its floor: make it large enough for all that
/// is loaded within the longest load.
#[derive(Clone)]
pub struct MemoryCache {
    clock: Arc<dyn Clock>,
    capacity: usize,
    slots: Arc<Mutex<HashMap<String, Slot>>>,
}

struct Slot {
    /// `None` = there is only a floor.
    value: Option<Kept>,
    token: Option<FencingToken>,
    /// When the key was deleted.
    voided: Option<Moment>,
    floor_until: Moment,
}

struct Kept {
    value: Option<Arc<[u8]>>,
    fresh_until: Moment,
    stale_until: Moment,
    load: Duration,
}

impl MemoryCache {
    /// For so many keys.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self::with_clock(capacity, Arc::new(SystemClock))
    }

    /// With another clock than the machine's, to test how values end.
    #[must_use]
    pub fn with_clock(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            capacity,
            slots: Arc::default(),
        }
    }

    fn put_now(&self, key: &str, loaded: &Loaded, mark: Mark) -> bool {
        let now = self.clock.now();
        let began = Moment::from_boot(Duration::from_micros(mark.0));
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(began) > loaded.floor {
            return false;
        }
        let floor = slots.get(key).filter(|slot| slot.floor_until > now);
        if floor.is_some_and(|floor| {
            floor.token.is_some_and(|token| token > loaded.token)
                || floor.voided.is_some_and(|voided| voided >= began)
        }) {
            return false;
        }
        let voided = floor.and_then(|floor| floor.voided);
        let fresh_until = now + loaded.ttl;
        let stale_until = fresh_until + loaded.stale;
        let slot = Slot {
            value: Some(Kept {
                value: loaded.value.clone(),
                fresh_until,
                stale_until,
                load: loaded.load,
            }),
            token: Some(loaded.token),
            voided,
            floor_until: stale_until + loaded.floor,
        };
        make_room(&mut slots, key, self.capacity, now);
        slots.insert(key.to_owned(), slot);
        true
    }
}

/// Until there is room for one more.
fn make_room(slots: &mut HashMap<String, Slot>, key: &str, capacity: usize, now: Moment) {
    if slots.len() < capacity || slots.contains_key(key) {
        return;
    }
    slots.retain(|_, slot| slot.floor_until > now);
    while slots.len() >= capacity.max(1) {
        let first = slots.iter().min_by_key(|(_, slot)| slot.floor_until);
        let Some(first) = first.map(|(key, _)| key.clone()) else {
            return;
        };
        slots.remove(&first);
    }
}

#[async_trait]
impl Cache for MemoryCache {
    async fn get(&self, key: &str) -> Result<Seen> {
        let now = self.clock.now();
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let found = slots.get(key).and_then(|slot| {
            let kept = slot.value.as_ref().filter(|kept| kept.stale_until > now)?;
            Some(Found {
                value: kept.value.clone(),
                token: slot.token?,
                fresh_for: kept.fresh_until.since(now),
                load: kept.load,
            })
        });
        let micros = now.since_boot().as_micros();
        Ok(Seen {
            found,
            mark: Mark(u64::try_from(micros).unwrap_or(u64::MAX)),
        })
    }

    async fn put(&self, key: &str, loaded: &Loaded, mark: Mark) -> Result<bool> {
        Ok(self.put_now(key, loaded, mark))
    }

    async fn delete(&self, key: &str, floor: Duration) -> Result<()> {
        let now = self.clock.now();
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut slots, key, self.capacity, now);
        let slot = slots.entry(key.to_owned()).or_insert(Slot {
            value: None,
            token: None,
            voided: None,
            floor_until: now,
        });
        slot.value = None;
        slot.voided = Some(now);
        slot.floor_until = slot.floor_until.max(now + floor);
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
