//! The leases that this process holds at the quorum, and their renewal.
//!
//! This module owns, for each lease, its token, its owner, and what each member may still do to it.
//! Invariants:
//!
//! - A member counts for a renewal only if it has confirmed a token of at least the lease's token
//!   under the lease's owner, and if its marker is still one of this quorum.
//! - A grant, a raise or a renewal with a shorter TTL whose answer was lost may still arrive at its
//!   member. So this member never counts for longer than that TTL, while the others do.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    AcquireRequest, Attempt, Error, FencingToken, Lease, LossFeed, LossReason, Moment, OwnerId,
    ReleaseOutcome, Renewal, Renewed, Result, Ttl, sync::Mutex,
};
use futures_util::future::join_all;
use tokio::sync::mpsc;

use crate::{admission, shared::Shared};

/// The leases of this process, by the owner of their round.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_owner: HashMap<OwnerId, Arc<Held>>,
    /// The owner of the round in which the owner of a request got the lock.
    by_request: HashMap<OwnerId, OwnerId>,
    /// The size of the table at which ended leases are removed from it.
    sweep_at: usize,
}

/// One lease.
#[derive(Debug)]
pub(crate) struct Held {
    /// The request of the round, with the owner of the round.
    request: AcquireRequest,
    asked_by: OwnerId,
    pub(crate) token: FencingToken,
    course: Arc<Course>,
    /// The longest TTL that the lease was asked for.
    longest: Mutex<Ttl>,
    /// The end of the lease at every member, if nobody renews it again.
    over: Mutex<Moment>,
}

/// What may still happen to a lease at its members. The round and the lease that it got share it.
#[derive(Debug)]
pub(crate) struct Course {
    /// Whether the lease is being released. A grant that comes afterwards is released, also one
    /// that answers the round.
    pub(crate) ending: AtomicBool,
    members: Vec<Mutex<Requests>>,
}

/// The requests to one member that set the end of the lease there.
#[derive(Debug, Default)]
struct Requests {
    /// Whether one of them has reached the member, or may have.
    reached: bool,
    /// The TTLs of those that may still arrive.
    in_flight: Vec<Duration>,
    /// The shortest TTL of those whose answer was lost.
    lost: Option<Duration>,
}

/// The answer of one member to a renewal.
enum Vote {
    Counts(Duration),
    Gone {
        reason: LossReason,
        /// Whether the member has a marker of this quorum; `false` also if that is not known.
        is_ours: bool,
    },
    Failed(Error),
}

impl Leases {
    pub(crate) fn insert(
        &self,
        shared: &Shared,
        request: AcquireRequest,
        asked_by: OwnerId,
        token: FencingToken,
        course: Arc<Course>,
    ) {
        let now = shared.clock.now();
        let owner = request.owner;
        let held = Arc::new(Held {
            longest: Mutex::new(request.ttl),
            over: Mutex::new(now + request.ttl.duration() * 2),
            request,
            asked_by,
            token,
            course,
        });
        let mut table = self.held.lock();
        // A guard whose lease was lost is not released by anybody, so ended leases are removed
        // here, each time the table has doubled.
        if table.by_owner.len() >= table.sweep_at.max(64) {
            table.by_owner.retain(|_, held| *held.over.lock() > now);
            let Table {
                by_owner,
                by_request,
                sweep_at,
            } = &mut *table;
            by_request.retain(|_, owner| by_owner.contains_key(owner));
            *sweep_at = by_owner.len() * 2;
        }
        table.by_owner.insert(owner, held);
        table.by_request.insert(asked_by, owner);
    }

    pub(crate) fn of(&self, owner: OwnerId) -> Option<Arc<Held>> {
        self.held.lock().by_owner.get(&owner).cloned()
    }

    /// The lease that the owner of this request got.
    pub(crate) fn asked_by(&self, request: &AcquireRequest) -> Option<Arc<Held>> {
        let table = self.held.lock();
        let owner = table.by_request.get(&request.owner)?;
        let held = table.by_owner.get(owner)?;
        let is_current = held.request.name == request.name && !held.course.is_ending();
        is_current.then(|| Arc::clone(held))
    }

