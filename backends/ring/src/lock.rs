//! [`DistLock`] over the members of a ring.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::{MemberHandle, OpenFlag};
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, Error, ErrorKind, FencingToken,
    Forced, Grant, HandOver, Health, Lease, LockInfo, LockName, LossReason, ReleaseOutcome,
    Renewal, Renewed, Result,
};
use futures_util::future::join_all;

use crate::{
    leases::Held,
    shared::{NAME, Shared, Way, all_open},
    view::Seen,
    wait::RingContender,
};

/// A [`DistLock`] whose names are spread over several stores.
pub struct RingLock {
    shared: Arc<Shared>,
    open: OpenFlag,
}

impl RingLock {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            open: OpenFlag::default(),
        }
    }

    fn shared(&self) -> Result<&Arc<Shared>> {
        self.open.check(NAME)?;
        Ok(&self.shared)
    }
}

/// The weakest capabilities of the members, and the longest lease of the ring.
pub(crate) fn capabilities(mut weakest: Capabilities, max_lease: Duration) -> Capabilities {
    let longest = weakest.max_lease.map_or(max_lease, |it| it.min(max_lease));
    weakest.default_ttl = weakest.default_ttl.min(longest);
    weakest.max_lease = Some(longest);
    weakest
}

/// The members at which a name may be held: its earlier owners while it is in quarantine, and its
/// owner.
fn places(shared: &Shared, seen: &Seen, name: &LockName) -> Result<Vec<usize>> {
    let now = shared.clock.now();
    let mut members = seen.earlier_owners(name, now);
    members.push(seen.standing(name, now).owner);
    members
        .into_iter()
        .map(|member| shared.place_of(member))
        .collect()
}

