//! A layer over records through which tests inject faults: lost answers, hangs, refused writes.
//!
//! Invariant: a read or a write that a layer does not override reaches the records below unchanged.
//! A `close` does not reach the records below, because they may have other users.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distlock_core::{Deleted, Entry, Expect, RecordKey, Records, Result, Version, Written};

/// A layer between the user of [`Records`] and the store. The layer overrides the operations that
/// it changes. All other reads and writes go to the records below.
#[async_trait]
pub trait RecordsLayer: Clone + fmt::Debug + Send + Sync + 'static {
    /// The records below this layer.
    fn below(&self) -> &Arc<dyn Records>;

    /// This layer as [`Records`].
    fn into_records(self) -> Arc<dyn Records> {
        Arc::new(Layered(self))
    }

    /// Runs before every operation. An error keeps the operation from the records below.
    async fn before(&self) -> Result<()> {
        Ok(())
    }

    /// Like [`Records::reopen`]. By default it returns a clone of this layer, which shares the
    /// records below and opens no connection.
    async fn reopen(&self) -> Result<Self> {
        Ok(self.clone())
    }

    /// Like [`Records::tells_ages`].
    fn tells_ages(&self) -> bool {
        self.below().tells_ages()
    }

    /// Like [`Records::get`].
    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        self.below().get(key).await
    }

    /// Like [`Records::get_many`]. Each key goes through [`get`](Self::get).
    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let mut entries = Vec::with_capacity(keys.len());
        for key in keys {
            entries.push(self.get(key).await?);
        }
        Ok(entries)
    }

    /// Like [`Records::put`].
    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        self.below().put(key, value, expect).await
    }

    /// Like [`Records::delete`].
    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.below().delete(key, expect).await
    }

    /// Like [`Records::close`]. The records below stay open, because they may have other users.
    async fn close(&self) {}
}

/// A layer, used as [`Records`].
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
