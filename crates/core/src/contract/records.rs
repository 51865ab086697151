//! A versioned key-value store: the second thing every backend supplies.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::types::{
    error::{Error, ErrorKind, Result},
    name::RecordKey,
};

/// Largest record value in bytes: 256 KiB.
pub const MAX_VALUE_BYTES: usize = 256 * 1024;

/// Small values under keys, each change conditional on the version that was read.
///
/// A key's versions strictly rise and none is used twice, also after a delete (while the store's clock agrees, as for
/// fencing tokens). There is no TTL: what must vanish with its owner hangs on a lock instead. Reads are linearizable: a
/// `get` that starts after a `put` was answered sees that put or a later one.
///
/// # Cancel safety
/// Dropping the future of a write leaves its outcome unknown; every write is conditional, so it is safe to read and retry.
#[async_trait]
pub trait Records: fmt::Debug + Send + Sync + 'static {
    /// The backend's short name.
    fn backend(&self) -> &'static str;

    /// Whether [`Entry::age`] is given, for every entry that was written since the store's clock began.
    fn tells_ages(&self) -> bool;

    /// A second handle on the same store whose connections are opened on the calling runtime.
    ///
    /// # Errors
    /// As connecting does.
    async fn reopen(&self) -> Result<Arc<dyn Records>>;

    /// Reads one record.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>>;

    /// Reads several records, in the order of `keys`. Not one snapshot: each is read at some time during the call.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>>;

    /// Writes a record if it is as expected.
    ///
    /// # Errors
    /// Failures of the store, and [`ErrorKind::LimitExceeded`] for a value over [`MAX_VALUE_BYTES`].
    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written>;

    /// Deletes a record if it still has this version.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted>;

    /// Records whose keys start with `prefix`, in byte order of their keys, after `after`, at most `limit`.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>>;

    /// Closes connections. Idempotent. From then on every operation of this handle answers
    /// [`ErrorKind::Closed`] and asks the store nothing; other handles go on.
    async fn close(&self);
}

/// The version of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// From the store's number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The store's number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// What to expect in the next write.
    pub version: Version,
    /// The value.
    pub value: Vec<u8>,
    /// Time since this version was written, by the store's clock, where it can tell. Where [`Records::tells_ages`], `None` means
    /// that it was written before that clock began: in an earlier boot of the machine, of which no process is left.
    pub age: Option<Duration>,
}

impl Entry {
    /// An entry.
    #[must_use]
    pub const fn new(version: Version, value: Vec<u8>, age: Option<Duration>) -> Self {
        Self {
            version,
            value,
            age,
        }
    }
}

/// What a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No record.
    Absent,
    /// A record of this version.
    Version(Version),
}

/// The answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Written, with this version.
    Stored(Version),
    /// Not as expected; nothing changed.
    Conflict,
}

/// The answer to a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Gone.
    Done,
    /// Not as expected (another version, or no record); nothing changed.
    Conflict,
}

/// The check every backend makes before it sends a value.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] over [`MAX_VALUE_BYTES`].
pub fn check_value(key: &RecordKey, value: &[u8]) -> Result<()> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::LimitExceeded,
        format!(
            "value of record {key:?} is {} bytes long: at most {MAX_VALUE_BYTES} are allowed",
            value.len()
        ),
    ))
}
