//! Bugs of a quorum, each planted as a layer around the connections of a process to its members.
//!
//! A layer changes what the quorum hears from a member, or what a member hears, as if the quorum
//! had the bug.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use distlock::{
    Attempt, DistLock, Entry, Epoch, FencingToken, OwnerId, RecordKey, Records, Result,
    backend::{
        AcquireRequest, Contender, Grant, Lease, LossFeed, ReleaseOutcome, Renewal, Renewed,
    },
};
use distlock_conformance::{LockLayer, RecordsLayer};
use distlock_core::sync::Mutex;

use super::kinds::EngineBug;
use crate::simulation::world::World;

/// A bug in the quorum of one process, with what its layers know together.
#[derive(Clone)]
pub(in crate::simulation) struct MemberBug {
    bug: EngineBug,
    world: Arc<World>,
    known: Arc<Mutex<Known>>,
}

/// What the layers of one process know.
#[derive(Default)]
struct Known {
    /// The requests by the owners of their rounds.
    requests: BTreeMap<OwnerId, AcquireRequest>,
    /// The owner that all rounds of a call have.
    owners: BTreeMap<String, OwnerId>,
    /// The highest token of a busy answer to a round.
    busy: BTreeMap<OwnerId, FencingToken>,
    /// By member: the epoch of the latest grant.
    epochs: BTreeMap<usize, Epoch>,
    /// By member: the first marker, and the time at which it was read.
    markers: BTreeMap<usize, (Entry, Duration)>,
    /// By member: the step of the run in which the latest renewal was sent. A renewal of a lease
    /// reads the marker in the same step, and a raise does not.
    renewing: BTreeMap<usize, u64>,
    /// The members and steps of the renewals of leases.
    of_leases: BTreeSet<(usize, u64)>,
}

impl MemberBug {
    /// Returns the planted bug if it is one of the quorum.
    pub(in crate::simulation) fn of(world: &Arc<World>) -> Option<Self> {
        let bug = world.bug.filter(|bug| bug.is_in_the_quorum())?;
        Some(Self {
            bug,
            world: Arc::clone(world),
            known: Arc::default(),
        })
    }

    fn step(&self) -> u64 {
        self.world.trace.lock().steps()
    }

    /// Returns the owner under which a member gets the requests of a round.
    fn owner(&self, owner: OwnerId) -> OwnerId {
        let known = self.known.lock();
        match known.requests.get(&owner) {
            Some(request) if self.bug == EngineBug::OneOwnerForAllRounds => {
                known.owners[request.holder.as_str()]
            }
            _ => owner,
        }
    }

    /// Returns what the quorum hears as the marker of a member.
    fn changed_marker(
        &self,
        member: usize,
        read: Option<Entry>,
        in_renewal: bool,
    ) -> Option<Entry> {
        let now = self.world.now();
        let known = &mut *self.known.lock();
        if let Some(entry) = &read {
            let first = (entry.clone(), now);
            known.markers.entry(member).or_insert(first);
        }
        let (first, since) = known.markers.get(&member)?;
        match self.bug {
            EngineBug::MarkerAgeNotCompared => {
                let mut entry = read?;
                entry.age = Some(Duration::from_secs(3_600));
                Some(entry)
            }
            EngineBug::ReplacedMarkerRenewed if in_renewal => Some(first.clone()),
            EngineBug::MarkerIgnored => {
                let mut entry = read.unwrap_or_else(|| {
                    let mut first = first.clone();
                    first.store_time = first.store_time.map(|read| read + (now - *since));
                    first
                });
                let mut marker: serde_json::Value = serde_json::from_slice(&entry.value).ok()?;
                if let Some(epoch) = known.epochs.get(&member) {
                    marker["epoch"] = epoch.as_str().into();
                }
                marker["at_once"] = true.into();
                entry.value = serde_json::to_vec(&marker).ok()?;
                Some(entry)
            }
            _ => read,
        }
    }
}

/// Wraps the connection of a process to a member in layers with the bug.
pub(in crate::simulation) fn around_member(
    bug: &MemberBug,
    member: usize,
    lock: Arc<dyn DistLock>,
    records: Arc<dyn Records>,
) -> (Arc<dyn DistLock>, Arc<dyn Records>) {
    let lock = BuggyMember {
        bug: bug.clone(),
        member,
        inner: lock,
    };
    let records = BuggyMember {
        bug: bug.clone(),
        member,
        inner: records,
    };
    (lock.into_lock(), records.into_records())
}

/// The locks or the records of a member, with a bug.
#[derive(Clone)]
struct BuggyMember<T> {
    bug: MemberBug,
    member: usize,
    inner: T,
}

impl BuggyMember<Arc<dyn DistLock>> {
    /// Notes the request of a round, and returns the owner under which the member gets it.
    fn owner_of_round(&self, request: &AcquireRequest) -> OwnerId {
        {
            let mut known = self.bug.known.lock();
            known.requests.insert(request.owner, request.clone());
            let call = request.holder.as_str().to_owned();
            known.owners.entry(call).or_insert(request.owner);
        }
        self.bug.owner(request.owner)
    }

