//! Records: small values under keys, with versions that strictly rise.
//!
//! The module turns each call of [`Records`] into an operation for the store's batches, or into a
//! read of the dialect. The module contains no SQL.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distlock_backend_kit::{OpenFlag, operation::Operation};
use distlock_core::{
    Deleted, Entry, Expect, RecordKey, Records, Result, Version, Written, check_value,
};

use crate::{dialect::Dialect, sql_store::reopen, store::Store};

pub(crate) struct SqlRecords<D: Dialect> {
    store: Arc<Store<D>>,
    open: OpenFlag,
}

impl<D: Dialect> SqlRecords<D> {
    pub(crate) fn new(store: Arc<Store<D>>) -> Self {
        Self {
            store,
            open: OpenFlag::default(),
        }
    }

    fn open(&self) -> Result<&Arc<Store<D>>> {
        self.open.check(D::NAME)?;
        Ok(&self.store)
    }
}

#[async_trait]
impl<D: Dialect> Records for SqlRecords<D> {
    fn backend(&self) -> &'static str {
        D::NAME
    }

    fn tells_ages(&self) -> bool {
        true
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        Ok(Arc::new(Self::new(reopen(self.open()?).await?)))
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let mut found = self.get_many(std::slice::from_ref(key)).await?;
        Ok(found.pop().flatten())
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let dialect = self.open()?.dialect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let found = dialect.get(keys).await;
        found.map_err(|error| error.on(D::NAME).during("get"))
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        check_value(key, value).map_err(|error| error.on(D::NAME).during("put"))?;
        let op = Operation::put(key, value, expect);
        self.open()?.submit(op).await?.written()
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        let op = Operation::Delete(key.clone(), expect);
        self.open()?.submit(op).await?.deleted()
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        let found = self.open()?.dialect().scan(prefix, after, limit).await;
        found.map_err(|error| error.on(D::NAME).during("scan"))
    }

    async fn close(&self) {
        let open = self.open.close();
        self.store.close_part(open).await;
    }
}

impl<D: Dialect> fmt::Debug for SqlRecords<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}
