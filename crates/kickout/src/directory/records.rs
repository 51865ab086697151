//! Access to the session directory, and the records beside those of the accounts: bans, drain marks
//! and the roster.
//!
//! Every write is conditional on the version that was read. This module decides nothing about
//! sessions.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    Clock, Deleted, Entry, Error, ErrorKind, Expect, RecordKey, Records, Result, Store, Version,
    Written,
};
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::{
    directory::accounts::{VersionedRecord, parse_account},
    model::{
        ident::{Boot, NodeId, Uid},
        node::{DrainMark, Roster},
        record::Ban,
    },
};

/// Attempts at one change of a record while other nodes keep changing the same record.
pub(super) const MAX_ATTEMPTS: u32 = 16;

/// The records of the flow in the store.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(super) records: Arc<dyn Records>,
    pub(super) clock: Arc<dyn Clock>,
    changes: Arc<Changes>,
}

impl Directory {
    pub(crate) fn new(store: &Store) -> Self {
        let name = match store.records_store() {
            Some(_) => "the store of the records",
            None => "the store",
        };
        Self {
            records: store.records(),
            clock: store.clock(),
            changes: Arc::new(Changes::new(name)),
        }
    }

    /// Whether the store took this node's last change.
    pub(crate) fn takes_changes(&self) -> bool {
        self.changes.are_taken()
    }

    /// Notes whether the store took a change: a write of a record, or the acquisition of an
    /// account's lock if the locks are in the same store.
    pub(crate) fn note_change<T>(&self, outcome: &Result<T>) {
        self.changes.note(outcome);
    }
}

/// Whether a store takes changes.
#[derive(Debug)]
pub(crate) struct Changes {
    /// The store, for the log.
    store: &'static str,
    /// Whether the store failed this node's last change.
    refused: AtomicBool,
}

impl Changes {
    pub(crate) const fn new(store: &'static str) -> Self {
        Self {
            store,
            refused: AtomicBool::new(false),
        }
    }

    /// Whether the store took this node's last change.
    pub(crate) fn are_taken(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Notes whether the store took a change, and logs when that is no longer so, and when it is so
    /// again.
    pub(crate) fn note<T>(&self, outcome: &Result<T>) {
        let failed = outcome.as_ref().err().filter(|error| {
            matches!(
                error.kind(),
                ErrorKind::AccessDenied
                    | ErrorKind::LimitExceeded
                    | ErrorKind::OutcomeUnknown
                    | ErrorKind::Unavailable
            )
        });
        // An error of another kind says nothing about the store.
        if failed.is_none() && outcome.is_err() {
            return;
        }
        let refused_before = self.refused.swap(failed.is_some(), Ordering::Relaxed);
        let store = self.store;
        match failed {
            Some(error) if !refused_before => tracing::warn!(
                %error,
                "{store} refuses changes, so logins fail until it takes changes again"
            ),
            None if refused_before => tracing::warn!("{store} takes changes again"),
            _ => {}
        }
    }
}

/// Reads a record's JSON.
pub(super) fn parse<T: DeserializeOwned>(key: &RecordKey, entry: &Entry) -> Result<T> {
    serde_json::from_slice(&entry.value).map_err(|error| {
        Error::new(
            ErrorKind::Corrupt,
            format!("record {:?} cannot be read: {error}", key.as_str()),
        )
    })
}

/// The error after [`MAX_ATTEMPTS`] conflicting writes.
pub(super) fn too_many_conflicts(key: &RecordKey) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "record {:?} was not written: other clients of the store changed it before each of \
             {MAX_ATTEMPTS} writes",
            key.as_str()
        ),
    )
}

/// The prefix of all bans.
const BANS: &str = "ban/";

pub(crate) fn ban_key(uid: &Uid) -> Result<RecordKey> {
    RecordKey::new(format!("{BANS}{uid}"))
}

fn drain_key(node: &NodeId) -> Result<RecordKey> {
    RecordKey::new(format!("drain/{node}"))
}

impl Directory {
    /// Writes an account's ban and replaces an earlier one.
    pub(crate) async fn put_ban(&self, uid: &Uid, ban: &Ban) -> Result<()> {
        self.overwrite(&ban_key(uid)?, ban).await
    }

    /// An account's ban and its age, if the store can tell the age.
    pub(crate) async fn ban(&self, uid: &Uid) -> Result<Option<(Ban, Option<Duration>)>> {
        let key = ban_key(uid)?;
        let Some(entry) = self.records.get(&key).await? else {
            return Ok(None);
        };
        Ok(Some((parse(&key, &entry)?, entry.age)))
    }

