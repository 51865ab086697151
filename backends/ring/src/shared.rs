//! What all handles on one opened ring use: its members, what is known of the view, its leases.
//!
//! This module sends single requests to members. Invariant: a grant or a renewal is sent only to
//! the owner of its name, by a view that may be used at that moment, while the name is not in
//! quarantine.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use distlock_backend_kit::{Member, MemberHandle, Members, Spawner};
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Clock, Contender, Epoch, Error, ErrorKind, FencingToken,
    Grant, Lease, LockName, LossFeed, LossReason, Renewal, Renewed, Result, Ttl, at_most,
};
use uuid::Uuid;

use crate::{
    leases::{Held, Leases},
    reads::{self, Views},
};

/// The name of the backend in messages.
pub(crate) const NAME: &str = "ring";

/// The longest time that opening waits for a member that hangs, while others are open.
const LATE: Duration = Duration::from_secs(1);

/// Waits for the members that are being opened. A name of one that hangs cannot be locked yet, and
/// those of the others can.
pub(crate) async fn all_open(members: &Members, clock: &dyn Clock) {
    let _ = at_most(clock, LATE, members.all_tried()).await;
}

/// One handle on a ring.
pub(crate) struct Shared {
    pub(crate) members: Members,
    /// The ring store, with handles of this handle alone.
    pub(crate) ring_store: MemberHandle,
    pub(crate) views: Arc<Views>,
    /// The leases that this process holds. All handles share them.
    pub(crate) leases: Arc<Leases>,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) spawner: Spawner,
}

/// Where a name can be locked now.
pub(crate) enum Way {
    Open(Route),
    /// The name has moved, and may be granted after this time.
    Moving(Duration),
}

/// The member that may be asked now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// The member.
    pub(crate) at: usize,
    /// A grant with a token up to this number is raised above it.
    floor: u64,
    most: Duration,
    /// The ring, whose history the tokens belong to.
    ring: Uuid,
}

impl Shared {
    /// Starts the task that reads the view, for this handle, on the calling runtime.
    pub(crate) fn start(self) -> Arc<Self> {
        let shared = Arc::new(self);
        let (weak, clock): (Weak<Self>, _) = (Arc::downgrade(&shared), Arc::clone(&shared.clock));
        shared.spawner.spawn(reads::keep_reading(weak, clock));
        shared
    }

    pub(crate) fn member(&self, at: usize) -> &Arc<Member> {
        &self.members.all()[at]
    }

    /// The place of the member of this name.
    pub(crate) fn place_of(&self, name: &str) -> Result<usize> {
        let mut members = self.members.all().iter();
        members
            .position(|member| member.name() == name)
            .ok_or_else(|| {
                let problem = format!(
                    "member {name:?} of the ring is missing in the configuration of this client"
                );
                Error::new(ErrorKind::InvalidConfig, problem).on(NAME)
            })
    }

    /// The way to a name by the view that may be used now.
    pub(crate) fn way(&self, name: &LockName) -> Result<Way> {
        let now = self.clock.now();
        let seen = self.views.usable(now)?;
        let standing = seen.standing(name, now);
        if !standing.left.is_zero() {
            return Ok(Way::Moving(standing.left));
        }
        Ok(Way::Open(Route {
            at: self.place_of(standing.owner)?,
            floor: standing.floor,
            most: seen.view.max_lease(),
            ring: seen.view.ring,
        }))
    }

