//! The session directory: account records and what stands beside them, every write conditional on
//! the version that was read.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use distlock_core::{
    Clock, Deleted, Entry, Error, ErrorKind, Expect, RecordKey, Records, Result, Version, Written,
};

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::model::{
    ban::Ban,
    ident::{Boot, NodeId, SessionKey, Uid},
    node::DrainMark,
    record::UserRecord,
    roster::Roster,
};

/// Accounts that are changed at a time: one that is held up costs the others little. Where none of so many can be changed the
/// rest is not tried: the store is away, not one of its records.
pub(crate) const CONCURRENT_CHANGES: usize = 16;
/// How often a change is tried on a record that others keep changing.
const MAX_ATTEMPTS: u32 = 16;
/// Between two looks at a write whose reply was lost: longer each time, up to the longest.
const LOOKUP_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_LOOKUP_PAUSE: Duration = Duration::from_millis(250);
/// Where the roster is.
const ROSTER: &str = "nodes";

#[derive(Clone, Debug)]
pub(crate) struct Directory {
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
}

/// A record as it was read. `version` is `None` when there was none.
#[derive(Clone, Debug)]
pub(crate) struct VersionedRecord {
    pub(crate) version: Option<Version>,
    pub(crate) record: UserRecord,
    /// Time since it was written, where the store can tell.
    pub(crate) age: Option<Duration>,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutOutcome {
    Stored,
    /// Somebody else wrote since the record was read.
    Conflict,
    /// It was stored, and a newer login has undone it already.
    Overtaken,
}

/// A note that a node of the version before left for another: nobody reads it any more.
#[derive(Clone, Debug)]
pub(crate) struct OldNote {
    key: RecordKey,
    pub(crate) node: NodeId,
    pub(crate) boot: Boot,
    version: Version,
}

impl OldNote {
    pub(crate) const fn key(&self) -> &RecordKey {
        &self.key
    }
}

impl Directory {
    pub(crate) fn new(records: Arc<dyn Records>, clock: Arc<dyn Clock>) -> Self {
        Self { records, clock }
    }

    pub(crate) async fn read(&self, uid: &Uid) -> Result<VersionedRecord> {
        let entry = self.records.get(&uid.record()?).await?;
        parse_account(uid, entry)
    }

    /// An account's record, and the roster beside it: was the store emptied before it was read, then
    /// the roster is another one.
    pub(crate) async fn read_with_roster(&self, uid: &Uid) -> Result<(VersionedRecord, Roster)> {
        let roster = RecordKey::new(ROSTER)?;
        let keys = [uid.record()?, roster];
        let [account, listed] = self
            .records
            .get_many(&keys)
            .await?
            .try_into()
            .map_err(|_| Error::new(ErrorKind::Internal, "two records were asked for"))?;
        let (_, roster) = read_roster(&keys[1], listed)?;
        Ok((parse_account(uid, account)?, roster))
    }

    /// Reads several records; each has its own answer, because one unreadable record must not hide the others.
    pub(crate) async fn read_many(&self, uids: &[Uid]) -> Result<Vec<Result<VersionedRecord>>> {
        let keys = uids.iter().map(Uid::record).collect::<Result<Vec<_>>>()?;
        let entries = self.records.get_many(&keys).await?;
        Ok(uids
            .iter()
            .zip(entries)
            .map(|(uid, entry)| parse_account(uid, entry))
            .collect())
    }

