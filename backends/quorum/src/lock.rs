//! [`DistLock`] over a majority of stores.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use async_trait::async_trait;
use distlock_backend_kit::{Members, OpenFlag};
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, Error, ErrorKind, Fairness,
    FencingToken, Forced, Grant, HandOver, Health, HolderInfo, Lease, LockInfo, LockName,
    LossReason, OwnerId, ReleaseOutcome, Renewal, Renewed, Result, TicketStep, at_most,
};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::{
    leases::{self, Course},
    reads::MarkerReads,
    round::Outcome,
    run,
    shared::{LATE, NAME, Shared},
    wait::{Place, QuorumContender},
};

/// A [`DistLock`] on a majority of stores.
pub struct QuorumLock {
    shared: Arc<Shared>,
    open: OpenFlag,
}

impl QuorumLock {
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

/// The weakest capabilities of the members, and what a quorum cannot do.
pub(crate) fn capabilities(members: &Members, max_lease: Duration) -> Capabilities {
    let mut all = members.weakest_capabilities(NAME);
    all.default_ttl = all.default_ttl.min(max_lease);
    all.fairness = Fairness::None;
    all.max_lease = Some(max_lease);
    // The nonce of a ticket that reached three members can be lost with two of them.
    all.tickets = false;
    all.hand_over = false;
    all.store_queue = false;
    all.tells_force_release = false;
    all
}

/// The time for which one attempt makes further rounds, if nobody gets a majority. What the rounds
/// of others have left at the members is released meanwhile.
const SPLIT: Duration = Duration::from_secs(1);

/// The longest pause after the first round of one attempt, and the longest after any round.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(100));

/// Tries to take the lock, or extends the lease that the request's owner has already. The rounds
/// ask the member of the place with that place.
pub(crate) async fn attempt(
    shared: &Arc<Shared>,
    request: &AcquireRequest,
    place: Option<&Place>,
) -> Result<Attempt<Grant>> {
    let ttl = shared.capped(request.ttl);
    if let Some(held) = shared.leases.asked_by(request) {
        let sent = shared.clock.now();
        if let Renewed::Extended { valid_for, .. } = held.renew(shared, ttl).await? {
            let mut grant = Grant::new(held.token, shared.epoch(), valid_for);
            grant.owner = Some(held.owner());
            grant.counts_from = Some(sent);
            return Ok(Attempt::Acquired(grant));
        }
    }
    let mut first = None;
    let until = shared.clock.now() + SPLIT;
    let (mut pause, longest) = PAUSES;
    loop {
        let mut asked = request.clone();
        // What an earlier round left at a member must count as busy: its late release would free
        // what this round holds under the same owner.
        asked.owner = OwnerId::new();
        asked.ttl = ttl;
        let course = Course::new(shared.members.all().len());
        let round = run::run(shared, asked.clone(), first, place.cloned(), &course);
        match round.await {
            Outcome::Held {
                token,
                from,
                valid_for,
            } => {
                let mut grant = Grant::new(token, shared.epoch(), valid_for);
                grant.owner = Some(asked.owner);
                grant.counts_from = Some(from);
                let asked_by = request.owner;
                shared.leases.insert(shared, asked, asked_by, token, course);
                return Ok(Attempt::Acquired(grant));
            }
            // Several rounds that ask at the same time can divide the members among them. In each
            // second round, all of them ask the same member first, and only one gets it. The others
            // ask all members again a little later.
            Outcome::Busy { split: true, .. } if shared.clock.now() < until => {
                first = match first {
                    None => by_rendezvous(shared, &request.name).into_iter().next(),
                    Some(_) => None,
                };
                let least = if first.is_some() { 0.0 } else { 0.5 };
                let part = least + (1.0 - least) * fastrand::f64();
                shared.clock.sleep(pause.mul_f64(part)).await;
                pause = (pause * 2).min(longest);
            }
            Outcome::Busy { holder, .. } => return Ok(Attempt::Busy(holder)),
            Outcome::Failed(error) => return Err(error.on(NAME)),
            Outcome::ClocksApart { behind, ahead, by } => {
                let problem = shared.clocks_apart(behind, ahead, by);
                return Err(Error::new(ErrorKind::Unavailable, problem).on(NAME));
            }
            Outcome::Abandoned => break,
        }
    }
    Err(Error::new(ErrorKind::Internal, "the round was given up"))
}

/// The members that answer, in the order in which the clients of this name prefer them.
pub(crate) fn by_rendezvous(shared: &Shared, name: &LockName) -> Vec<usize> {
    let weight = |at: usize| {
        let text = format!("{}\n{}", shared.member(at).name(), name.as_str());
        Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes())
    };
    let members = 0..shared.members.all().len();
    let mut order: Vec<_> = members.filter(|&at| shared.member(at).answers()).collect();
    order.sort_by_key(|&at| weight(at));
    order
}

/// The error for a ticket. A nonce that reached three members can be lost with two of them.
fn no_tickets() -> Error {
    Error::new(ErrorKind::Unsupported, "a quorum has no tickets").on(NAME)
}

/// The state of a lock, from what the members say about it. A page of a list leaves out the members
/// where the lock is free, so `answered` is the number of members that answered.
fn merged(shared: &Shared, name: &LockName, told: &[LockInfo], answered: usize) -> LockInfo {
    let held: Vec<&HolderInfo> = told.iter().filter_map(|info| info.held.as_ref()).collect();
    let tokens: Vec<_> = held.iter().filter_map(|holder| holder.token).collect();
    let token = shared.of_lease(&tokens, answered);
    let holder = held
        .into_iter()
        .find(|holder| token.is_some() && holder.token == token)
        .cloned();
    let mut info = match holder {
        Some(holder) => LockInfo::held(name.clone(), holder),
        None => {
            let last: Vec<_> = told.iter().filter_map(|info| info.last_token).collect();
            let mut free = LockInfo::free(name.clone());
            free.last_token = shared.last_of(&last);
            free
        }
    };
    info.epoch = Some(shared.epoch());
    info
}

