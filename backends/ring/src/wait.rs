//! A waiter of a ring: it waits at the member that owns the name.
//!
//! Invariant: a waiter whose name has moved leaves its member and joins the queue of the new owner.
//! An attempt goes to the present owner, wherever the waiter has its place.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::OpenFlag;
use distlock_core::{AcquireRequest, Attempt, Contender, Grant, OwnerId, Result, at_most};

use crate::shared::{NAME, Route, Shared, Way};

/// The longest sleep of a waiter. A waiter that is not first would otherwise not notice that its
/// name has moved.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The pause of a waiter without a place: its name is in quarantine, or its member is away.
const WITHOUT_A_PLACE: Duration = Duration::from_millis(100);

pub(crate) struct RingContender {
    shared: Arc<Shared>,
    request: AcquireRequest,
    place: Option<Place>,
    open: OpenFlag,
}

/// A place in the queue of a member.
struct Place {
    /// The member.
    at: usize,
    contender: Box<dyn Contender>,
}

impl RingContender {
    pub(crate) async fn join(
        shared: Arc<Shared>,
        open: OpenFlag,
        request: AcquireRequest,
    ) -> Result<Self> {
        let mut contender = Self {
            shared,
            request,
            place: None,
            open,
        };
        // A name that moves has no queue yet.
        if let Ok(route) = contender.shared.route(&contender.request.name) {
            contender.take_place(route).await?;
        }
        Ok(contender)
    }

    async fn take_place(&mut self, route: Route) -> Result<()> {
        let mut request = self.request.clone();
        request.ttl = route.capped(request.ttl);
        let contender = self
            .shared
            .ask(route.at, async |to| to.lock.contend(&request).await)
            .await?;
        self.place = Some(Place {
            at: route.at,
            contender,
        });
        Ok(())
    }

    /// Whether the name belongs to another member than that of the place.
    fn is_misplaced(&self) -> bool {
        match self.shared.way(&self.request.name) {
            Ok(Way::Open(route)) => self.place.as_ref().is_none_or(|it| it.at != route.at),
            Ok(Way::Moving(_)) | Err(_) => false,
        }
    }

    fn leave_in_background(&mut self) {
        if let Some(place) = self.place.take() {
            self.shared.spawner.spawn(async move {
                // The entry ends by itself when the member does not answer.
                let _ = place.contender.leave().await;
            });
        }
    }
}

#[async_trait]
impl Contender for RingContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.open.check(NAME)?;
        let route = self.shared.route(&self.request.name)?;
        if self.place.as_ref().is_none_or(|place| place.at != route.at) {
            self.leave_in_background();
            self.take_place(route).await?;
            // Those who were in the queue of this member before come first.
            if self
                .place
                .as_ref()
                .is_some_and(|it| !it.contender.is_first())
            {
                return Ok(Attempt::Busy(None));
            }
        }
        let mut request = self.request.clone();
        request.owner = owner;
        let place = self.place.as_mut().map(|place| &mut place.contender);
        self.shared.acquire(route, &request, place).await
    }

    fn is_first(&self) -> bool {
        self.is_misplaced() || self.place.as_ref().is_none_or(|it| it.contender.is_first())
    }

    async fn wait(&mut self, at_most_for: Duration) {
        if self.is_misplaced() {
            return;
        }
        let clock = Arc::clone(&self.shared.clock);
        let most = at_most_for.min(LOOK_AGAIN);
        match &mut self.place {
            Some(place) => {
                let _ = at_most(&*clock, most, place.contender.wait(most)).await;
            }
            None => clock.sleep(most.min(WITHOUT_A_PLACE)).await,
        }
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        match self.place.take() {
            Some(place) => {
                let member = Arc::clone(self.shared.member(place.at));
                place
                    .contender
                    .leave()
                    .await
                    .map_err(|error| member.of_this(error))
            }
            None => Ok(()),
        }
    }
}