    /// A page of the directory, in the order of keys.
    pub(crate) async fn page(
        &self,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Option<Uid>, Result<VersionedRecord>)>> {
        let page = self.records.scan("sess/", after, limit).await?;
        Ok(page
            .into_iter()
            .map(|(key, entry)| {
                let uid = key.as_str().strip_prefix("sess/").map(Uid::new);
                match uid {
                    Some(Ok(uid)) => {
                        let parse_account = parse_account(&uid, Some(entry));
                        (key, Some(uid), parse_account)
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

    /// Changes a record, again and again until the change went in on top of what was read. `change` says whether there is
    /// anything to do; it is asked again after each conflict. Answers whether the change was made and the record as it is.
    ///
    /// A lost reply is settled by asking `change` again: it must see by itself that its work is done.
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
                Ok(Written::Conflict) => conflict(),
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(unknown.unwrap_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                format!("record of account {uid:?} changed {MAX_ATTEMPTS} times in between"),
            )
        }))
    }

    /// Writes a record on top of the version that was read. A lost reply is looked up until it is known, or until `may_wait`
    /// says that the time for it is over: `landed` says what a record tells about this write.
    pub(crate) async fn put(
        &self,
        uid: &Uid,
        version: Option<Version>,
        record: &UserRecord,
        landed: impl Fn(&UserRecord) -> Option<PutOutcome> + Send,
        may_wait: impl Fn() -> bool,
    ) -> Result<PutOutcome> {
        let mut unknown = match self.write(uid, version, record).await {
            Ok(Written::Stored(_)) => return Ok(PutOutcome::Stored),
            Ok(Written::Conflict) => {
                conflict();
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
                // The write's outcome stays unknown, whatever is wrong with the lookup.
                Err(_) => return Err(unknown),
            };
            if let Some(put) = landed(&now.record) {
                return Ok(put);
            }
            if now.version != version {
                return Ok(PutOutcome::Conflict);
            }
            // Nothing was written yet, but the first request may still arrive. Writing the same again settles it: only one
            // of the two can find the version it expects, and both say the same.
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

    async fn write(
        &self,
        uid: &Uid,
        version: Option<Version>,
        record: &UserRecord,
    ) -> Result<Written> {
        let expect = version.map_or(Expect::Absent, Expect::Version);
        self.records
            .put(&uid.record()?, &record.to_bytes()?, expect)
            .await
    }

    /// Writes an account's ban, whatever was there.
    pub(crate) async fn put_ban(&self, uid: &Uid, ban: &Ban) -> Result<()> {
        self.put_unconditionally(&ban_key(uid)?, ban).await
    }

    /// An account's ban and how long it has been there, where the store can tell.
    pub(crate) async fn ban(&self, uid: &Uid) -> Result<Option<(Ban, Option<Duration>)>> {
        let key = ban_key(uid)?;
        let Some(entry) = self.records.get(&key).await? else {
            return Ok(None);
        };
        Ok(Some((parse(&key, &entry)?, entry.age)))
    }

    /// Removes an account's ban, or only this one. Answers whether it was there.
    pub(crate) async fn remove_ban(&self, uid: &Uid, only: Option<Uuid>) -> Result<bool> {
        let key = ban_key(uid)?;
        let mut unknown = false;
        for _ in 0..MAX_ATTEMPTS {
            let Some(entry) = self.records.get(&key).await? else {
                return Ok(unknown);
            };
            if let Some(only) = only
                && parse::<Ban>(&key, &entry)?.id != only
            {
                return Ok(false);
            }
            match self.records.delete(&key, entry.version).await {
                Ok(Deleted::Done) => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown = true,
                Err(error) => return Err(error),
            }
        }
        Err(too_many_conflicts(&key))
    }

    /// Says to other nodes that this one drains, or that it does not any more.
    pub(crate) async fn mark_drain(&self, node: &NodeId, mark: Option<&DrainMark>) -> Result<()> {
        let key = drain_key(node)?;
        if let Some(mark) = mark {
            return self.put_unconditionally(&key, mark).await;
        }
        for _ in 0..MAX_ATTEMPTS {
            let Some(entry) = self.records.get(&key).await? else {
                return Ok(());
            };
            match self.records.delete(&key, entry.version).await {
                Err(error) if error.kind() != ErrorKind::OutcomeUnknown => return Err(error),
                _ => {}
            }
        }
        Err(too_many_conflicts(&key))
    }

    /// Removes the mark of an incarnation that is over.
    pub(crate) async fn remove_drain_mark(&self, node: &NodeId, boot: Boot) -> Result<()> {
        let key = drain_key(node)?;
        if let Some(entry) = self.records.get(&key).await?
            && parse::<DrainMark>(&key, &entry)?.boot == boot
        {
            self.records.delete(&key, entry.version).await?;
        }
        Ok(())
    }

    /// Which of these nodes drain. A mark counts for the incarnation it names.
    pub(crate) async fn drain_marks(
        &self,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<HashMap<NodeId, DrainMark>> {
        let keys = nodes.iter().map(drain_key).collect::<Result<Vec<_>>>()?;
        let found = self.records.get_many(&keys).await?;
        let marks = nodes.iter().zip(keys.iter().zip(found));
        let read = |(node, (key, entry)): (&NodeId, (&RecordKey, Option<Entry>))| {
            Some((node.clone(), parse(key, &entry?).ok()?))
        };
        Ok(marks.filter_map(read).collect())
    }

    async fn put_unconditionally(&self, key: &RecordKey, value: &impl Serialize) -> Result<()> {
        let value = serde_json::to_vec(value).map_err(|error| {
            Error::new(ErrorKind::Internal, "record cannot be written").caused_by(error)
        })?;
        for _ in 0..MAX_ATTEMPTS {
            let there = self.records.get(key).await?;
            let expect = there.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            match self.records.put(key, &value, expect).await {
                Ok(Written::Stored(_)) => return Ok(()),
                Ok(Written::Conflict) => {}
                // Writing the same again is as good as knowing.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
        }
        Err(too_many_conflicts(key))
    }

    /// A page of the notes that nodes of the version before leave for each other:
    /// `rev/<node>/<boot>/<uid>`.
    pub(crate) async fn old_notes(
        &self,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<OldNote>> {
        let page = self.records.scan("rev/", after, limit).await?;
        let read = |(key, entry): (RecordKey, Entry)| {
            let mut parts = key.as_str().splitn(4, '/').skip(1);
            let node = NodeId::new(parts.next()?).ok()?;
            let boot = Boot::new(parts.next()?.parse().ok()?);
            Some(OldNote {
                node,
                boot,
                version: entry.version,
                key,
            })
        };
        Ok(page.into_iter().filter_map(read).collect())
    }

    /// Removes a note unless it was written again since it was read.
    pub(crate) async fn remove_old_note(&self, note: &OldNote) -> Result<Deleted> {
        self.records.delete(&note.key, note.version).await
    }

    /// Takes the revocations of sessions that are known to be gone out of the record. Answers the
    /// record as it is now.
    pub(crate) async fn settle(&self, uid: &Uid, gone: &[SessionKey]) -> Result<UserRecord> {
        let (_, record) = self
            .update(uid, |record| record.settle(|key| gone.contains(key)) > 0)
            .await?;
        Ok(record)
    }

    /// The incarnations that are, or were and may have left something behind.
    pub(crate) async fn roster(&self) -> Result<Roster> {
        let key = RecordKey::new(ROSTER)?;
        let (_, roster) = read_roster(&key, self.records.get(&key).await?)?;
        Ok(roster)
    }

    /// Changes the roster; `change` says whether there is anything to do, and is asked again after
    /// each conflict. Answers the roster as it is now.
    pub(crate) async fn update_roster(
        &self,
        mut change: impl FnMut(&mut Roster) -> bool,
    ) -> Result<Roster> {
        let key = RecordKey::new(ROSTER)?;
        for _ in 0..MAX_ATTEMPTS {
            let (version, mut roster) = read_roster(&key, self.records.get(&key).await?)?;
            if !change(&mut roster) {
                return Ok(roster);
            }
            roster.id.get_or_insert_with(Uuid::new_v4);
            let expect = version.map_or(Expect::Absent, Expect::Version);
            let written = if let (true, Some(version)) = (roster.is_empty(), version) {
                let deleted = self.records.delete(&key, version).await;
                deleted.map(|deleted| deleted == Deleted::Done)
            } else {
                let value = serde_json::to_vec(&roster).map_err(|error| {
                    Error::new(ErrorKind::Internal, "the roster cannot be written").caused_by(error)
                })?;
                let written = self.records.put(&key, &value, expect).await;
                written.map(|written| matches!(written, Written::Stored(_)))
            };
            match written {
                Ok(true) => return Ok(roster),
                Ok(false) => {}
                // Looked up by the next round.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
        }
        Err(too_many_conflicts(&key))
    }
}

fn read_roster(key: &RecordKey, entry: Option<Entry>) -> Result<(Option<Version>, Roster)> {
    Ok(match entry {
        None => (None, Roster::default()),
        Some(entry) => {
            let roster: Roster = parse(key, &entry)?;
            (Some(entry.version), roster.known()?)
        }
    })
}

fn parse_account(uid: &Uid, entry: Option<Entry>) -> Result<VersionedRecord> {
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

fn ban_key(uid: &Uid) -> Result<RecordKey> {
    RecordKey::new(format!("ban/{uid}"))
}

fn parse<T: DeserializeOwned>(key: &RecordKey, entry: &Entry) -> Result<T> {
    serde_json::from_slice(&entry.value).map_err(|error| {
        Error::new(
            ErrorKind::Corrupt,
            format!("record {:?} cannot be read: {error}", key.as_str()),
        )
    })
}

fn too_many_conflicts(key: &RecordKey) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "record {:?} changed {MAX_ATTEMPTS} times in between",
            key.as_str()
        ),
    )
}

fn drain_key(node: &NodeId) -> Result<RecordKey> {
    RecordKey::new(format!("drain/{node}"))
}

fn conflict() {
    metrics::counter!("distlock_cas_conflict_total").increment(1);
}
