//! Bugs that are planted in a node: the checker is worth what it catches in something that runs.
//!
//! Each is a layer around the node's honest store, so the gateway has no switch for it. A node with
//! such a layer does what a careless flow would do.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use clap::ValueEnum;
use distlock::{
    Clock as _, Entry, Expect, RecordKey, Records, Result, Store, SystemClock, Version, Written,
};
use distlock_checker::{Invariant, Invariant::*, Report};
use distlock_conformance::RecordsLayer;
use serde::{Deserialize, Serialize};

use super::kinds::NodeFaultKind;
use crate::chaos::planted_bugs::{self, StoreBug};

/// One bug.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NodeBug {
    /// A login is confirmed before its record is written.
    ConfirmsBeforeTheWrite,
    /// A node goes by what it wrote itself of an account, and writes over what others have written.
    TrustsItsMemory,
    /// A record of an account is now and then not found, and written anew.
    LosesSight,
    /// A renewal of a lease that failed is taken for a success.
    LeaseNeverEnds,
}

/// How long the early answer is ahead of the write.
const EARLY: Duration = Duration::from_millis(400);
/// Prefix of the keys of account records.
const ACCOUNT_PREFIX: &str = "sess/";

impl NodeBug {
    /// The invariants of which one must be found broken.
    const fn breaks(self) -> &'static [Invariant] {
        match self {
            Self::ConfirmsBeforeTheWrite => &[I1, I7],
            Self::TrustsItsMemory => &[I1, I2, I3, I4, I5, I11],
            Self::LosesSight => &[I1, I2, I3, I4, I7, I11],
            Self::LeaseNeverEnds => &[I1, I5, I11],
        }
    }

    /// The faults under which it shows soon; none = any.
    pub(super) const fn faults(self) -> &'static [NodeFaultKind] {
        match self {
            // No kick reaches a node that is cut off: only the end of its lease ends a session.
            Self::LeaseNeverEnds => &[NodeFaultKind::Isolate],
            _ => &[],
        }
    }

    /// One of its invariants that was broken, and how.
    pub(super) fn found(self, report: &Report) -> Option<String> {
        let mut violations = report.violations.iter();
        let found = violations.find(|it| self.breaks().contains(&it.invariant));
        found.map(ToString::to_string)
    }

    /// Its name on the command line.
    pub(super) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// An honest store with this bug.
    pub(super) fn into_store(self, store: &Store, number: u32) -> Store {
        if self == Self::LeaseNeverEnds {
            return planted_bugs::into_store(StoreBug::RenewalErrorIsSuccess, store, number);
        }
        let records = BuggyAccountRecords {
            inner: store.records(),
            bug: self,
            written: Arc::default(),
            early: Arc::default(),
        };
        Store::new(store.lock(), records.into_records())
    }
}

/// What a node remembers of records.
type RememberedRecords = Arc<Mutex<HashMap<RecordKey, Entry>>>;

#[derive(Clone, Debug)]
struct BuggyAccountRecords {
    inner: Arc<dyn Records>,
    bug: NodeBug,
    /// The last value that this node wrote, by key.
    written: RememberedRecords,
    /// Values that it has confirmed and not written yet, by key.
    early: RememberedRecords,
}

impl BuggyAccountRecords {
    /// Writes whatever is there.
    async fn force(&self, key: &RecordKey, value: &[u8]) -> Result<Written> {
        loop {
            let there = self.inner.get(key).await?;
            let expect = there.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            if let stored @ Written::Stored(_) = self.inner.put(key, value, expect).await? {
                return Ok(stored);
            }
        }
    }

    fn write_later(&self, key: &RecordKey, value: &[u8]) -> Written {
        let version = Version::new(u64::MAX);
        let entry = Entry::new(version, value.to_vec(), None);
        locked(&self.early).insert(key.clone(), entry);
        let (mine, key, value) = (self.clone(), key.clone(), value.to_vec());
        tokio::spawn(async move {
            SystemClock.sleep(EARLY).await;
            // A store that is away makes it later still.
            while mine.force(&key, &value).await.is_err() {
                SystemClock.sleep(EARLY).await;
            }
            locked(&mine.early).remove(&key);
        });
        Written::Stored(version)
    }
}

#[async_trait]
impl RecordsLayer for BuggyAccountRecords {
    fn below(&self) -> &Arc<dyn Records> {
        &self.inner
    }

    async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            inner: self.inner.reopen().await?,
            ..self.clone()
        })
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        if !key.as_str().starts_with(ACCOUNT_PREFIX) {
            return self.inner.get(key).await;
        }
        let remembered = match self.bug {
            NodeBug::ConfirmsBeforeTheWrite => locked(&self.early).get(key).cloned(),
            NodeBug::TrustsItsMemory => locked(&self.written).get(key).cloned(),
            NodeBug::LosesSight if fastrand::u32(..6) == 0 => return Ok(None),
            _ => None,
        };
        match remembered {
            Some(entry) => Ok(Some(entry)),
            None => self.inner.get(key).await,
        }
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        if !key.as_str().starts_with(ACCOUNT_PREFIX) {
            return self.inner.put(key, value, expect).await;
        }
        let written = match self.bug {
            NodeBug::ConfirmsBeforeTheWrite => self.write_later(key, value),
            NodeBug::TrustsItsMemory | NodeBug::LosesSight => self.force(key, value).await?,
            _ => self.inner.put(key, value, expect).await?,
        };
        if let Written::Stored(version) = written {
            let entry = Entry::new(version, value.to_vec(), None);
            locked(&self.written).insert(key.clone(), entry);
        }
        Ok(written)
    }
}

fn locked<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}
