//! Records with a planted bug.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock::{
    Clock as _, Deleted, Entry, Expect, Moment, RecordKey, Records, Result, SystemClock, Version,
    Written,
};
use distlock_conformance::RecordsLayer;
use distlock_core::sync::Mutex;
use serde_json::Value;

use super::kinds::StoreBug;

/// Time for which the cache answers.
const CACHE_TIME: Duration = Duration::from_millis(30);

/// Honest records with one bug.
#[derive(Clone, Debug)]
pub(super) struct BuggyRecords {
    inner: Arc<dyn Records>,
    bug: StoreBug,
    cache: Cache,
}

/// By key: the time of the last read, and its answer.
type Cache = Arc<Mutex<HashMap<String, (Moment, Option<Entry>)>>>;

impl BuggyRecords {
    /// Wraps honest records in a layer with this bug.
    pub(super) fn wrap(inner: Arc<dyn Records>, bug: StoreBug) -> Arc<dyn Records> {
        let planted = Self {
            inner,
            bug,
            cache: Cache::default(),
        };
        planted.into_records()
    }
}

#[async_trait]
impl RecordsLayer for BuggyRecords {
    fn below(&self) -> &Arc<dyn Records> {
        &self.inner
    }

    async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            inner: self.inner.reopen().await?,
            ..self.clone()
        })
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let cache_time = match self.bug {
            StoreBug::ReadsAreStale => CACHE_TIME,
            StoreBug::HoldersAreNotMissed if lists_holders(key) => Duration::MAX,
            StoreBug::HoldersAreForgotten if lists_holders(key) && fastrand::u32(..4) == 0 => {
                let entry = self.inner.get(key).await?;
                return Ok(entry.map(without_oldest));
            }
            _ => return self.inner.get(key).await,
        };
        let now = SystemClock.now();
        let cached = self.with_cache(|cache| cache.get(key.as_str()).cloned());
        if let Some((at, entry)) = cached
            && now.since(at) < cache_time
        {
            return Ok(entry);
        }
        let entry = self.inner.get(key).await?;
        self.with_cache(|cache| cache.insert(key.as_str().to_owned(), (now, entry.clone())));
        Ok(entry)
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        if self.bug == StoreBug::DowngradeInTwoWrites && self.downgrades(key, value).await? {
            return self.downgrade_in_two_writes(key, value, expect).await;
        }
        if self.bug.drops_write_of(key) {
            return Ok(Written::Stored(Version::new(1)));
        }
        if self.bug == StoreBug::WritesAreForgotten
            && fastrand::u32(..10) == 0
            && let Expect::Version(version) = expect
        {
            return Ok(Written::Stored(Version::new(version.get() + 1)));
        }
        let mut written = self.inner.put(key, value, expect).await?;
        let ignores_version = match self.bug {
            StoreBug::WritesIgnoreVersions => true,
            StoreBug::CountersAreOverwritten => key.as_str().starts_with("unread"),
            StoreBug::HoldersAreOverwritten => lists_holders(key),
            _ => false,
        };
        while ignores_version && written == Written::Conflict {
            let expect = match self.inner.get(key).await? {
                Some(entry) => Expect::Version(entry.version),
                None => Expect::Absent,
            };
            written = self.inner.put(key, value, expect).await?;
        }
        if self.bug == StoreBug::HoldersAreNotMissed {
            self.remember(key, value, written);
        }
        let reuses_version = match self.bug {
            StoreBug::VersionsAreReused => true,
            StoreBug::HoldersTokensStandStill => lists_holders(key),
            _ => false,
        };
        if reuses_version && matches!(written, Written::Stored(_)) {
            return Ok(Written::Stored(Version::new(1)));
        }
        Ok(written)
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        if self.bug == StoreBug::DeletesDoNothing {
            return Ok(Deleted::Done);
        }
        if self.bug == StoreBug::HoldersAreNotMissed {
            self.with_cache(|cache| cache.remove(key.as_str()));
        }
        self.inner.delete(key, expect).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