    /// A page of the bans of accounts that begin with `prefix`, with the ages of the bans, sorted
    /// by key. A record that cannot be read has only its key.
    pub(crate) async fn ban_page(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Option<(Uid, Ban, Option<Duration>)>)>> {
        let prefix = format!("{BANS}{prefix}");
        let page = self.records.scan(&prefix, after, limit).await?;
        let read = |(key, entry): (RecordKey, Entry)| {
            let uid = key.as_str().strip_prefix(BANS).map(Uid::new);
            let ban = match (uid, parse(&key, &entry)) {
                (Some(Ok(uid)), Ok(ban)) => Some((uid, ban, entry.age)),
                _ => None,
            };
            (key, ban)
        };
        Ok(page.into_iter().map(read).collect())
    }

    /// Removes an account's ban, or with `only` the ban of this id alone. Returns whether there was
    /// a ban to remove.
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

    /// Writes the drain mark of a node, or removes it.
    pub(crate) async fn set_drain_mark(
        &self,
        node: &NodeId,
        mark: Option<&DrainMark>,
    ) -> Result<()> {
        let key = drain_key(node)?;
        if let Some(mark) = mark {
            return self.overwrite(&key, mark).await;
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

    /// Removes the drain mark of this incarnation. A mark of another incarnation stays.
    pub(crate) async fn remove_drain_mark(&self, node: &NodeId, boot: Boot) -> Result<()> {
        let key = drain_key(node)?;
        if let Some(entry) = self.records.get(&key).await?
            && parse::<DrainMark>(&key, &entry)?.boot == boot
        {
            self.records.delete(&key, entry.version).await?;
        }
        Ok(())
    }

    /// The readable drain marks of these nodes. A mark counts only for the incarnation that it
    /// names.
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

    /// Writes a record on top of any present version.
    async fn overwrite(&self, key: &RecordKey, value: &impl Serialize) -> Result<()> {
        let value = serde_json::to_vec(value).map_err(|error| {
            Error::new(
                ErrorKind::Internal,
                "a record could not be turned into JSON",
            )
            .caused_by(error)
        })?;
        for _ in 0..MAX_ATTEMPTS {
            let there = self.records.get(key).await?;
            let expect = there.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            match self.records.put(key, &value, expect).await {
                Ok(Written::Stored(_)) => return Ok(()),
                Ok(Written::Conflict) => {}
                // The next round writes the same value again, so the outcome of this write does not
                // matter.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
        }
        Err(too_many_conflicts(key))
    }
}

/// Key of the roster.
const ROSTER: &str = "nodes";

/// Reads a roster and its version; an empty roster if the store has none.
fn parse_roster(key: &RecordKey, entry: Option<Entry>) -> Result<(Option<Version>, Roster)> {
    Ok(match entry {
        None => (None, Roster::default()),
        Some(entry) => {
            let roster: Roster = parse(key, &entry)?;
            (Some(entry.version), roster.check_format()?)
        }
    })
}

impl Directory {
    /// Reads the roster; an empty roster if the store has none.
    pub(crate) async fn roster(&self) -> Result<Roster> {
        let key = RecordKey::new(ROSTER)?;
        let (_, roster) = parse_roster(&key, self.records.get(&key).await?)?;
        Ok(roster)
    }

    /// Changes the roster. `change` returns whether it changed the roster; it is called again after
    /// each conflict or lost reply. Returns the roster afterwards. An empty roster is deleted.
    pub(crate) async fn update_roster(
        &self,
        mut change: impl FnMut(&mut Roster) -> bool,
    ) -> Result<Roster> {
        let key = RecordKey::new(ROSTER)?;
        for _ in 0..MAX_ATTEMPTS {
            let (version, mut roster) = parse_roster(&key, self.records.get(&key).await?)?;
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
                    Error::new(
                        ErrorKind::Internal,
                        "the roster could not be turned into JSON",
                    )
                    .caused_by(error)
                })?;
                let written = self.records.put(&key, &value, expect).await;
                self.note_change(&written);
                written.map(|written| matches!(written, Written::Stored(_)))
            };
            match written {
                Ok(true) => return Ok(roster),
                Ok(false) => {}
                // The next round reads the roster and so finds the outcome.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
        }
        Err(too_many_conflicts(&key))
    }

    /// Reads an account's record and the roster in one request. If the store was emptied before
    /// that read, the roster shows it: it is missing, or has another id.
    pub(crate) async fn read_with_roster(&self, uid: &Uid) -> Result<(VersionedRecord, Roster)> {
        let roster = RecordKey::new(ROSTER)?;
        let keys = [uid.record_key()?, roster];
        let [account, listed] = self
            .records
            .get_many(&keys)
            .await?
            .try_into()
            .map_err(|_| Error::new(ErrorKind::Internal, "two records were asked for"))?;
        let (_, roster) = parse_roster(&keys[1], listed)?;
        Ok((parse_account(uid, account)?, roster))
    }
}
