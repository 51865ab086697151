//! Bugs of a ring: in what a client or an administrator reads and writes as the view, and in the
//! requests to the ring.

use std::{
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use distlock::{
    DistLock, Entry, Error, ErrorKind, Expect, RecordKey, Records, Result, Written,
    backend::{Lease, Renewal, Renewed},
};
use distlock_conformance::{LockLayer, RecordsLayer};
use distlock_core::sync::Mutex;
use serde_json::{Value, json};

use super::kinds::EngineBug;
use crate::simulation::{executor::Owner, network::SimulatedConnection, world::World};

/// Wraps the records of the ring store in a layer with the bug, if it is one of the view.
pub(in crate::simulation) fn around_view(
    world: &Arc<World>,
    owner: Owner,
    records: Arc<dyn Records>,
) -> Arc<dyn Records> {
    match world.bug.filter(|bug| bug.is_in_the_ring()) {
        Some(bug) => BuggyView {
            bug,
            world: Arc::clone(world),
            is_client: owner != Owner::Course,
            known: Arc::default(),
            inner: records,
        }
        .into_records(),
        None => records,
    }
}

/// The records of the ring store, with a bug.
#[derive(Clone)]
struct BuggyView {
    bug: EngineBug,
    world: Arc<World>,
    /// Whether it is of a client. Most bugs are not in what an administrator reads.
    is_client: bool,
    known: Arc<Mutex<Known>>,
    inner: Arc<dyn Records>,
}

/// What was read.
#[derive(Default)]
struct Known {
    /// The last answer, without a bug, and when it came.
    last: Option<(Entry, Duration)>,
    /// The number of the last view, and when its last read was sent.
    number: u64,
    sent: Duration,
    /// When the last read of an earlier view was sent.
    before: Option<Duration>,
}

impl Known {
    /// Takes an answer.
    fn take(&mut self, view: &Value, entry: &Entry, sent: Duration, now: Duration) {
        let number = view["number"].as_u64().unwrap_or_default();
        if number > self.number {
            self.before = (self.number > 0).then_some(self.sent);
            self.number = number;
        }
        self.sent = sent;
        self.last = Some((entry.clone(), now));
    }
}

fn parsed(value: &[u8]) -> Value {
    serde_json::from_slice(value).unwrap_or_default()
}

fn written(view: &Value) -> Vec<u8> {
    view.to_string().into_bytes()
}

impl BuggyView {
    /// Reads the view. A client that uses a view for too long takes the last one for a fresh one
    /// if the ring store does not answer soon.
    async fn read(&self, key: &RecordKey) -> Result<Option<Entry>> {
        if self.bug != EngineBug::ViewUsedTooLong || !self.is_client {
            return self.inner.get(key).await;
        }
        let soon = self.world.setting.ring.as_ref().map(|it| it.validity / 6);
        let late = self.world.time.sleep(soon.unwrap_or_default());
        let read = tokio::select! {
            biased;
            read = self.inner.get(key) => read,
            () = late => Err(Error::new(ErrorKind::Unavailable, "no answer")),
        };
        let known = self.known.lock();
        match (read, &known.last) {
            (Err(_), Some((entry, at))) => {
                let passed = self.world.now() - *at;
                let mut entry = entry.clone();
                entry.age = entry.age.map(|age| age + passed);
                entry.store_time = entry.store_time.map(|read| read + passed);
                Ok(Some(entry))
            }
            (read, _) => read,
        }
    }
}

#[async_trait]
impl RecordsLayer for BuggyView {
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
        let sent = self.world.now();
        let Some(mut entry) = self.read(key).await? else {
            return Ok(None);
        };
        let now = self.world.now();
        let mut view = parsed(&entry.value);
        let mut known = self.known.lock();
        known.take(&view, &entry, sent, now);
        match self.bug {
            EngineBug::UnconfirmedViewCounts => view["confirmed"] = true.into(),
            EngineBug::NoQuarantine if self.is_client => view["pending"] = json!([]),
            EngineBug::TokenFloorIgnored if self.is_client => view["lead_us"] = 0.into(),
            EngineBug::QuarantineFromOwnRead if self.is_client => {
                let hour = Duration::from_secs(3_600);
                entry.age = Some(known.before.map_or(hour, |before| now - before));
            }
            _ => {}
        }
        entry.value = written(&view);
        Ok(Some(entry))
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let mut view = parsed(value);
        let last = {
            let known = self.known.lock();
            let last = known.last.as_ref();
            last.map(|(entry, _)| parsed(&entry.value))
        };
        match last {
            // A client confirms what the ring store has, and not what the bug makes of it.
            Some(last) if self.is_client => {
                view = last;
                view["confirmed"] = true.into();
            }
            Some(last) if self.bug == EngineBug::PendingForgotten => {
                if let Some(pending) = view["pending"].as_array_mut() {
                    pending.retain(|it| it["members"] == last["members"]);
                }
            }
            _ => return self.inner.put(key, value, expect).await,
        }
        self.inner.put(key, &written(&view), expect).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

impl fmt::Debug for BuggyView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuggyView({:?})", self.bug)
    }
}

/// The ring of one process, with a bug in how it sends requests to the members.
#[derive(Clone)]
pub(super) struct BuggyRing {
    pub(super) bug: EngineBug,
    pub(super) world: Arc<World>,
    pub(super) process: usize,
    pub(super) inner: Arc<dyn DistLock>,
}

impl BuggyRing {
    /// Connects to a member.
    fn member(&self, number: usize) -> Arc<dyn DistLock> {
        let (world, owner) = (&self.world, Owner::Process(self.process));
        SimulatedConnection::new(world, owner, number, world.stores[number].lock()).into_lock()
    }

    /// Returns the member that `hash mod n` finds in the list that the process has read last.
    fn member_by_modulo(&self) -> Option<usize> {
        let mut hasher = DefaultHasher::new();
        self.world.names[0].as_str().hash(&mut hasher);
        let judge = self.world.judge.lock();
        let members = judge.processes[self.process].members();
        let count = u64::try_from(members.len()).ok()?;
        let at = usize::try_from(hasher.finish().checked_rem(count)?).ok()?;
        members.get(at).copied()
    }
}

#[async_trait]
impl LockLayer for BuggyRing {
    fn below(&self) -> Arc<dyn DistLock> {
        let by_modulo = match self.bug {
            EngineBug::ModuloAlone => self.member_by_modulo(),
            _ => None,
        };
        match by_modulo {
            Some(number) => self.member(number),
            None => Arc::clone(&self.inner),
        }
    }

    async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            inner: self.inner.reopen().await?,
            ..self.clone()
        })
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let renewed = self.below().renew(lease, renewal).await;
        if self.bug != EngineBug::RenewalFollowsItsName
            || matches!(renewed, Ok(Renewed::Extended { .. }))
        {
            return renewed;
        }
        let members = self.world.setting.ring.as_ref().map_or(0, |it| it.members);
        for number in 0..members {
            let followed = self.member(number).renew(lease, renewal).await;
            if matches!(followed, Ok(Renewed::Extended { .. })) {
                return followed;
            }
        }
        renewed
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

impl fmt::Debug for BuggyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuggyRing({:?})", self.bug)
    }
}