    /// Notes the answer to a round, and returns what the quorum hears.
    async fn changed_attempt(
        &self,
        request: &AcquireRequest,
        attempt: Attempt<Grant>,
    ) -> Attempt<Grant> {
        match attempt {
            Attempt::Acquired(grant) => {
                let epoch = grant.epoch.clone();
                self.bug.known.lock().epochs.insert(self.member, epoch);
                Attempt::Acquired(match self.bug.bug {
                    EngineBug::BusyTokenCounted => self.count_busy_token(request, grant).await,
                    _ => grant,
                })
            }
            Attempt::Busy(holder) => {
                if let Some(token) = holder.as_ref().and_then(|it| it.token) {
                    let mut known = self.bug.known.lock();
                    let highest = known.busy.entry(request.owner).or_insert(token);
                    *highest = token.max(*highest);
                }
                Attempt::Busy(holder)
            }
        }
    }

    /// Raises a grant to the token of a busy answer to the same round.
    async fn count_busy_token(&self, request: &AcquireRequest, mut grant: Grant) -> Grant {
        let busy = self.bug.known.lock().busy.get(&request.owner).copied();
        if let Some(token) = busy.filter(|token| *token > grant.token) {
            let lease = Lease::new(request.name.clone(), request.owner, None);
            let raise = Renewal::raising(request.ttl, token);
            if let Ok(Renewed::Extended { token, .. }) = self.inner.renew(&lease, &raise).await {
                grant.token = token;
            }
        }
        grant
    }
}

/// Returns the answer to a renewal that was a success.
fn confirmed(renewal: &Renewal, epoch: Epoch, token: FencingToken) -> Renewed {
    Renewed::Extended {
        valid_for: renewal.ttl.duration(),
        epoch,
        token,
        loss: LossFeed::silent(),
    }
}

#[async_trait]
impl LockLayer for BuggyMember<Arc<dyn DistLock>> {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.inner)
    }

    async fn reopen(&self) -> Result<Self> {
        let inner = self.inner.reopen().await?;
        Ok(Self {
            inner,
            ..self.clone()
        })
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let mut asked = request.clone();
        asked.owner = self.owner_of_round(request);
        let attempt = self.inner.try_acquire(&asked).await?;
        Ok(self.changed_attempt(request, attempt).await)
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        Ok(Box::new(BuggyMemberContender {
            inner: self.inner.contend(request).await?,
            member: self.clone(),
            request: request.clone(),
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let step = self.bug.step();
        self.bug.known.lock().renewing.insert(self.member, step);
        let mut asked = lease.clone();
        asked.owner = self.bug.owner(lease.owner);
        let answer = self.inner.renew(&asked, renewal).await?;
        let Renewed::NotHeld(reason) = answer else {
            return Ok(answer);
        };
        let (of_lease, epoch) = {
            let known = self.bug.known.lock();
            let of_lease = known.of_leases.contains(&(self.member, step));
            (of_lease, known.epochs.get(&self.member).cloned())
        };
        let changed = match (self.bug.bug, of_lease, renewal.token_floor) {
            (EngineBug::RaiseWithoutOwner, false, Some(floor)) => {
                epoch.map(|epoch| confirmed(renewal, epoch, floor))
            }
            _ => None,
        };
        Ok(changed.unwrap_or(Renewed::NotHeld(reason)))
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let mut asked = lease.clone();
        asked.owner = self.bug.owner(lease.owner);
        self.inner.release(&asked).await
    }
}

/// A waiter at a member, whose attempts are requests of rounds.
struct BuggyMemberContender {
    inner: Box<dyn Contender>,
    member: BuggyMember<Arc<dyn DistLock>>,
    request: AcquireRequest,
}

#[async_trait]
impl Contender for BuggyMemberContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        let mut request = self.request.clone();
        request.owner = owner;
        let owner = self.member.owner_of_round(&request);
        let attempt = self.inner.attempt_as(owner).await?;
        Ok(self.member.changed_attempt(&request, attempt).await)
    }

    fn is_first(&self) -> bool {
        self.inner.is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        self.inner.wait(at_most).await;
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        self.inner.leave().await
    }
}

#[async_trait]
impl RecordsLayer for BuggyMember<Arc<dyn Records>> {
    fn below(&self) -> &Arc<dyn Records> {
        &self.inner
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let step = self.bug.step();
        let in_renewal = {
            let mut known = self.bug.known.lock();
            let in_renewal = known.renewing.get(&self.member) == Some(&step);
            if in_renewal {
                known.of_leases.insert((self.member, step));
            }
            in_renewal
        };
        let read = self.inner.get(key).await?;
        Ok(self.bug.changed_marker(self.member, read, in_renewal))
    }
}

impl<T> fmt::Debug for BuggyMember<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuggyMember({:?})", self.bug.bug)
    }
}