    fn remove(&self, held: &Held) {
        let mut table = self.held.lock();
        table.by_owner.remove(&held.request.owner);
        // A later round of the same request may have taken the place.
        if table.by_request.get(&held.asked_by) == Some(&held.request.owner) {
            table.by_request.remove(&held.asked_by);
        }
    }
}

impl Course {
    pub(crate) fn new(members: usize) -> Arc<Self> {
        Arc::new(Self {
            ending: AtomicBool::new(false),
            members: (0..members).map(|_| Mutex::default()).collect(),
        })
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Notes a request that is about to be sent, and that makes the lease end after this TTL.
    pub(crate) fn sent(&self, at: usize, ttl: Ttl) {
        self.members[at].lock().in_flight.push(ttl.duration());
    }

    /// Notes the answer to such a request. A request whose answer was lost may still arrive.
    pub(crate) fn answered<T>(&self, at: usize, ttl: Ttl, answer: &Result<T>) {
        let ttl = ttl.duration();
        let mut requests = self.members[at].lock();
        if let Some(first) = requests.in_flight.iter().position(|&it| it == ttl) {
            requests.in_flight.swap_remove(first);
        }
        match answer {
            Ok(_) => requests.reached = true,
            Err(error) if error.did_not_happen() => {}
            Err(_) => {
                requests.reached = true;
                let before = requests.lost;
                requests.lost = Some(before.map_or(ttl, |before| before.min(ttl)));
            }
        }
    }

    /// Whether the lease may be held at this member.
    fn may_be_held(&self, at: usize) -> bool {
        let requests = self.members[at].lock();
        requests.reached || !requests.in_flight.is_empty()
    }

    /// The longest time that a renewal may count for at this member.
    fn cap(&self, at: usize) -> Option<Duration> {
        let requests = self.members[at].lock();
        let in_flight = requests.in_flight.iter().copied();
        in_flight.chain(requests.lost).min()
    }
}

impl Held {
    pub(crate) fn owner(&self) -> OwnerId {
        self.request.owner
    }

    fn lease(&self) -> Lease {
        Lease::new(self.request.name.clone(), self.request.owner, None)
    }

    /// Extends the lease at all members. Returns when a majority has, or when none can.
    pub(crate) async fn renew(self: &Arc<Self>, shared: &Arc<Shared>, ttl: Ttl) -> Result<Renewed> {
        let ttl = shared.capped(ttl);
        let now = shared.clock.now();
        {
            let mut longest = self.longest.lock();
            *longest = (*longest).max(ttl);
        }
        {
            let mut over = self.over.lock();
            *over = (*over).max(now + ttl.duration() * 2);
        }
        let members = shared.members.all().len();
        let (sender, mut votes) = mpsc::unbounded_channel();
        for at in 0..members {
            let (held, shared) = (Arc::clone(self), Arc::clone(shared));
            let sender = sender.clone();
            (Arc::clone(&shared).spawn)(Box::pin(async move {
                let vote = held.vote(&shared, at, ttl).await;
                // Nobody listens after a renewal that failed.
                let _ = sender.send((at, vote));
            }));
        }
        drop(sender);
        let (mut counted, mut gone, mut failed) = (Vec::new(), Vec::new(), None);
        let (mut unknown, mut unmarked) = (false, false);
        while let Some((at, vote)) = votes.recv().await {
            match vote {
                Vote::Counts(valid_for) => counted.push(valid_for),
                Vote::Gone { reason, is_ours } => {
                    unmarked |= !is_ours;
                    gone.push((at, reason));
                }
                Vote::Failed(error) => {
                    unknown |= !error.did_not_happen();
                    failed = Some(error);
                }
            }
            if counted.len() >= shared.majority() {
                let shared_again = Arc::clone(shared);
                let task = Arc::clone(self).win_back(shared_again, ttl, gone, unmarked, votes);
                (shared.spawn)(Box::pin(task));
                return Ok(Renewed::Extended {
                    valid_for: counted.into_iter().min().unwrap_or_default(),
                    epoch: shared.epoch(),
                    token: self.token,
                    loss: LossFeed::silent(),
                });
            }
            if gone.len() > members - shared.majority() {
                let taken = |(_, reason): &(usize, LossReason)| *reason == LossReason::TakenOver;
                let reason = gone.iter().find(|it| taken(it)).unwrap_or(&gone[0]).1;
                // What is left at a minority helps nobody.
                self.end(shared);
                return Ok(Renewed::NotHeld(reason));
            }
        }
        Err(shared.no_majority(failed, unknown))
    }

