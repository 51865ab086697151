//! The record of one lock in the store: read, and written on condition of the version that was
//! read.
//!
//! Invariant: a write or delete names the version that it replaces, so of several writers exactly
//! one succeeds. A record that cannot be read must never count as "free".

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::OpenFlag;
use distlock_core::{
    Deleted, Entry, Epoch, Error, ErrorKind, Expect, FencingToken, Lease, LockName, LossReason,
    RecordKey, Records, Result, Version, Written,
};

use uuid::Uuid;

use crate::record::{Record, StoredLock};

/// Prefix of the keys of all locks.
pub(crate) const PREFIX: &str = "lock/";

/// The limit of attempts at one change. An attempt fails when another client changes the record
/// between the read and the write.
pub(crate) const TRIES: u32 = 5;

/// Key of the record that holds the epoch of these records. This key does not start with
/// [`PREFIX`].
const EPOCH_KEY: &str = "lock-epoch";

/// The token of a grant whose record was written.
pub(crate) struct Granted(pub(crate) FencingToken);

/// The history of the store's records, as a record of its own names it.
///
/// A store that lost its data lost this record too. The next client then writes another one, which
/// begins another history.
pub(crate) struct History {
    pub(crate) epoch: Epoch,
    /// The version of the record that names the history. Versions and tokens count the same clock
    /// of the store, so each token of this history is higher.
    began: Version,
}

impl History {
    /// Returns whether a lease was granted in an earlier history.
    fn began_after(&self, lease: &Lease) -> bool {
        lease
            .token
            .is_some_and(|token| token.get() < self.began.get())
    }
}

pub(crate) fn key(name: &LockName) -> Result<RecordKey> {
    RecordKey::new(format!("{PREFIX}{name}"))
}

pub(crate) fn name(key: &RecordKey) -> Result<LockName> {
    let name = key.as_str().strip_prefix(PREFIX).unwrap_or_default();
    LockName::new(name).map_err(|error| {
        Error::new(
            ErrorKind::Corrupt,
            format!("record {key:?} is no lock's record"),
        )
        .caused_by(error)
    })
}

pub(crate) fn too_many_conflicts() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the lock's record was changed by somebody else at each try",
    )
}

/// The records of all locks, as one handle sees them. Clones share `open`.
#[derive(Clone, Debug)]
pub(crate) struct LockRecords {
    records: Arc<dyn Records>,
    /// The name of this backend (`kv+redis`), for errors.
    backend: &'static str,
    open: OpenFlag,
}

impl LockRecords {
    pub(crate) fn new(records: Arc<dyn Records>, backend: &'static str) -> Self {
        Self {
            records,
            backend,
            open: OpenFlag::default(),
        }
    }

