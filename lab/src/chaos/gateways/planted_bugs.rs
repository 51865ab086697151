//! Bugs that are planted in a node, to show that the checker finds them in running processes.
//!
//! Each bug is a layer around the node's honest store, so the gateway needs no switch for it. Such
//! a layer makes the node behave like a careless implementation of the flow.
//!
//! The kinds of faults of gateways, and the stores to which each applies.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use clap::ValueEnum;
use distlock::{
    Clock as _, Entry, Expect, RecordKey, Records, Result, Store, SystemClock, Version, Written,
};
use distlock_checker::{
    Invariant::{self, *},
    Report,
};
use distlock_conformance::RecordsLayer;
use distlock_core::sync::Mutex;
use serde::{Deserialize, Serialize};

use crate::chaos::{
    planted_bugs::{self, StoreBug},
    stores::StoreKind,
};

/// One bug.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NodeBug {
    /// A login is confirmed before its record is written
    ConfirmsBeforeTheWrite,
    /// A node trusts its own last write to an account's record, and overwrites the writes of other
    /// nodes
    TrustsItsMemory,
    /// A node now and then does not find an account's record, and writes a new one
    LosesSight,
    /// A failed renewal of a lease is taken for a success
    LeaseNeverEnds,
}

/// Time between the early confirmation and the write.
const CONFIRMATION_LEAD: Duration = Duration::from_millis(400);
/// Prefix of the keys of account records.
const ACCOUNT_PREFIX: &str = "sess/";

impl NodeBug {
    /// Returns the invariants that the bug may break; the checker must find one of them broken.
    const fn may_break(self) -> &'static [Invariant] {
        match self {
            Self::ConfirmsBeforeTheWrite => &[I1, I7],
            Self::TrustsItsMemory => &[I1, I2, I3, I4, I5, I11],
            Self::LosesSight => &[I1, I2, I3, I4, I7, I11],
            Self::LeaseNeverEnds => &[I1, I5, I11],
        }
    }

    /// Returns the faults that show the bug soon. An empty list means that all faults are used.
    pub(super) const fn faults(self) -> &'static [NodeFaultKind] {
        match self {
            // No kick reaches an isolated node, so only the end of its lease ends a session.
            Self::LeaseNeverEnds => &[NodeFaultKind::Isolate],
            _ => &[],
        }
    }

    /// Returns one violation that the bug explains, as text.
    pub(super) fn find_violation(self, report: &Report) -> Option<String> {
        let mut violations = report.violations.iter();
        let found = violations.find(|it| self.may_break().contains(&it.invariant));
        found.map(ToString::to_string)
    }

    /// Returns the name of the bug on the command line.
    pub(super) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Wraps an honest store in a layer with this bug.
    pub(super) fn wrap_store(self, store: &Store, number: u32) -> Store {
        if self == Self::LeaseNeverEnds {
            return planted_bugs::wrap_store(StoreBug::RenewalErrorIsSuccess, store, number);
        }
        let records = BuggyAccountRecords {
            inner: store.records(),
            bug: self,
            written: Arc::default(),
            unwritten: Arc::default(),
        };
        Store::new(store.backend(), records.into_records())
    }
}

/// The records that a node remembers, by key.
type RememberedRecords = Arc<Mutex<HashMap<RecordKey, Entry>>>;

/// The records of the store; the records of accounts have the bug.
#[derive(Clone, Debug)]
struct BuggyAccountRecords {
    inner: Arc<dyn Records>,
    bug: NodeBug,
    /// The last value that this node wrote.
    written: RememberedRecords,
    /// Values that this node has confirmed but not written yet.
    unwritten: RememberedRecords,
}

impl BuggyAccountRecords {
    /// Writes the value without a check of the record's version.
    async fn overwrite(&self, key: &RecordKey, value: &[u8]) -> Result<Written> {
        loop {
            let there = self.inner.get(key).await?;
            let expect = there.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            if let stored @ Written::Stored(_) = self.inner.put(key, value, expect).await? {
                return Ok(stored);
            }
        }
    }

    /// Confirms a write at once, and starts a task that writes later.
    fn confirm_and_write_later(&self, key: &RecordKey, value: &[u8]) -> Written {
        let version = Version::new(u64::MAX);
        let entry = Entry::new(version, value.to_vec(), None);
        self.unwritten.lock().insert(key.clone(), entry);
        let (mine, key, value) = (self.clone(), key.clone(), value.to_vec());
        tokio::spawn(async move {
            SystemClock.sleep(CONFIRMATION_LEAD).await;
            // If the store is down, the write happens even later.
            while mine.overwrite(&key, &value).await.is_err() {
                SystemClock.sleep(CONFIRMATION_LEAD).await;
            }
            mine.unwritten.lock().remove(&key);
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
            NodeBug::ConfirmsBeforeTheWrite => self.unwritten.lock().get(key).cloned(),
            NodeBug::TrustsItsMemory => self.written.lock().get(key).cloned(),
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
            NodeBug::ConfirmsBeforeTheWrite => self.confirm_and_write_later(key, value),
            NodeBug::TrustsItsMemory | NodeBug::LosesSight => self.overwrite(key, value).await?,
            _ => self.inner.put(key, value, expect).await?,
        };
        if let Written::Stored(version) = written {
            let entry = Entry::new(version, value.to_vec(), None);
            self.written.lock().insert(key.clone(), entry);
        }
        Ok(written)
    }
}

/// One kind of fault in gateways.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NodeFaultKind {
    /// SIGSTOP of a node, and SIGCONT later
    StopNode,
    /// SIGKILL of a node, and a restart under the same name
    KillNode,
    /// Connections of other nodes to a node are refused
    CutPeers,
    /// Requests of other nodes to a node are lost
    BlackHolePeers,
    /// Requests of other nodes to a node arrive late
    SlowPeers,
    /// A node answers another node, and the answer is lost
    LosePeerAnswer,
    /// A node's connections to the store are reset, and new ones are refused
    CutStore,
    /// No byte between a node and the store arrives
    BlackHoleStore,
    /// A node's requests to the store, and the answers, arrive late
    SlowStore,
    /// One request of a node happens, and its answer is lost
    LoseStoreAnswer,
    /// A node reaches neither the store nor other nodes, only its clients
    Isolate,
    /// SIGSTOP of a server of the store
    StopServer,
    /// SIGKILL of a server of the store, and a restart on the data that it kept
    KillServer,
    /// Another program keeps the database file locked
    LockFile,
}

impl NodeFaultKind {
    /// Returns the name of the kind on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Tells whether this kind of fault applies to nodes over this kind of store.
    pub(crate) const fn applies_to(self, store: StoreKind) -> bool {
        match self {
            Self::StopNode
            | Self::KillNode
            | Self::CutPeers
            | Self::BlackHolePeers
            | Self::SlowPeers
            | Self::LosePeerAnswer => true,
            Self::LockFile => matches!(store, StoreKind::Sqlite),
            _ => !matches!(store, StoreKind::Memory | StoreKind::Sqlite),
        }
    }
}