    /// After a renewal that a majority has confirmed: takes the lock again at the members that have
    /// lost it and are free, so that losing another member later costs nothing.
    async fn win_back(
        self: Arc<Self>,
        shared: Arc<Shared>,
        ttl: Ttl,
        mut gone: Vec<(usize, LossReason)>,
        mut unmarked: bool,
        mut votes: mpsc::UnboundedReceiver<(usize, Vote)>,
    ) {
        while let Some((at, vote)) = votes.recv().await {
            if let Vote::Gone { reason, is_ours } = vote {
                unmarked |= !is_ours;
                gone.push((at, reason));
            }
        }
        // A member that came back empty has no marker, and counts for no renewal without one. An
        // acquire would have the marker written, but perhaps nobody acquires for a long time.
        if unmarked {
            admission::readmit(&shared);
        }
        let free = gone
            .into_iter()
            .filter(|(_, reason)| *reason != LossReason::TakenOver);
        join_all(free.map(|(at, _)| self.grant_again(&shared, at, ttl))).await;
    }

    /// Raises the token of a member that the round has not counted to that of the lease.
    pub(crate) async fn raise(&self, shared: &Arc<Shared>, at: usize) {
        // A shorter TTL could end the lease at the member before a renewal that was counted.
        let ttl = *self.longest.lock();
        let _ = self.vote(shared, at, ttl).await;
    }

    async fn vote(&self, shared: &Arc<Shared>, at: usize, ttl: Ttl) -> Vote {
        let lease = self.lease();
        let renewal = Renewal::raising(ttl, self.token);
        self.course.sent(at, ttl);
        let (renewed, ours) = tokio::join!(shared.renew(at, &lease, &renewal), shared.is_ours(at));
        self.course.answered(at, ttl, &renewed);
        let cap = self.course.cap(at);
        match (renewed, ours) {
            (Ok(Renewed::NotHeld(reason)), ours) => Vote::Gone {
                reason,
                is_ours: ours.unwrap_or(false),
            },
            (Err(error), _) | (_, Err(error)) => Vote::Failed(error),
            // Another quorum owns the member now, or the member has lost its records.
            (Ok(Renewed::Extended { .. }), Ok(false)) => Vote::Gone {
                reason: LossReason::HistoryChanged,
                is_ours: false,
            },
            (Ok(Renewed::Extended { valid_for, .. }), Ok(true)) => {
                Vote::Counts(cap.map_or(valid_for, |cap| valid_for.min(cap)))
            }
        }
    }

    /// Takes the lock again at one member. The member counts from the next renewal on, which raises
    /// its token.
    async fn grant_again(&self, shared: &Shared, at: usize, ttl: Ttl) {
        let mut request = self.request.clone();
        request.ttl = ttl;
        // A process that stood still for a while may come here after the end of the lease.
        let is_over = shared.clock.now() >= *self.over.lock();
        if is_over || self.course.is_ending() {
            return;
        }
        self.course.sent(at, ttl);
        let attempt = shared.try_acquire(at, &request, None).await;
        self.course.answered(at, ttl, &attempt);
        let may_hold = match &attempt {
            Ok(Attempt::Acquired(_)) => true,
            Ok(Attempt::Busy(_)) => false,
            Err(error) => !error.did_not_happen(),
        };
        // The release of this lease may have passed the member before the grant.
        if may_hold && self.course.is_ending() {
            let until = shared.clock.now() + ttl.duration();
            shared
                .release_until(at, &self.lease(), until, attempt.is_err())
                .await;
        }
    }