    /// The way to a name, for a request. A refusal is counted.
    pub(crate) fn way_of_request(&self, name: &LockName) -> Result<Way> {
        let way = self.way(name);
        match &way {
            Ok(Way::Moving(_)) => Views::count_refusal("moving"),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                Views::count_refusal("no_view");
            }
            // Other errors are those of this client's configuration.
            Ok(Way::Open(_)) | Err(_) => {}
        }
        way
    }

    /// The way to a name that can be locked now.
    pub(crate) fn route(&self, name: &LockName) -> Result<Route> {
        match self.way_of_request(name)? {
            Way::Open(route) => Ok(route),
            Way::Moving(left) => {
                let problem = format!(
                    "the name moves to another member of the ring, and is free in {:.1} s",
                    left.as_secs_f64()
                );
                let error = Error::new(ErrorKind::Unavailable, problem);
                Err(error.on(NAME).about(name).retry_in(left))
            }
        }
    }

    /// Closes the connections. The task that reads the view ends by that.
    pub(crate) async fn close(&self) {
        self.members.close().await;
        self.ring_store.lock.close().await;
        self.ring_store.records.close().await;
    }

    /// Sends one request to one member.
    pub(crate) async fn ask<T>(
        &self,
        at: usize,
        request: impl AsyncFnOnce(MemberHandle) -> Result<T>,
    ) -> Result<T> {
        // There is no other member to ask, so a slow one is asked as a single store would be.
        let (handle, sent) = self.member(at).begin_although_silent()?;
        sent.ended(request(handle).await)
    }

    /// Asks the owner of a name for the lock, with the place of a waiter if it has one there.
    pub(crate) async fn acquire(
        &self,
        route: Route,
        request: &AcquireRequest,
        place: Option<&mut Box<dyn Contender>>,
    ) -> Result<Attempt<Grant>> {
        let asked = self.noted(route, request);
        let answer = self
            .ask(route.at, async |to| match place {
                Some(contender) => contender.attempt_as(asked.owner).await,
                None => to.lock.try_acquire(&asked).await,
            })
            .await;
        match answer {
            Ok(Attempt::Acquired(grant)) => {
                let raised = self.raised(route, &asked, grant).await;
                raised.map(Attempt::Acquired)
            }
            Ok(Attempt::Busy(holder)) => {
                self.leases.remove(asked.owner);
                Ok(Attempt::Busy(holder))
            }
            Err(error) => {
                if error.did_not_happen() {
                    self.leases.remove(asked.owner);
                }
                Err(error)
            }
        }
    }

    /// Renews a lease at its member. The answer has the history of the ring.
    pub(crate) async fn renew(
        &self,
        route: Route,
        lease: &Lease,
        renewal: &Renewal,
    ) -> Result<Renewed> {
        let renewed = self
            .ask(route.at, async |to| to.lock.renew(lease, renewal).await)
            .await?;
        Ok(match renewed {
            Renewed::Extended {
                valid_for,
                token,
                loss,
                ..
            } => Renewed::Extended {
                valid_for,
                epoch: route.epoch(),
                token,
                loss: self.feed(loss),
            },
            Renewed::NotHeld(reason) => Renewed::NotHeld(self.reason(reason)),
        })
    }

    /// The reason of a loss that a member tells, as all members can tell it. What a program learns
    /// must not depend on the member that a name belongs to.
    pub(crate) fn reason(&self, told: LossReason) -> LossReason {
        reason(self.capabilities.tells_force_release, told)
    }

    fn feed(&self, member: LossFeed) -> LossFeed {
        let tells = self.capabilities.tells_force_release;
        if tells || member.is_silent() {
            return member;
        }
        let (sender, feed) = LossFeed::new();
        member.on_loss(move |told| sender.lose(reason(tells, told)));
        feed
    }

    /// The request as the member gets it. It is noted as one that may be granted.
    pub(crate) fn noted(&self, route: Route, request: &AcquireRequest) -> AcquireRequest {
        let mut asked = request.clone();
        asked.ttl = route.capped(request.ttl);
        let now = self.clock.now();
        let held = Held {
            at: route.at,
            until: now + asked.ttl.duration(),
        };
        self.leases.note(asked.owner, held, now);
        asked
    }

    /// The grant, with a token above all that earlier owners of the name have given.
    pub(crate) async fn raised(
        &self,
        route: Route,
        asked: &AcquireRequest,
        mut grant: Grant,
    ) -> Result<Grant> {
        grant.epoch = route.epoch();
        grant.loss = self.feed(grant.loss);
        if grant.token.get() > route.floor {
            return Ok(grant);
        }
        let floor = FencingToken::new(route.floor.saturating_add(1))?;
        // No token: a raise changes it, and a repeated request would not find the lock.
        let lease = Lease::new(asked.name.clone(), grant.owner_after(asked), None);
        let renewal = Renewal::raising(asked.ttl, floor);
        match self.renew(route, &lease, &renewal).await {
            // The lease still counts from the grant, which was sent earlier.
            Ok(Renewed::Extended { token, .. }) => {
                grant.token = token;
                Ok(grant)
            }
            Ok(Renewed::NotHeld(reason)) => {
                self.leases.remove(asked.owner);
                let problem = format!("the lock was lost while it was being granted: {reason}");
                let error = Error::new(ErrorKind::Unavailable, problem);
                Err(self.member(route.at).of_this(error))
            }
            // The grant is there, with a token that must not be used. Its sender asks again under
            // the same owner, or releases. A release from here could come after the second grant.
            Err(error) => {
                let problem = "the lock was granted, and its token could not be raised";
                Err(Error::new(ErrorKind::OutcomeUnknown, problem)
                    .on(NAME)
                    .caused_by(error))
            }
        }
    }
}

fn reason(tells_force_release: bool, told: LossReason) -> LossReason {
    match told {
        LossReason::ForceReleased if !tells_force_release => LossReason::Removed,
        told => told,
    }
}

impl Route {
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch::new(self.ring.to_string())
    }

    /// No lease is longer than the longest: a name that moves is free after that time.
    pub(crate) fn capped(&self, ttl: Ttl) -> Ttl {
        Ttl::new(self.most).map_or(ttl, |most| ttl.min(most))
    }
}
