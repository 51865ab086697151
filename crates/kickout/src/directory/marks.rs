//! Reads and writes of bans and of drain marks.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use distlock_core::{Deleted, Entry, Error, ErrorKind, Expect, RecordKey, Result, Written};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    directory::access::{Directory, MAX_ATTEMPTS, parse, too_many_conflicts},
    model::{
        ban::Ban,
        ident::{Boot, NodeId, Uid},
        node::DrainMark,
    },
};

/// The prefix of all bans.
const BANS: &str = "ban/";

fn ban_key(uid: &Uid) -> Result<RecordKey> {
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

    /// A page of the bans with their ages, sorted by key. A record that cannot be read has only its
    /// key.
    pub(crate) async fn ban_page(
        &self,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Option<(Uid, Ban, Option<Duration>)>)>> {
        let page = self.records.scan(BANS, after, limit).await?;
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
            Error::new(ErrorKind::Internal, "record cannot be written").caused_by(error)
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
