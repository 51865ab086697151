//! The records over the session of a handle.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_backend_kit::{OpenFlag, operation::Operation};
use distlock_core::{
    Deleted, Entry, Error, Expect, RecordKey, Records, Result, Version, Written, check_value,
};
use distlock_wire::{
    MAX_READ,
    v1::{self, answer, operation::Operation as Asked},
};

use crate::{
    error::{BACKEND, unreadable, wrong_kind},
    store::{RemoteHandle, located},
};

/// The records of one handle.
#[derive(Debug)]
pub(crate) struct RemoteRecords {
    handle: Arc<RemoteHandle>,
    open: OpenFlag,
    tells_ages: bool,
}

impl RemoteRecords {
    pub(crate) fn new(handle: Arc<RemoteHandle>, tells_ages: bool) -> Self {
        Self {
            handle,
            open: OpenFlag::default(),
            tells_ages,
        }
    }

    fn open(&self) -> Result<&Arc<RemoteHandle>> {
        self.open.check(BACKEND)?;
        Ok(&self.handle)
    }

    /// Asks something that changes nothing.
    async fn read(&self, method: &'static str, asked: Asked) -> Result<answer::Answer> {
        let answer = self.open()?.link.ask(asked).await;
        let answer = answer.and_then(|answer| match answer {
            answer::Answer::Error(error) => Err(error.into()),
            answer => Ok(answer),
        });
        answer.map_err(|error| read_error(error, method))
    }
}

fn read_error(error: Error, method: &'static str) -> Error {
    located(error.of_read(), method, None)
}

#[async_trait]
impl Records for RemoteRecords {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn tells_ages(&self) -> bool {
        self.tells_ages
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        let handle = self.open()?.reopen().await?;
        Ok(Arc::new(Self::new(handle, self.tells_ages)))
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let mut entries = self.get_many(std::slice::from_ref(key)).await?;
        Ok(entries.pop().flatten())
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        self.open()?;
        let mut entries = Vec::with_capacity(keys.len());
        // The server answers the first keys only if their values would be too much for one answer.
        while let Some(rest) = keys.get(entries.len()..).filter(|rest| !rest.is_empty()) {
            let next = &rest[..rest.len().min(MAX_READ)];
            let asked = Asked::Get(v1::ReadRecords {
                keys: next.iter().map(|key| key.as_str().to_owned()).collect(),
            });
            let answer::Answer::Get(values) = self.read("get", asked).await? else {
                return Err(read_error(wrong_kind(), "get"));
            };
            if values.values.is_empty() || values.values.len() > next.len() {
                return Err(read_error(wrong_kind(), "get"));
            }
            let values = values.values.into_iter();
            entries.extend(values.map(|value| value.record.map(Entry::from)));
        }
        Ok(entries)
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let handle = self.open()?;
        check_value(key, value)?;
        let op = Operation::put(key, value, expect);
        handle.submit(None, op).await?.written()
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        let op = Operation::Delete(key.clone(), expect);
        self.open()?.submit(None, op).await?.deleted()
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        let mut found: Vec<(RecordKey, Entry)> = Vec::new();
        loop {
            let last = found.last().map(|(key, _)| key).or(after);
            let left = limit - u32::try_from(found.len()).unwrap_or(limit).min(limit);
            let asked = Asked::Scan(v1::ListRecords {
                prefix: prefix.to_owned(),
                after: last.map(|key| key.as_str().to_owned()),
                limit: left,
            });
            let answer::Answer::Scan(list) = self.read("scan", asked).await? else {
                return Err(read_error(wrong_kind(), "scan"));
            };
            // A list that says that there is more and has nothing would be asked for ever.
            let more = list.more && !list.records.is_empty();
            for record in list.records {
                let record = record.read();
                found.push(record.map_err(|error| read_error(unreadable(error), "scan"))?);
            }
            if !more || found.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
                return Ok(found);
            }
        }
    }

    async fn close(&self) {
        if self.open.close() {
            self.handle.close_part().await;
        }
    }
}
