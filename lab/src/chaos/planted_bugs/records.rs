//! Records with a planted bug.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock::{
    Clock as _, Deleted, Entry, Expect, Moment, RecordKey, Records, Result, SystemClock, Version,
    Written,
};
use distlock_conformance::RecordsLayer;
use distlock_core::sync::Mutex;

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
        if self.bug != StoreBug::ReadsAreStale {
            return self.inner.get(key).await;
        }
        let now = SystemClock.now();
        let cached = self.with_cache(|cache| cache.get(key.as_str()).cloned());
        if let Some((at, entry)) = cached
            && now.since(at) < CACHE_TIME
        {
            return Ok(entry);
        }
        let entry = self.inner.get(key).await?;
        self.with_cache(|cache| cache.insert(key.as_str().to_owned(), (now, entry.clone())));
        Ok(entry)
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
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
            _ => false,
        };
        while ignores_version && written == Written::Conflict {
            let expect = match self.inner.get(key).await? {
                Some(entry) => Expect::Version(entry.version),
                None => Expect::Absent,
            };
            written = self.inner.put(key, value, expect).await?;
        }
        if self.bug == StoreBug::VersionsAreReused && matches!(written, Written::Stored(_)) {
            return Ok(Written::Stored(Version::new(1)));
        }
        Ok(written)
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        if self.bug == StoreBug::DeletesDoNothing {
            return Ok(Deleted::Done);
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
}
