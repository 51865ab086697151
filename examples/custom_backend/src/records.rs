//! The records of a folder: reads, and conditional writes.
//!
//! Invariant: a writer compares and writes while it holds the folder's lock. So the record that it
//! replaces is the record that it compared.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use distlock::{
    Clock, Deleted, Entry, Expect, RecordKey, Records, Result, Version, Written,
    backend::{OpenFlag, check_value, threads, unix_time},
};

use crate::files::Files;

/// The records of one folder.
#[derive(Debug)]
pub struct FolderRecords {
    files: Files,
    clock: Arc<dyn Clock>,
    open: OpenFlag,
}

const NAME: &str = "folder";

impl FolderRecords {
    /// Opens a folder, and creates the folder if it is missing.
    ///
    /// # Errors
    /// The errors of the file system.
    ///
    /// # Cancel safety
    /// Safe: at most an empty folder remains.
    pub async fn open(folder: PathBuf, clock: Arc<dyn Clock>) -> Result<Self> {
        let files = threads::blocking(move || Files::open(folder)).await?;
        Ok(Self {
            files: files.map_err(|error| error.on(NAME))?,
            clock,
            open: OpenFlag::default(),
        })
    }

    /// Runs work on files on a thread for blocking work, because a disk may be slow.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files, &dyn Clock) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.open.check(NAME)?;
        let (files, clock) = (self.files.clone(), Arc::clone(&self.clock));
        let done = threads::blocking(move || work(&files, &*clock)).await;
        done.flatten().map_err(|error| error.on(NAME))
    }
}

#[async_trait]
impl Records for FolderRecords {
    fn backend(&self) -> &'static str {
        NAME
    }

    fn tells_ages(&self) -> bool {
        true
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        self.open.check(NAME)?;
        Ok(Arc::new(Self {
            files: self.files.clone(),
            clock: Arc::clone(&self.clock),
            open: OpenFlag::default(),
        }))
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let mut found = self.get_many(std::slice::from_ref(key)).await?;
        Ok(found.pop().flatten())
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let keys = keys.to_vec();
        self.run(move |files, clock| {
            let read = |key: &RecordKey| {
                let stored = files.read(key.as_str())?;
                // The clock is read after the record. An earlier reading could be before the time
                // of the write.
                let now = clock.now().since_boot();
                Ok(stored.map(|stored| files.entry(stored, now)))
            };
            keys.iter().map(read).collect()
        })
        .await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        check_value(key, value)?;
        let (key, value) = (key.clone(), value.to_vec());
        self.run(move |files, clock| {
            let lock = files.lock_for_writing()?;
            let present = files.read(key.as_str())?.map(|stored| stored.version);
            let expected = match expect {
                Expect::Absent => None,
                Expect::Version(version) => Some(version.get()),
            };
            if present != expected {
                return Ok(Written::Conflict);
            }
            let version = files.next_version(&lock, unix_time(clock))?;
            let now = clock.now().since_boot();
            files.write(&lock, key.as_str(), version, now, &value)?;
            Ok(Written::Stored(Version::new(version)))
        })
        .await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        let key = key.clone();
        self.run(move |files, _| {
            let lock = files.lock_for_writing()?;
            let present = files.read(key.as_str())?.map(|stored| stored.version);
            if present != Some(expect.get()) {
                return Ok(Deleted::Conflict);
            }
            files.remove(&lock, key.as_str())?;
            Ok(Deleted::Done)
        })
        .await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.run(move |files, clock| {
            let mut found = files.all()?;
            let now = clock.now().since_boot();
            found.retain(|stored| {
                let is_after = after
                    .as_ref()
                    .is_none_or(|after| *stored.key > *after.as_str());
                stored.key.starts_with(&prefix) && is_after
            });
            found.sort_by(|a, b| a.key.cmp(&b.key));
            found.truncate(limit);
            let entry = |stored: crate::files::Stored| {
                Ok((RecordKey::new(&stored.key)?, files.entry(stored, now)))
            };
            found.into_iter().map(entry).collect()
        })
        .await
    }

    async fn close(&self) {
        self.open.close();
    }
}
