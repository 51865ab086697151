//! A quorum keeps no records: their versions and ages would differ between the members. Another
//! store keeps them, which the configuration names.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::{
    Deleted, Entry, Error, ErrorKind, Expect, RecordKey, Records, Result, Version, Written,
};

use crate::shared::NAME;

/// The records of a quorum: every operation is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRecords;

fn refused<T>() -> Result<T> {
    let problem = "a quorum keeps no records: name another store for them with `--records URL`, \
                   `[records]` in the configuration, or `Store::with_records_of`";
    Err(Error::new(ErrorKind::Unsupported, problem).on(NAME))
}

#[async_trait]
impl Records for NoRecords {
    fn backend(&self) -> &'static str {
        NAME
    }

    fn tells_ages(&self) -> bool {
        false
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        Ok(Arc::new(*self))
    }

    async fn get(&self, _: &RecordKey) -> Result<Option<Entry>> {
        refused()
    }

    async fn get_many(&self, _: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        refused()
    }

    async fn put(&self, _: &RecordKey, _: &[u8], _: Expect) -> Result<Written> {
        refused()
    }

    async fn delete(&self, _: &RecordKey, _: Version) -> Result<Deleted> {
        refused()
    }

    async fn scan(
        &self,
        _: &str,
        _: Option<&RecordKey>,
        _: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        refused()
    }

    async fn close(&self) {}
}