    /// Marks the lease as ended, and frees it in the background wherever it may be held.
    fn end(self: &Arc<Self>, shared: &Arc<Shared>) {
        self.course.ending.store(true, Ordering::SeqCst);
        shared.leases.remove(self);
        let members = 0..shared.members.all().len();
        for at in members.filter(|&at| self.course.may_be_held(at)) {
            let (held, shared) = (Arc::clone(self), Arc::clone(shared));
            (Arc::clone(&shared).spawn)(Box::pin(async move {
                let until = *held.over.lock();
                shared.release_until(at, &held.lease(), until, false).await;
            }));
        }
    }
}

/// Releases a lease wherever it may be held. Returns when a majority has answered.
pub(crate) async fn release(
    shared: &Arc<Shared>,
    lease: &Lease,
    held: Option<&Arc<Held>>,
) -> Result<ReleaseOutcome> {
    if let Some(held) = held {
        held.course.ending.store(true, Ordering::SeqCst);
    }
    let members = shared.members.all().len();
    let until = held.map_or_else(
        || shared.clock.now() + shared.agreement.max_lease,
        |held| *held.over.lock(),
    );
    let lease = Lease::new(lease.name.clone(), lease.owner, None);
    let (sender, mut answers) = mpsc::unbounded_channel();
    for at in 0..members {
        // A member that was away all the time has nothing to free, and may stay away for long.
        if held.is_some_and(|held| !held.course.may_be_held(at)) {
            let _ = sender.send(Ok(ReleaseOutcome::NotHeld));
            continue;
        }
        let (shared, lease, sender) = (Arc::clone(shared), lease.clone(), sender.clone());
        (Arc::clone(&shared).spawn)(Box::pin(async move {
            let answer = shared.release(at, &lease).await;
            let again = answer.is_err();
            let _ = sender.send(answer);
            if again {
                shared.release_until(at, &lease, until, false).await;
            }
        }));
    }
    drop(sender);
    let (mut released, mut not_held) = (0, 0);
    let mut failed = None;
    while let Some(answer) = answers.recv().await {
        match answer {
            Ok(ReleaseOutcome::Released { .. }) => released += 1,
            Ok(ReleaseOutcome::NotHeld) => not_held += 1,
            Err(error) => failed = Some(error),
        }
        // A minority that still held the lock is what a forced release, or a loss, has left.
        let outcome = if released >= shared.majority() {
            ReleaseOutcome::Released {
                others_waiting: None,
            }
        } else if not_held > members - shared.majority() {
            ReleaseOutcome::NotHeld
        } else {
            continue;
        };
        if let Some(held) = held {
            shared.leases.remove(held);
        }
        return Ok(outcome);
    }
    // Some members may have released.
    Err(shared.no_majority(failed, true))
}

#[cfg(test)]
mod tests {
    use distlock_core::ErrorKind;

    use super::*;

    #[test]
    fn a_lease_may_be_held_where_a_request_has_arrived_or_may_have() {
        let ttl = Ttl::new(Duration::from_secs(10)).unwrap();
        let course = Course::new(4);
        let answers = [
            Ok(()),
            Err(Error::new(ErrorKind::OutcomeUnknown, "lost")),
            Err(Error::new(ErrorKind::Unavailable, "refused")),
        ];
        for (at, answer) in answers.iter().enumerate() {
            course.sent(at, ttl);
            assert!(course.may_be_held(at), "in flight at {at}");
            course.answered(at, ttl, answer);
        }
        let held: Vec<_> = (0..4).filter(|&at| course.may_be_held(at)).collect();
        assert_eq!(held, [0, 1]);
    }
}
