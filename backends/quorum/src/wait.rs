//! A waiter of a quorum: it waits at one member, and each attempt is a round.
//!
//! Invariant: the place in the queue of one member decides only when a round is tried. A waiter
//! whose member stops to answer goes to the next, and asks at its own pace meanwhile.
//!
//! The waiters of one name wait at the same member, the first that answers in an order which
//! depends on the name. So a release wakes one process instead of all, and rounds that compete for
//! the same votes are rare.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::OpenFlag;
use distlock_core::{AcquireRequest, Attempt, Contender, Grant, OwnerId, Result, at_most};

use crate::{
    lock::{attempt, by_rendezvous},
    shared::{NAME, Shared},
};

/// The pause between two rounds of a waiter that has a place at no member.
const WITHOUT_A_PLACE: Duration = Duration::from_millis(100);

/// The longest time between two rounds of a waiter that is first in the queue, or that has no
/// queue.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(crate) struct QuorumContender {
    shared: Arc<Shared>,
    request: AcquireRequest,
    /// The place at a member, and the member.
    place: Option<(usize, Box<dyn Contender>)>,
    open: OpenFlag,
}

impl QuorumContender {
    pub(crate) async fn join(shared: Arc<Shared>, open: OpenFlag, request: AcquireRequest) -> Self {
        let mut contender = Self {
            shared,
            request,
            place: None,
            open,
        };
        contender.take_place().await;
        contender
    }

    /// Joins the queue of the first member that answers. Without any, the waiter asks at its own
    /// pace.
    async fn take_place(&mut self) {
        for at in by_rendezvous(&self.shared, &self.request.name) {
            let member = Arc::clone(self.shared.member(at));
            let Ok((handle, sent)) = member.begin() else {
                continue;
            };
            let mut request = self.request.clone();
            request.ttl = self.shared.capped(request.ttl);
            let joining = handle.lock.contend(&request);
            if let Some(Ok(place)) = at_most(&*self.shared.clock, LOOK_AGAIN, joining).await {
                sent.answered();
                self.place = Some((at, place));
                return;
            }
        }
    }

    /// Leaves a member that has stopped to answer, and joins the next.
    async fn change_place(&mut self) {
        let Some((at, _)) = &self.place else {
            return self.take_place().await;
        };
        if self.shared.member(*at).answers() {
            return;
        }
        if let Some((_, place)) = self.place.take() {
            (self.shared.spawn)(Box::pin(async move {
                // The entry ends by itself when the member does not answer.
                let _ = place.leave().await;
            }));
        }
        self.take_place().await;
    }
}

#[async_trait]
impl Contender for QuorumContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.open.check(NAME)?;
        attempt(&self.shared, &self.request).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.open.check(NAME)?;
        let mut request = self.request.clone();
        request.owner = owner;
        attempt(&self.shared, &request).await
    }

    fn is_first(&self) -> bool {
        self.place
            .as_ref()
            .is_none_or(|(_, place)| place.is_first())
    }

    async fn wait(&mut self, at_most_for: Duration) {
        self.change_place().await;
        let clock = Arc::clone(&self.shared.clock);
        let most = at_most_for.min(LOOK_AGAIN);
        match &mut self.place {
            Some((_, place)) => {
                let _ = at_most(&*clock, most, place.wait(most)).await;
            }
            None => {
                let pause = most.min(WITHOUT_A_PLACE.mul_f64(0.5 + fastrand::f64()));
                clock.sleep(pause).await;
            }
        }
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        match self.place {
            Some((at, place)) => {
                let member = self.shared.member(at);
                place.leave().await.map_err(|error| member.of_this(error))
            }
            None => Ok(()),
        }
    }
}
