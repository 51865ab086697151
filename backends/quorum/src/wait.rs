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
use distlock_core::{AcquireRequest, Attempt, Contender, Grant, Moment, OwnerId, Result, at_most};
use tokio::sync::Mutex;

use crate::{
    lock::{attempt, by_rendezvous},
    shared::{NAME, Shared},
};

/// The pause between two rounds of a waiter that has a place at no member.
const WITHOUT_A_PLACE: Duration = Duration::from_millis(100);

/// The longest time between two rounds of a waiter that is first in the queue, or that has no
/// queue.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The time between two looks at the member where a waiter waits.
const LOOK_AT_MEMBER: Duration = Duration::from_secs(2);

pub(crate) struct QuorumContender {
    shared: Arc<Shared>,
    request: AcquireRequest,
    /// The place at a member; `None` while no member answers.
    place: Option<Place>,
    /// The moment of the next look at the member of the place.
    look_at: Moment,
    open: OpenFlag,
}

/// A place in the queue of a member.
#[derive(Clone)]
pub(crate) struct Place {
    /// The member.
    pub(crate) at: usize,
    /// The contender there; `None` after it has left. The requests of a round are tasks of their
    /// own, and that of a slow member can outlive the round and its caller. So they share the
    /// contender: a request that uses it keeps it until its answer is there.
    pub(crate) contender: Arc<Mutex<Option<Box<dyn Contender>>>>,
}

impl Place {
    fn is_first(&self) -> bool {
        // In use: the answer decides.
        let contender = self.contender.try_lock();
        contender.is_ok_and(|it| it.as_ref().is_none_or(|it| it.is_first()))
    }

    async fn wait(&self, at_most_for: Duration) {
        if let Some(contender) = &mut *self.contender.lock().await {
            contender.wait(at_most_for).await;
        }
    }

    /// Leaves the queue, after the answer to a request that uses the place.
    async fn leave(self) -> Result<()> {
        let contender = self.contender.lock().await.take();
        match contender {
            Some(contender) => contender.leave().await,
            None => Ok(()),
        }
    }
}

impl QuorumContender {
    pub(crate) async fn join(shared: Arc<Shared>, open: OpenFlag, request: AcquireRequest) -> Self {
        let now = shared.clock.now();
        let mut contender = Self {
            shared,
            request,
            place: None,
            look_at: now,
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
            if let Some(Ok(contender)) = at_most(&*self.shared.clock, LOOK_AGAIN, joining).await {
                // No answer: some stores join a queue before their server has heard of it.
                drop(sent);
                let contender = Arc::new(Mutex::new(Some(contender)));
                self.place = Some(Place { at, contender });
                return;
            }
        }
    }

    /// Leaves a member that has stopped to answer, and joins the next.
    async fn change_place(&mut self) {
        if let Some(place) = &self.place {
            if self.shared.member(place.at).answers() {
                return;
            }
            self.leave_in_background();
        }
        self.take_place().await;
    }

    /// Asks the member of the place for something, in the background. The waiter's own requests are
    /// its contender's, and do not show whether the member answers. A waiter that is not first
    /// would otherwise sleep at a member that has stopped, while the others can grant the lock.
    fn look_at_member(&mut self) {
        let now = self.shared.clock.now();
        if let Some(place) = &self.place
            && now >= self.look_at
        {
            self.look_at = now + LOOK_AT_MEMBER;
            let (shared, at) = (Arc::clone(&self.shared), place.at);
            (self.shared.spawn)(Box::pin(async move {
                let _ = shared.is_ours(at).await;
            }));
        }
    }

    fn leave_in_background(&mut self) {
        if let Some(place) = self.place.take() {
            (self.shared.spawn)(Box::pin(async move {
                // The entry ends by itself when the member does not answer.
                let _ = place.leave().await;
            }));
        }
    }
}

#[async_trait]
impl Contender for QuorumContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.open.check(NAME)?;
        let mut request = self.request.clone();
        request.owner = owner;
        attempt(&self.shared, &request, self.place.as_ref()).await
    }

    fn is_first(&self) -> bool {
        self.place.as_ref().is_none_or(Place::is_first)
    }

    async fn wait(&mut self, at_most_for: Duration) {
        self.change_place().await;
        self.look_at_member();
        let clock = Arc::clone(&self.shared.clock);
        let most = at_most_for.min(LOOK_AGAIN);
        match &self.place {
            Some(place) => {
                let _ = at_most(&*clock, most, place.wait(most)).await;
            }
            None => {
                let pause = most.min(WITHOUT_A_PLACE.mul_f64(0.5 + fastrand::f64()));
                clock.sleep(pause).await;
            }
        }
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        match self.place.take() {
            // Nobody waits for the answer of a slow member.
            Some(place) if place.contender.try_lock().is_err() => {
                self.place = Some(place);
                self.leave_in_background();
                Ok(())
            }
            Some(place) => {
                let member = Arc::clone(self.shared.member(place.at));
                place.leave().await.map_err(|error| member.of_this(error))
            }
            None => Ok(()),
        }
    }
}