impl StoreBug {
    /// Tells whether the bug confirms a write of this record without sending it.
    fn drops_write_of(self, key: &RecordKey) -> bool {
        let of = match self {
            Self::StartsAreForgotten => "periodic/start/",
            Self::EffectsAreForgotten => "once/",
            Self::GatesForget => "fence/",
            Self::WaitersAreUnheard => "shared/waiting/",
            _ => return false,
        };
        key.as_str().starts_with(of)
    }
}

impl BuggyRecords {
    /// Locks the cache and applies a function to it.
    fn with_cache<T>(
        &self,
        with: impl FnOnce(&mut HashMap<String, (Moment, Option<Entry>)>) -> T,
    ) -> T {
        with(&mut self.cache.lock())
    }

    /// Keeps what was written as the answer to all reads until a write fails.
    fn remember(&self, key: &RecordKey, value: &[u8], written: Written) {
        self.with_cache(|cache| match written {
            Written::Stored(version) => {
                let entry = Entry::new(version, value.to_vec(), None);
                let now = SystemClock.now();
                cache.insert(key.as_str().to_owned(), (now, Some(entry)))
            }
            Written::Conflict => cache.remove(key.as_str()),
        });
    }

    /// Tells whether a write makes a reader of the only writer in a list of holders.
    async fn downgrades(&self, key: &RecordKey, value: &[u8]) -> Result<bool> {
        if !lists_holders(key) {
            return Ok(false);
        }
        let Some(stored) = self.inner.get(key).await? else {
            return Ok(false);
        };
        let (new, old) = (holders(value), holders(&stored.value));
        let (Some([reader]), Some([writer])) = (new.as_deref(), old.as_deref()) else {
            return Ok(false);
        };
        let is_same = [0, 1].iter().all(|at| reader.get(at) == writer.get(at));
        Ok(is_same && reader[2] == "r" && writer[2] == "w")
    }

    /// Removes the writer from the list, and adds the reader as soon as nobody is in the list.
    async fn downgrade_in_two_writes(
        &self,
        key: &RecordKey,
        value: &[u8],
        expect: Expect,
    ) -> Result<Written> {
        if let Expect::Version(version) = expect
            && self.inner.delete(key, version).await? == Deleted::Conflict
        {
            return Ok(Written::Conflict);
        }
        SystemClock.sleep(LEFT_FOR).await;
        for _ in 0..MOST_ATTEMPTS {
            let written = self.inner.put(key, value, Expect::Absent).await?;
            if written != Written::Conflict {
                return Ok(written);
            }
            SystemClock.sleep(CACHE_TIME / 10).await;
        }
        Ok(Written::Conflict)
    }
}

/// Time between the two writes of a downgrade. The first that waits looks at the list more often.
const LEFT_FOR: Duration = Duration::from_millis(300);
/// Attempts of the second write of a downgrade.
const MOST_ATTEMPTS: u32 = 400;

/// Tells whether a record lists the holders of a shared lock.
fn lists_holders(key: &RecordKey) -> bool {
    ["shared/rw/", "shared/sem/"]
        .iter()
        .any(|kind| key.as_str().starts_with(kind))
}

/// Returns the holders in a list.
fn holders(value: &[u8]) -> Option<Vec<Value>> {
    let list: Value = serde_json::from_slice(value).ok()?;
    list.get("entries")?.as_array().cloned()
}

/// Returns a list of holders without the oldest one.
fn without_oldest(mut entry: Entry) -> Entry {
    let list = serde_json::from_slice::<Value>(&entry.value);
    if let Ok(mut list) = list
        && let Some(holders) = list.get_mut("entries").and_then(Value::as_array_mut)
        && !holders.is_empty()
    {
        holders.remove(0);
        entry.value = list.to_string().into_bytes();
    }
    entry
}