    /// Opens the same records over a new connection, for a handle that is closed independently of
    /// this one.
    pub(crate) async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            records: self.checked_records()?.reopen().await?,
            open: OpenFlag::default(),
            ..self.clone()
        })
    }

    /// Returns the records; an error of kind `Closed` when this handle was closed.
    pub(crate) fn checked_records(&self) -> Result<&Arc<dyn Records>> {
        self.open.check(self.backend)?;
        Ok(&self.records)
    }

    /// Closes this handle. With `and_records` the connection is closed as well.
    pub(crate) async fn close(&self, and_records: bool) {
        self.open.close();
        if and_records {
            self.records.close().await;
        }
    }

    /// Returns the name of the store's own backend, without `kv+`.
    pub(crate) fn store_backend(&self) -> &'static str {
        self.records.backend()
    }

    /// Reads a lock's record, and the history that it belongs to, in one operation of the store. A
    /// history that was read once must not be kept: the store may lose its data at any time, and no
    /// connection shows that.
    pub(crate) async fn read(&self, name: &LockName) -> Result<(Option<StoredLock>, History)> {
        let keys = [RecordKey::new(EPOCH_KEY)?, key(name)?];
        let mut entries = self.checked_records()?.get_many(&keys).await?.into_iter();
        let (named, stored) = (entries.next().flatten(), entries.next().flatten());
        let history = match named {
            Some(entry) => parse_history(&entry)?,
            None => self.begin_history().await?,
        };
        let stored = stored.map(|entry| self.parse(name, &entry)).transpose()?;
        Ok((stored, history))
    }

    /// Returns the record and its history if this lease holds the lock; otherwise the reason of the
    /// loss.
    pub(crate) async fn read_held(
        &self,
        lease: &Lease,
    ) -> Result<Result<(StoredLock, History), LossReason>> {
        Ok(match self.read(&lease.name).await? {
            (Some(current), history) => current.check(lease).map(|()| (current, history)),
            (None, history) if history.began_after(lease) => Err(LossReason::HistoryChanged),
            (None, _) => Err(LossReason::Removed),
        })
    }

    pub(crate) fn parse(&self, name: &LockName, entry: &Entry) -> Result<StoredLock> {
        let corrupt = |what: &str| {
            Error::new(
                ErrorKind::Corrupt,
                format!("its record {what}; it is not treated as free"),
            )
            .on(self.backend)
            .about(name)
        };
        let record: Record = serde_json::from_slice(&entry.value)
            .map_err(|error| corrupt("cannot be read").caused_by(error))?;
        let ttl = record.ttl().ok_or_else(|| corrupt("has no valid ttl"))?;
        let token = match record.token {
            Some(token) => token,
            None => token_of(entry.version)?,
        };
        Ok(StoredLock {
            record,
            version: entry.version,
            token,
            ttl,
            // The store's clock started again after this record was written, so its lease counts as
            // expired.
            age: entry.age.unwrap_or(Duration::MAX),
        })
    }

    /// Writes a new grant; the version of the record becomes the token. `None`: another client
    /// changed the record first.
    pub(crate) async fn write_grant(
        &self,
        name: &LockName,
        record: &Record,
        expect: Expect,
    ) -> Result<Option<Granted>> {
        let Some(version) = self.write(name, record, expect).await? else {
            return Ok(None);
        };
        match token_of(version) {
            Ok(token) => Ok(Some(Granted(token))),
            Err(error) => {
                // The record holds the lock, but no guard can release a lock without a token. If
                // this delete fails too, the lock stays held until its lease expires.
                let _ = self.remove(&key(name)?, version).await;
                Err(error)
            }
        }
    }

    /// Writes a record if the stored version is the expected one. `None`: another version is
    /// stored, and nothing was written.
    ///
    /// When the answer is lost, this function reads the record. The write is reported as done if
    /// the record has the id of this write, and as not done if it can no longer succeed.
    pub(crate) async fn write(
        &self,
        name: &LockName,
        record: &Record,
        expect: Expect,
    ) -> Result<Option<Version>> {
        let key = key(name)?;
        let value = serde_json::to_vec(record).map_err(|error| {
            Error::new(ErrorKind::Internal, "the record cannot be written as JSON").caused_by(error)
        })?;
        let unknown = match self.records.put(&key, &value, expect).await {
            Ok(Written::Stored(version)) => return Ok(Some(version)),
            Ok(Written::Conflict) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => error,
            Err(error) => return Err(error),
        };
        let Ok(found) = self.records.get(&key).await else {
            return Err(unknown);
        };
        let version = found.as_ref().map(|entry| entry.version);
        let ours = found.is_some_and(|entry| {
            serde_json::from_slice::<Record>(&entry.value)
                .is_ok_and(|found| found.write == record.write)
        });
        match expect {
            _ if ours => Ok(version),
            // An expected version that was replaced never returns, so this write fails even if it
            // arrives later.
            Expect::Version(expected) if version != Some(expected) => Ok(None),
            // This write may still arrive and succeed. For `Absent` this is true even if another
            // record is stored now, because the key is absent again after that record is deleted.
            Expect::Version(_) | Expect::Absent => Err(unknown),
        }
    }

    /// Deletes a record if it still has this version.
    pub(crate) async fn remove(&self, key: &RecordKey, version: Version) -> Result<bool> {
        Ok(self.records.delete(key, version).await? == Deleted::Done)
    }

    /// Reads the history of the records.
    pub(crate) async fn history(&self) -> Result<History> {
        let key = RecordKey::new(EPOCH_KEY)?;
        match self.checked_records()?.get(&key).await? {
            Some(entry) => parse_history(&entry),
            None => self.begin_history().await,
        }
    }

    /// Writes a random name of a history for a store that has none. The history lasts as long as
    /// the records.
    async fn begin_history(&self) -> Result<History> {
        let key = RecordKey::new(EPOCH_KEY)?;
        let records = self.checked_records()?;
        for _ in 0..TRIES {
            let id = Uuid::new_v4();
            let written = records
                .put(&key, id.to_string().as_bytes(), Expect::Absent)
                .await?;
            if let Written::Stored(began) = written {
                let epoch = epoch_of(id);
                return Ok(History { epoch, began });
            }
            // Another client has begun a history first.
            if let Some(entry) = records.get(&key).await? {
                return parse_history(&entry);
            }
        }
        Err(too_many_conflicts())
    }
}

fn parse_history(entry: &Entry) -> Result<History> {
    let id = Uuid::try_parse_ascii(&entry.value).map_err(|error| {
        Error::new(
            ErrorKind::Corrupt,
            format!("record {EPOCH_KEY:?} does not name the history of the locks"),
        )
        .caused_by(error)
    })?;
    Ok(History {
        epoch: epoch_of(id),
        began: entry.version,
    })
}

fn epoch_of(id: Uuid) -> Epoch {
    Epoch::new(format!("kv-{id}"))
}

fn token_of(version: Version) -> Result<FencingToken> {
    FencingToken::new(version.get()).map_err(|_| {
        Error::new(
            ErrorKind::LimitExceeded,
            format!("record version {} cannot be a fencing token", version.get()),
        )
    })
}