#[async_trait]
impl DistLock for RingLock {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        let shared = self.shared()?;
        let members = shared.members.reopen(1).await?;
        all_open(&members, &*shared.clock).await;
        let ring_store = MemberHandle {
            lock: shared.ring_store.lock.reopen().await?,
            records: shared.ring_store.records.reopen().await?,
        };
        let reopened = Shared {
            ring_store,
            members,
            views: Arc::clone(&shared.views),
            leases: Arc::clone(&shared.leases),
            capabilities: shared.capabilities.clone(),
            clock: Arc::clone(&shared.clock),
            spawner: shared.spawner.clone(),
        };
        Ok(Arc::new(Self::new(reopened.start())))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let shared = self.shared()?;
        let route = shared.route(&request.name)?;
        shared.acquire(route, request, None).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        let shared = Arc::clone(self.shared()?);
        let contender = RingContender::join(shared, self.open.clone(), request.clone());
        Ok(Box::new(contender.await?))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let shared = self.shared()?;
        renewal.check_floor(&shared.capabilities)?;
        let held = shared.leases.of(lease.owner);
        let way = shared.way_of_request(&lease.name)?;
        let now = shared.clock.now();
        let route = match (way, held) {
            (Way::Open(route), None) => route,
            (Way::Open(route), Some(held)) if held.at == route.at => route,
            // The name has moved. Its new owner may grant it when this lease has ended, so it is
            // renewed no more. The holder keeps it nearly to its end: what it does for a lease that
            // cannot be renewed, as `distlock run` in the last quarter, comes before the loss.
            (Way::Open(_) | Way::Moving(_), Some(held))
                if held.until.since(now) > renewal.ttl.duration() / 5 =>
            {
                let problem = format!(
                    "the name has moved to another member of the ring, and the lease ends in \
                     {:.1} s",
                    held.until.since(now).as_secs_f64()
                );
                let error = Error::new(ErrorKind::Unavailable, problem);
                return Err(error.on(NAME).about(&lease.name));
            }
            (Way::Open(_) | Way::Moving(_), _) => return Ok(Renewed::NotHeld(LossReason::Moved)),
        };
        let mut renewal = *renewal;
        renewal.ttl = route.capped(renewal.ttl);
        let until = now + renewal.ttl.duration();
        let renewed = shared.renew(route, lease, &renewal).await?;
        if let Renewed::Extended { .. } = renewed {
            let held = Held {
                at: route.at,
                until,
            };
            shared.leases.note(lease.owner, held, now);
        }
        Ok(renewed)
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let shared = self.shared()?;
        let at = match shared.leases.of(lease.owner) {
            Some(held) => held.at,
            // A lease of another process. It is at an earlier owner, or at the present one.
            None => return release_anywhere(shared, lease).await,
        };
        let released = shared
            .ask(at, async |to| to.lock.release(lease).await)
            .await?;
        shared.leases.remove(lease.owner);
        Ok(released)
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        let shared = self.shared()?;
        let held = shared.leases.of(lease.owner);
        let route = match shared.way_of_request(&lease.name)? {
            Way::Open(route) if held.is_none_or(|held| held.at == route.at) => route,
            // The next owner must wait until the name is free at its new member.
            Way::Open(_) | Way::Moving(_) => return Ok(HandOver::Unsupported),
        };
        let next = shared.noted(route, next);
        let handed = shared
            .ask(route.at, async |to| to.lock.hand_over(lease, &next).await)
            .await?;
        Ok(match handed {
            HandOver::Done(grant) => {
                shared.leases.remove(lease.owner);
                HandOver::Done(shared.raised(route, &next, grant).await?)
            }
            HandOver::NotHeld(reason) => {
                shared.leases.remove(next.owner);
                HandOver::NotHeld(shared.reason(reason))
            }
            HandOver::Unsupported => {
                shared.leases.remove(next.owner);
                HandOver::Unsupported
            }
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let shared = self.shared()?;
        // A caller takes a lock for free that is not held, and an old view names an earlier owner.
        let seen = shared.views.usable(shared.clock.now())?;
        let mut told = None;
        for at in places(shared, &seen, name)? {
            let mut info = shared
                .ask(at, async |to| to.lock.inspect(name).await)
                .await?;
            info.epoch = Some(seen.view.epoch());
            let is_held = info.held.is_some();
            told = Some(info);
            if is_held {
                break;
            }
        }
        told.ok_or_else(crate::reads::no_view)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let shared = self.shared()?;
        let now = shared.clock.now();
        let seen = shared.views.usable(now)?;
        let pending = seen.view.pending.iter();
        let live = pending.filter(|pending| !seen.left(pending, now).is_zero());
        let mut members: Vec<&String> = seen.view.members.iter().collect();
        let active = members.len();
        members.extend(live.flat_map(|pending| &pending.members));
        let mut asked = Vec::new();
        for (at, member) in members.into_iter().enumerate() {
            let place = match shared.place_of(member) {
                Ok(place) => place,
                // It has left the ring, and this client does not know it.
                Err(_) if at >= active => continue,
                Err(error) => return Err(error),
            };
            if !asked.iter().any(|(other, _)| *other == place) {
                asked.push((place, at < active));
            }
        }
        let pages = asked.into_iter().map(|(at, is_active)| async move {
            let page = shared
                .ask(at, async |to| to.lock.list(prefix, after, limit).await)
                .await;
            // A member that has left may be gone.
            let page = if is_active {
                page
            } else {
                Ok(page.unwrap_or_default())
            };
            page.map(|page| (at, page))
        });
        let mut by_name: BTreeMap<LockName, LockInfo> = BTreeMap::new();
        for page in join_all(pages).await {
            let (at, page) = page?;
            for mut info in page {
                info.epoch = Some(seen.view.epoch());
                // An entry that is not a name's owner's is a lease that may still run, or the rest
                // of one that a stopped client has asked for.
                let is_owners = shared.member(at).name() == seen.standing(&info.name, now).owner;
                if is_owners || !by_name.contains_key(&info.name) {
                    by_name.insert(info.name.clone(), info);
                }
            }
        }
        // Each page is full or complete up to its end, so the first names of all are complete.
        Ok(by_name.into_values().take(limit as usize).collect())
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let shared = self.shared()?;
        let seen = shared.views.usable(shared.clock.now())?;
        let mut outcome = Forced::NotHeld;
        for at in places(shared, &seen, name)? {
            let forced = shared
                .ask(at, async |to| to.lock.force_release(name, expected).await)
                .await?;
            match forced {
                Forced::Released => return Ok(Forced::Released),
                Forced::OtherToken(token) => outcome = Forced::OtherToken(token),
                Forced::NotHeld => {}
            }
        }
        Ok(outcome)
    }

    async fn health(&self) -> Result<Health> {
        crate::doctor::health(self.shared()?).await
    }

    async fn close(&self) {
        if self.open.close() {
            self.shared.close().await;
        }
    }
}

async fn release_anywhere(shared: &Shared, lease: &Lease) -> Result<ReleaseOutcome> {
    // An old view, too: a lease that it does not find ends by itself.
    let seen = shared.views.last()?;
    for at in places(shared, &seen, &lease.name)? {
        let released = shared
            .ask(at, async |to| to.lock.release(lease).await)
            .await?;
        if let ReleaseOutcome::Released { .. } = released {
            return Ok(released);
        }
    }
    Ok(ReleaseOutcome::NotHeld)
}

impl fmt::Debug for RingLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingLock")
            .field("members", &self.shared.members.all())
            .finish_non_exhaustive()
    }
}
