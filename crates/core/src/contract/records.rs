//! The contract of a versioned key-value store.
//!
//! This module owns the trait [`Records`], the second trait that every backend implements, and its
//! requests and answers. Invariant: each write is a compare-and-swap, so a write that was computed
//! from an old value changes nothing. A record must never expire; only a lock ends with its owner.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::types::{
    error::{Error, ErrorKind, Result},
    name::RecordKey,
};

/// The largest value of a record in bytes: 256 KiB.
pub const MAX_VALUE_BYTES: usize = 256 * 1024;

/// Small values under keys. Each write states the version that the caller has read, and fails if
/// the stored version is another one.
///
/// The versions of a key strictly rise, and no version is used twice, also after a delete. Like
/// fencing tokens, this needs a store's clock that does not go back. Reads are linearizable: a
/// `get` that starts after a `put` was answered sees that put or a later one.
///
/// # Cancel safety
/// A drop of the future of a write leaves the outcome of that write unknown. Every write is
/// conditional, so the caller can safely read and try again.
#[async_trait]
pub trait Records: fmt::Debug + Send + Sync + 'static {
    /// The backend's short name.
    fn backend(&self) -> &'static str;

    /// Whether [`Entry::age`] is present for every entry that was written since the store's clock
    /// began, and [`Entry::store_time`] for every entry.
    fn tells_ages(&self) -> bool;

    /// Opens a second handle on the same store. The connections of the new handle belong to the
    /// calling runtime.
    ///
    /// # Errors
    /// Those of connecting to the store.
    async fn reopen(&self) -> Result<Arc<dyn Records>>;

    /// Reads one record.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>>;

    /// Reads several records, in the order of `keys`. The result is not one snapshot: two records
    /// may be read at different moments during the call.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>>;

    /// Writes a record if the stored record is as expected.
    ///
    /// # Errors
    /// Failures of the store, and [`ErrorKind::LimitExceeded`] for a value over
    /// [`MAX_VALUE_BYTES`].
    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written>;

    /// Deletes a record if it still has the version `expect`.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted>;

    /// Lists the records whose keys start with `prefix`, in byte order of their keys. The list
    /// starts with the first key after `after` and has `limit` records at most.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>>;

    /// Closes the connections. The call is idempotent. Afterwards every operation of this handle
    /// answers [`ErrorKind::Closed`] and sends nothing to the store; other handles keep working.
    async fn close(&self);
}

/// The version of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number that the store gave.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The version, for the condition of the next write.
    pub version: Version,
    /// The value.
    pub value: Vec<u8>,
    /// The time since this version was written, by the store's clock, if the store knows it. If
    /// [`Records::tells_ages`] is true, `None` means that the version was written before that clock
    /// began: in an earlier boot of the machine. The processes of that boot are gone.
    pub age: Option<Duration>,
    /// The reading of the store's clock in the step that read this entry. It is the clock that ages
    /// are counted on. Present if [`Records::tells_ages`] is true.
    ///
    /// The reading counts from the zero of that clock: from 1970 for the clock of a server, and
    /// from the boot of the machine for the clock of one host
    /// ([`ExpiryClock`](crate::ExpiryClock)). In a store of several servers, it is the clock of the
    /// server that has the record. So only the difference between two readings of one kind of clock
    /// has a meaning. The reading goes back only when the clock itself is set back.
    pub store_time: Option<Duration>,
}

impl Entry {
    /// An entry of these values, without the time of the read.
    #[must_use]
    pub const fn new(version: Version, value: Vec<u8>, age: Option<Duration>) -> Self {
        Self {
            version,
            value,
            age,
            store_time: None,
        }
    }

    /// The same entry, read at this time of the store's clock.
    #[must_use]
    pub fn read_at(mut self, store_time: Duration) -> Self {
        self.store_time = Some(store_time);
        self
    }
}

/// The condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// There is no record.
    Absent,
    /// The record has this version.
    Version(Version),
}

/// The answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The record was written and has this version.
    Stored(Version),
    /// The stored record is not as expected. Nothing changed.
    Conflict,
}

/// The answer to a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The record is deleted.
    Done,
    /// The record has another version, or there is none. Nothing changed.
    Conflict,
}

/// Checks the size of a value. Every backend calls this function before it sends the value.
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
