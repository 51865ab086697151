//! Reads and writes of account records.
//!
//! A write succeeds only on top of the version that was read. After a lost reply, the outcome of a
//! write is looked up and never guessed.

use std::time::Duration;

use distlock_core::{Entry, Error, ErrorKind, Expect, RecordKey, Result, Version, Written};

use crate::{
    directory::records::{Directory, MAX_ATTEMPTS},
    model::{
        ident::{SessionKey, Uid},
        record::UserRecord,
    },
};

/// A record with its version. `version` is `None` if the store has no record.
#[derive(Clone, Debug)]
pub(crate) struct VersionedRecord {
    pub(crate) version: Option<Version>,
    pub(crate) record: UserRecord,
    /// Time since the record was written, if the store can tell.
    pub(crate) age: Option<Duration>,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutOutcome {
    Stored,
    /// The record changed after it was read. Nothing was stored.
    Conflict,
    /// The write was stored, and a newer login has replaced it already.
    Overtaken,
}

/// Number of accounts that are changed at the same time, so that one slow account delays the others
/// little. If all changes of such a batch fail, the store is probably unreachable, and callers skip
/// the remaining accounts.
pub(crate) const CONCURRENT_CHANGES: usize = 16;

/// First pause between two look-ups of a write with a lost reply. The pause grows with each
/// look-up, up to `LONGEST_LOOKUP_PAUSE`.
const LOOKUP_PAUSE: Duration = Duration::from_millis(50);

const LONGEST_LOOKUP_PAUSE: Duration = Duration::from_millis(250);

/// Counts a write that was refused because its record had changed.
fn count_conflict() {
    metrics::counter!("distlock_record_conflict_total").increment(1);
}

impl Directory {
    /// Reads an account's record. An account without a record gets an empty one.
    pub(crate) async fn read(&self, uid: &Uid) -> Result<VersionedRecord> {
        let entry = self.records.get(&uid.record_key()?).await?;
        parse_account(uid, entry)
    }

    /// Reads several records. Each record has its own result, because one unreadable record must
    /// not hide the others.
    pub(crate) async fn read_many(&self, uids: &[Uid]) -> Result<Vec<Result<VersionedRecord>>> {
        let keys = uids
            .iter()
            .map(Uid::record_key)
            .collect::<Result<Vec<_>>>()?;
        let entries = self.records.get_many(&keys).await?;
        Ok(uids
            .iter()
            .zip(entries)
            .map(|(uid, entry)| parse_account(uid, entry))
            .collect())
    }

    /// A page of the accounts that begin with `prefix`, sorted by key.
    pub(crate) async fn page(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Option<Uid>, Result<VersionedRecord>)>> {
        let prefix = format!("sess/{prefix}");
        let page = self.records.scan(&prefix, after, limit).await?;
        Ok(page
            .into_iter()
            .map(|(key, entry)| {
                let uid = key.as_str().strip_prefix("sess/").map(Uid::new);
                match uid {
                    Some(Ok(uid)) => {
                        let parsed = parse_account(&uid, Some(entry));
                        (key, Some(uid), parsed)
                    }
                    _ => {
                        let error = Error::new(
                            ErrorKind::Corrupt,
                            format!("record key {key:?} names no account"),
                        );
                        (key, None, Err(error))
                    }
                }
            })
            .collect())
    }

    /// Reads a record, applies `change`, and writes the record on top of the version that was read.
    /// Repeats these steps after a conflict or a lost reply. `change` returns whether it changed
    /// the record. Returns whether a change was made, and the record afterwards.
    ///
    /// After a lost reply, `change` may get a record that has its change already. In that case
    /// `change` must return false.
    pub(crate) async fn update(
        &self,
        uid: &Uid,
        mut change: impl FnMut(&mut UserRecord) -> bool,
    ) -> Result<(bool, UserRecord)> {
        let mut unknown = None;
        for _ in 0..MAX_ATTEMPTS {
            let VersionedRecord {
                version,
                mut record,
                ..
            } = self.read(uid).await?;
            if !change(&mut record) {
                return Ok((unknown.is_some(), record));
            }
            match self.write(uid, version, &record).await {
                Ok(Written::Stored(_)) => return Ok((true, record)),
                Ok(Written::Conflict) => count_conflict(),
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(unknown.unwrap_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the record of account {uid:?} was not written: other nodes changed it before \
                     each of {MAX_ATTEMPTS} writes"
                ),
            )
        }))
    }

    /// Writes a record on top of the version that was read. After a lost reply the outcome is
    /// looked up until it is known, or until `may_wait` returns false. `outcome_in` finds the
    /// outcome in a record that was read later; `None` = that record does not show this write.
    pub(crate) async fn put(
        &self,
        uid: &Uid,
        version: Option<Version>,
        record: &UserRecord,
        outcome_in: impl Fn(&UserRecord) -> Option<PutOutcome> + Send,
        may_wait: impl Fn() -> bool,
    ) -> Result<PutOutcome> {
        let mut unknown = match self.write(uid, version, record).await {
            Ok(Written::Stored(_)) => return Ok(PutOutcome::Stored),
            Ok(Written::Conflict) => {
                count_conflict();
                return Ok(PutOutcome::Conflict);
            }
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => error,
            Err(error) => return Err(error),
        };
        for round in 0.. {
            if round > 0 {
                if !may_wait() {
                    break;
                }
                let pause = LOOKUP_PAUSE.saturating_mul(round);
                self.clock.sleep(pause.min(LONGEST_LOOKUP_PAUSE)).await;
            }
            let now = match self.read(uid).await {
                Ok(now) => now,
                Err(error) if error.is_retryable() => continue,
                // A failed look-up says nothing about the write, so its outcome stays unknown.
                Err(_) => return Err(unknown),
            };
            if let Some(put) = outcome_in(&now.record) {
                return Ok(put);
            }
            if now.version != version {
                return Ok(PutOutcome::Conflict);
            }
            // The write is not stored, but its request may still arrive. Sending the same write
            // again settles the outcome: only one of the two requests can find the expected
            // version, and both carry the same value.
            match self.write(uid, version, record).await {
                Ok(Written::Stored(_)) => return Ok(PutOutcome::Stored),
                Ok(Written::Conflict) => {}
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown = error,
                Err(error) if error.is_retryable() => {}
                Err(_) => return Err(unknown),
            }
        }
        Err(unknown)
    }

    /// Makes one conditional write.
    async fn write(
        &self,
        uid: &Uid,
        version: Option<Version>,
        record: &UserRecord,
    ) -> Result<Written> {
        let expect = version.map_or(Expect::Absent, Expect::Version);
        let written = self
            .records
            .put(&uid.record_key()?, &record.to_bytes()?, expect)
            .await;
        self.note_change(&written);
        written
    }

    /// Removes the revocations of sessions that are known to have ended. Returns the record
    /// afterwards.
    pub(crate) async fn settle(&self, uid: &Uid, gone: &[SessionKey]) -> Result<UserRecord> {
        let (_, record) = self
            .update(uid, |record| record.settle(|key| gone.contains(key)) > 0)
            .await?;
        Ok(record)
    }
}

/// Reads an account's record; an empty record if the store has none.
pub(super) fn parse_account(uid: &Uid, entry: Option<Entry>) -> Result<VersionedRecord> {
    Ok(match entry {
        None => VersionedRecord {
            version: None,
            record: UserRecord::default(),
            age: None,
        },
        Some(entry) => VersionedRecord {
            version: Some(entry.version),
            record: UserRecord::parse(uid, &entry.value)?,
            age: entry.age,
        },
    })
}
