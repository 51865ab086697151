//! Who holds the shared locks of a store, for operators.
//!
//! This module only reads. It takes a record as it is: an entry of a dead holder shows as gone, and
//! stays until it blocks somebody.

use distlock_core::{Entry, Error, FencingToken, HolderInfo, LockName, RecordKey, Result, Store};
use futures_util::{StreamExt as _, stream};

use super::{
    Kind,
    guard::SharedMode,
    record::{EntryId, Mode, Record},
    slot::slot_lock,
};

/// The number of holders of which [`inspect`] reads the labels.
const SHOWN: usize = 64;

/// The number of slots that are read at the same time.
const AT_ONCE: usize = 16;

/// The number of records in one page of a list.
const PAGE: u32 = 100;

/// The state of a shared lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedInfo {
    /// The lock or the semaphore.
    pub name: LockName,
    /// What it is.
    pub kind: SharedKind,
    /// The token of the last change of its list of holders.
    pub token: Option<FencingToken>,
    /// Whether somebody waits, as far as the first in the line has said so.
    pub is_waited_for: bool,
    /// The holders, the oldest first.
    pub holders: Vec<SharedHolder>,
}

/// The kind of a shared lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedKind {
    /// Many readers, or one writer.
    ReadWrite,
    /// A number of permits.
    Semaphore {
        /// How many permits there are.
        capacity: u32,
        /// How many nobody has. Those of dead holders count as taken until somebody needs them.
        free: u32,
    },
}

/// A holder of a shared lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedHolder {
    /// What it may do.
    pub mode: SharedMode,
    /// Which permits it has.
    pub indices: Vec<u32>,
    /// What the store knows of it.
    pub state: HolderState,
}

/// What is known of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HolderState {
    /// It holds the lock. The token is that of its slot, and no fencing token of the shared lock.
    Held(HolderInfo),
    /// It has left or is dead. Its entry goes when it blocks somebody.
    Gone,
    /// Not asked: the request was for a list, or there are too many holders.
    Unknown,
}

/// The shared locks of this name: a lock of readers and writers, a semaphore, both or none. The
/// labels of the first 64 holders of each are read.
///
/// # Errors
/// [`ErrorKind::InvalidName`](distlock_core::ErrorKind::InvalidName),
/// [`ErrorKind::Corrupt`](distlock_core::ErrorKind::Corrupt), and failures of the store.
///
/// # Cancel safety
/// Safe: it only reads.
pub async fn inspect(store: &Store, name: &str) -> Result<Vec<SharedInfo>> {
    let name = LockName::of_caller(name)?;
    let kinds = [Kind::ReadWrite, Kind::Semaphore];
    let mut keys = Vec::new();
    for kind in kinds {
        keys.push(RecordKey::new(format!("{}{name}", kind.records()))?);
        keys.push(RecordKey::new(format!("{}{name}", kind.words()))?);
    }
    let read = store.records().get_many(&keys).await;
    let read = read.map_err(|error| error.of_read().about(&name))?;
    let mut found = Vec::new();
    for (index, kind) in kinds.into_iter().enumerate() {
        let (Some(stored), word) = (
            read.get(2 * index).and_then(Option::as_ref),
            read.get(2 * index + 1).and_then(Option::as_ref),
        ) else {
            continue;
        };
        let record = Record::parse(&keys[2 * index], stored, kind)?;
        let mut info = described(name.clone(), stored, &record);
        info.is_waited_for = word.is_some();
        let ids: Vec<EntryId> = record.entries.into_iter().map(|entry| entry.id).collect();
        let asked = ids.into_iter().take(SHOWN).map(|id| state_of(store, id));
        let mut states = stream::iter(asked).buffered(AT_ONCE);
        for holder in &mut info.holders {
            let Some(state) = states.next().await else {
                break;
            };
            holder.state = state?;
        }
        found.push(info);
    }
    Ok(found)
}

/// Whether the holder with this slot holds it still.
async fn state_of(store: &Store, id: EntryId) -> Result<HolderState> {
    let held = store.locker().inspect(slot_lock(&id.slot)?).await?.held;
    // A later use of the slot belongs to another entry.
    let held = held.filter(|held| held.token == Some(id.token));
    Ok(held.map_or(HolderState::Gone, HolderState::Held))
}

/// All shared locks whose names start with `prefix`: first those of readers and writers, then the
/// semaphores, each in byte order of their names. The labels of the holders are not read.
///
/// # Errors
/// [`ErrorKind::Corrupt`](distlock_core::ErrorKind::Corrupt), and failures of the store.
///
/// # Cancel safety
/// Safe: it only reads.
pub async fn list(store: &Store, prefix: &str) -> Result<Vec<SharedInfo>> {
    let records = store.records();
    let mut found = Vec::new();
    for kind in [Kind::ReadWrite, Kind::Semaphore] {
        let start = format!("{}{prefix}", kind.records());
        let mut after: Option<RecordKey> = None;
        loop {
            let page = records.scan(&start, after.as_ref(), PAGE).await;
            let page = page.map_err(Error::of_read)?;
            for (key, stored) in &page {
                let name = key
                    .as_str()
                    .strip_prefix(kind.records())
                    .unwrap_or_default();
                let record = Record::parse(key, stored, kind)?;
                if !record.entries.is_empty() {
                    found.push(described(LockName::new(name)?, stored, &record));
                }
            }
            match page.last() {
                Some((last, _)) if page.len() >= PAGE as usize => after = Some(last.clone()),
                _ => break,
            }
        }
    }
    Ok(found)
}

fn described(name: LockName, stored: &Entry, record: &Record) -> SharedInfo {
    let holders = record.entries.iter().map(|entry| {
        let (mode, indices) = match &entry.mode {
            Mode::Read => (SharedMode::Read, Vec::new()),
            Mode::Write => (SharedMode::Write, Vec::new()),
            Mode::Permits(indices) => (SharedMode::Permits, indices.clone()),
        };
        SharedHolder {
            mode,
            indices,
            state: HolderState::Unknown,
        }
    });
    SharedInfo {
        name,
        kind: match record.capacity {
            None => SharedKind::ReadWrite,
            Some(capacity) => SharedKind::Semaphore {
                capacity,
                free: record.free_permits(),
            },
        },
        token: FencingToken::new(stored.version.get()).ok(),
        is_waited_for: false,
        holders: holders.collect(),
    }
}
