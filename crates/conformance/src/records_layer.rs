//! A store with a difference, for tests: one that loses answers, hangs, or does what it must not.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distlock_core::{Deleted, Entry, Expect, RecordKey, Records, Result, Version, Written};

/// What lies between whoever uses [`Records`] and those that keep them. All that a layer does not change goes to the records
/// below it.
#[async_trait]
pub trait RecordsLayer: Clone + fmt::Debug + Send + Sync + 'static {
    /// What keeps the records.
    fn below(&self) -> &Arc<dyn Records>;

    /// The records as this layer shows them.
    fn into_records(self) -> Arc<dyn Records> {
        Arc::new(Layered(self))
    }

    /// Comes before whatever is asked, and may keep it from being asked.
    async fn before(&self) -> Result<()> {
        Ok(())
    }

    /// A second handle: this very layer, unless it says otherwise.
    async fn reopen(&self) -> Result<Self> {
        Ok(self.clone())
    }

    /// As [`Records::tells_ages`].
    fn tells_ages(&self) -> bool {
        self.below().tells_ages()
    }

    /// As [`Records::get`].
    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        self.below().get(key).await
    }

    /// As [`Records::get_many`]: each of them goes through [`get`](Self::get).
    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let mut entries = Vec::with_capacity(keys.len());
        for key in keys {
            entries.push(self.get(key).await?);
        }
        Ok(entries)
    }

    /// As [`Records::put`].
    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        self.below().put(key, value, expect).await
    }

    /// As [`Records::delete`].
    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.below().delete(key, expect).await
    }

    /// As [`Records::close`]. What is below stays open, for it may have other users.
    async fn close(&self) {}
}

#[derive(Debug)]
struct Layered<L>(L);

#[async_trait]
impl<L: RecordsLayer> Records for Layered<L> {
    fn backend(&self) -> &'static str {
        self.0.below().backend()
    }

    fn tells_ages(&self) -> bool {
        self.0.tells_ages()
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        Ok(self.0.reopen().await?.into_records())
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        self.0.before().await?;
        self.0.get(key).await
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        self.0.before().await?;
        self.0.get_many(keys).await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        self.0.before().await?;
        self.0.put(key, value, expect).await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.0.before().await?;
        self.0.delete(key, expect).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        self.0.before().await?;
        self.0.below().scan(prefix, after, limit).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