#[async_trait]
impl DistLock for QuorumLock {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        let shared = self.shared()?;
        let members = shared.members.reopen(shared.majority()).await?;
        Ok(Arc::new(Self::new(Arc::new(Shared {
            reads: MarkerReads::of(&members),
            members,
            agreement: shared.agreement.clone(),
            digest: shared.digest,
            quorum: shared.quorum,
            capabilities: shared.capabilities.clone(),
            clock: Arc::clone(&shared.clock),
            leases: Arc::clone(&shared.leases),
            admitting: AtomicBool::new(false),
            spawn: Arc::clone(&shared.spawn),
        }))))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        attempt(self.shared()?, request, None).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        let shared = Arc::clone(self.shared()?);
        Ok(Box::new(
            QuorumContender::join(shared, self.open.clone(), request.clone()).await,
        ))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let shared = self.shared()?;
        renewal.check_floor(&shared.capabilities)?;
        if renewal.ticket != TicketStep::Keep || lease.nonce.is_some() {
            return Err(no_tickets());
        }
        match shared.leases.of(lease.owner) {
            Some(held) if lease.token.is_none_or(|token| token == held.token) => {
                held.renew(shared, renewal.ttl).await
            }
            // This process holds no such lease, so it has ended.
            Some(_) | None => Ok(Renewed::NotHeld(LossReason::Removed)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let shared = self.shared()?;
        if lease.nonce.is_some() {
            return Err(no_tickets());
        }
        let held = shared.leases.of(lease.owner);
        leases::release(shared, lease, held.as_ref()).await
    }

    async fn hand_over(&self, _: &Lease, _: &AcquireRequest) -> Result<HandOver> {
        self.shared()?;
        Ok(HandOver::Unsupported)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let shared = self.shared()?;
        let asked = (0..shared.members.all().len()).map(|at| shared.inspect(at, name));
        let told = shared.of_majority(asked).await?;
        Ok(merged(shared, name, &told, told.len()))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let shared = self.shared()?;
        let mut found: Vec<LockInfo> = Vec::new();
        let mut after = after.cloned();
        loop {
            let asked = (0..shared.members.all().len())
                .map(|at| shared.list(at, prefix, after.as_ref(), limit));
            let pages = shared.of_majority(asked).await?;
            let answered = pages.len();
            // A page that is full may go on after its last name, so names after that are left to
            // the next page.
            let full = |page: &Vec<LockInfo>| page.len() >= limit as usize;
            let end = pages
                .iter()
                .filter(|page| full(page))
                .filter_map(|page| page.last().map(|info| info.name.clone()))
                .min();
            let mut by_name: BTreeMap<LockName, Vec<LockInfo>> = BTreeMap::new();
            for info in pages.into_iter().flatten() {
                if end.as_ref().is_none_or(|end| info.name <= *end) {
                    by_name.entry(info.name.clone()).or_default().push(info);
                }
            }
            for (name, told) in by_name {
                let info = merged(shared, &name, &told, answered);
                if info.held.is_some() {
                    found.push(info);
                    if found.len() == limit as usize {
                        return Ok(found);
                    }
                }
            }
            match end {
                Some(end) => after = Some(end),
                None => return Ok(found),
            }
        }
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let shared = self.shared()?;
        let asked = (0..shared.members.all().len()).map(|at| async move {
            let told = shared.inspect(at, name).await;
            told.map(|info| (at, info))
        });
        let told = shared.of_majority(asked).await?;
        let held = told
            .iter()
            .filter_map(|(at, info)| Some((*at, info.held.as_ref()?.token?)));
        let tokens: Vec<_> = held.clone().map(|(_, token)| token).collect();
        match shared.of_lease(&tokens, told.len()) {
            None => return Ok(Forced::NotHeld),
            Some(token) if token != expected => return Ok(Forced::OtherToken(token)),
            Some(_) => {}
        }
        // A member that granted late, or that the holder has won back, has a higher token than the
        // lease. So each member is asked to free what it showed; with the token of the lease, such
        // members would keep the lock, and they can be a majority.
        let freeing = held.map(|(at, token)| {
            let one = shared.force_release(at, name, token);
            at_most(&*shared.clock, LATE, one)
        });
        let answers = join_all(freeing).await;
        let freed = answers
            .iter()
            .filter(|it| matches!(it, Some(Ok(Forced::Released))))
            .count();
        tracing::info!(
            lock = ?name,
            members = freed,
            "the lock was force-released at this number of members"
        );
        if freed > 0 {
            return Ok(Forced::Released);
        }
        match answers.into_iter().flatten().find_map(Result::err) {
            Some(error) => Err(shared.no_majority(Some(error), true)),
            // The lock has changed in between.
            None => Ok(Forced::NotHeld),
        }
    }

    async fn health(&self) -> Result<Health> {
        let shared = self.shared()?;
        crate::doctor::health(shared).await
    }

    async fn close(&self) {
        if self.open.close() {
            self.shared.members.close().await;
        }
    }
}

impl fmt::Debug for QuorumLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumLock")
            .field("members", &self.shared.members.all())
            .finish_non_exhaustive()
    }
}
