//! The versioned key-value store beside the lock table.
//!
//! Invariant: the versions of a key strictly rise, also after a delete, because one counter serves
//! all keys.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use async_trait::async_trait;
use distlock_backend_kit::OpenFlag;
use distlock_core::{
    Clock, Deleted, Entry, Error, ErrorKind, Expect, Moment, RecordKey, Records, Result, Version,
    Written, check_value, micros,
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
    unix_time,
};

use crate::lock::BACKEND;

/// One handle on records in memory. All handles share the records.
///
/// One counter, `max(last + 1, wall clock in microseconds)`, gives all versions. So the versions of
/// a key rise even after a delete, although nothing is stored about a deleted key.
#[derive(Debug)]
pub struct MemoryRecords {
    clock: Arc<dyn Clock>,
    // No code awaits while it holds this lock, so a blocking one is enough. All keys are in one
    // map, because a scan needs their order.
    store: Arc<RwLock<RecordMap>>,
    open: OpenFlag,
}

/// All records, and the counter for their versions.
#[derive(Debug, Default)]
struct RecordMap {
    records: BTreeMap<Arc<str>, Record>,
    /// The highest version given to any key.
    last_version: u64,
}

#[derive(Debug)]
struct Record {
    version: Version,
    value: Vec<u8>,
    /// The moment of the last write; the record's age counts from here.
    written: Moment,
}

impl MemoryRecords {
    /// Creates an empty set of records.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            store: Arc::default(),
            open: OpenFlag::default(),
        }
    }

    /// Opens another handle on the same records. The new handle is open even if this handle was
    /// closed.
    pub(crate) fn new_handle(&self) -> Self {
        Self {
            clock: Arc::clone(&self.clock),
            store: Arc::clone(&self.store),
            open: OpenFlag::default(),
        }
    }

    /// Locks the records for reading; an error of kind `Closed` when this handle was closed.
    fn lock_for_read(&self) -> Result<RwLockReadGuard<'_, RecordMap>> {
        self.open.check(BACKEND)?;
        Ok(self.store.read())
    }

    /// Locks the records for writing; an error of kind `Closed` when this handle was closed.
    fn lock_for_write(&self) -> Result<RwLockWriteGuard<'_, RecordMap>> {
        self.open.check(BACKEND)?;
        Ok(self.store.write())
    }
}

impl RecordMap {
    /// Returns the present version of a key; `None` without a record.
    fn version(&self, key: &RecordKey) -> Option<Version> {
        self.records.get(key.as_str()).map(|record| record.version)
    }

    fn entry(&self, key: &RecordKey, now: Moment) -> Option<Entry> {
        self.records
            .get(key.as_str())
            .map(|record| record.entry(now))
    }
}

impl Record {
    fn entry(&self, now: Moment) -> Entry {
        Entry::new(
            self.version,
            self.value.clone(),
            Some(now.since(self.written)),
        )
        .read_at(now.since_boot())
    }
}

#[async_trait]
impl Records for MemoryRecords {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn tells_ages(&self) -> bool {
        true
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        self.open.check(BACKEND)?;
        Ok(Arc::new(self.new_handle()))
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let store = self.lock_for_read()?;
        Ok(store.entry(key, self.clock.now()))
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let store = self.lock_for_read()?;
        let now = self.clock.now();
        Ok(keys.iter().map(|key| store.entry(key, now)).collect())
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        check_value(key, value)?;
        let mut store = self.lock_for_write()?;
        let expected = match expect {
            Expect::Absent => None,
            Expect::Version(version) => Some(version),
        };
        if store.version(key) != expected {
            return Ok(Written::Conflict);
        }
        let next = store
            .last_version
            .checked_add(1)
            .ok_or_else(|| Error::new(ErrorKind::LimitExceeded, "no record version is left"))?;
        store.last_version = next.max(micros(unix_time(&*self.clock)));
        let record = Record {
            version: Version::new(store.last_version),
            value: value.to_vec(),
            written: self.clock.now(),
        };
        let written = Written::Stored(record.version);
        if let Some(stored) = store.records.get_mut(key.as_str()) {
            *stored = record;
        } else {
            store.records.insert(key.as_str().into(), record);
        }
        Ok(written)
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        let mut store = self.lock_for_write()?;
        if store.version(key) != Some(expect) {
            return Ok(Deleted::Conflict);
        }
        store.records.remove(key.as_str());
        Ok(Deleted::Done)
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        let store = self.lock_for_read()?;
        let now = self.clock.now();
        let from = match after.map(RecordKey::as_str) {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        store
            .records
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(usize::try_from(limit).unwrap_or(usize::MAX))
            .map(|(key, record)| Ok((RecordKey::new(key)?, record.entry(now))))
            .collect()
    }

    async fn close(&self) {
        // Only this handle closes; other handles may still use the records.
        self.open.close();
    }
}
