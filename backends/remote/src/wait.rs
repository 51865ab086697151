//! A waiter at the server. The server waits at its store, and wakes the client by a push.
//!
//! Invariant: a waiter that does not wait, because its wait was dropped, is paused at the server,
//! so that a free lock is not reserved for it. After the end of a session the waiter joins again on
//! the next one, at the end of the queue.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::OpenFlag;
use distlock_core::{AcquireRequest, Attempt, Contender, Error, Grant, OwnerId, Result, at_most};
use distlock_wire::v1::{self, answer, operation::Operation as Asked, waiter_step::Step};

use crate::{
    batch::read_attempt,
    error::{BACKEND, no_answer, wrong_kind},
    session::{Session, Signal},
    store::{RemoteHandle, located},
};

/// The pause before the next attempt of a waiter whose session has ended.
const REJOIN_PAUSE: Duration = Duration::from_millis(50);

/// One waiter of a handle.
#[derive(Debug)]
pub(crate) struct RemoteContender {
    handle: Arc<RemoteHandle>,
    open: OpenFlag,
    request: AcquireRequest,
    joined: Option<Joined>,
    /// Whether no other waiter is ahead.
    first: bool,
    /// The owner of the last attempt, while it has no answer.
    unanswered: Option<OwnerId>,
}

/// The place of a waiter in one session.
#[derive(Debug)]
struct Joined {
    session: Arc<Session>,
    waiter: u64,
    signal: Arc<Signal>,
    /// Whether the server waits for this waiter.
    armed: bool,
    /// Whether the waiter has left.
    left: bool,
}

impl RemoteContender {
    pub(crate) async fn join(
        handle: Arc<RemoteHandle>,
        open: OpenFlag,
        request: AcquireRequest,
    ) -> Result<Self> {
        let mut contender = Self {
            handle,
            open,
            request,
            joined: None,
            first: true,
            unanswered: None,
        };
        let joined = contender.enter().await;
        joined.map_err(|error| located(error, "contend", Some(&contender.request.name)))?;
        Ok(contender)
    }

    /// Joins the queue on the live session.
    async fn enter(&mut self) -> Result<()> {
        let link = &self.handle.link;
        let session = link.session().await?;
        let signal = Arc::<Signal>::default();
        let waiter = session.add_waiter(&signal)?;
        // The drop of this value removes the waiter again, also if the answer never comes.
        let joined = Joined {
            session,
            waiter,
            signal,
            armed: false,
            left: false,
        };
        let join = Asked::Join(v1::JoinQueue {
            waiter,
            request: Some((&self.request).into()),
        });
        match joined.ask(&self.handle, join).await? {
            answer::Answer::Waiter(place) => self.first = place.first,
            answer::Answer::Error(error) => return Err(error.into()),
            _ => return Err(wrong_kind()),
        }
        self.joined = Some(joined);
        Ok(())
    }

    /// Makes an attempt, for another owner than that of the request, if one is given.
    async fn try_once(&mut self, owner: Option<OwnerId>) -> Result<Attempt<Grant>> {
        let asks_as = owner.unwrap_or(self.request.owner);
        let unanswered = self.unanswered == Some(asks_as);
        if !self.joined.as_ref().is_some_and(Joined::is_live) {
            self.joined = None;
            self.enter().await?;
            // The place of the old session is lost. An attempt that may have been granted is asked
            // about from any place.
            if self.request.in_order && !self.first && !unanswered {
                return Ok(Attempt::Busy(None));
            }
        }
        self.unanswered = Some(asks_as);
        let attempt = self.ask_in_place(owner, asks_as).await;
        // An earlier attempt without an answer may have happened although this one did not.
        let is_open = |error: &Error| unanswered || !error.did_not_happen();
        if !attempt.as_ref().is_err_and(is_open) {
            self.unanswered = None;
        }
        attempt
    }

    /// Asks for the lock from the place in the present session.
    async fn ask_in_place(
        &mut self,
        owner: Option<OwnerId>,
        asks_as: OwnerId,
    ) -> Result<Attempt<Grant>> {
        let Some(joined) = &mut self.joined else {
            return Err(no_answer("the waiter has no place"));
        };
        // A wake-up that came before this attempt has had its effect.
        joined.signal.clear();
        joined.armed = false;
        let step = Asked::Step(v1::WaiterStep::attempt(joined.waiter, owner));
        let answer = joined.ask(&self.handle, step).await?;
        let answer = match answer {
            answer::Answer::Acquire(answer) => answer,
            answer::Answer::Error(error) => return Err(error.into()),
            _ => return Err(wrong_kind()),
        };
        let link = &self.handle.link;
        let name = &self.request.name;
        let (attempt, first) = read_attempt(answer, name, asks_as, &joined.session, link)?;
        // After the answer "busy" the server waits for this waiter without being asked.
        joined.armed = matches!(attempt, Attempt::Busy(_));
        self.first = first;
        Ok(attempt)
    }
}

impl Joined {
    fn is_live(&self) -> bool {
        self.session.is_live()
    }

    async fn ask(&self, handle: &RemoteHandle, asked: Asked) -> Result<answer::Answer> {
        let replies = self.session.send([asked])?;
        let mut answers = handle.link.answers(&self.session, replies).await;
        answers.pop().unwrap_or_else(|| Err(no_answer("no answer")))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.session.remove_waiter(self.waiter);
        if !self.left {
            self.session.step(self.waiter, Step::Leave);
        }
    }
}

#[async_trait]
impl Contender for RemoteContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.open.check(BACKEND)?;
        let attempt = self.try_once(None).await;
        attempt.map_err(|error| located(error, "acquire", Some(&self.request.name)))
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.open.check(BACKEND)?;
        let attempt = self.try_once(Some(owner)).await;
        attempt.map_err(|error| located(error, "acquire", Some(&self.request.name)))
    }

    fn is_first(&self) -> bool {
        self.first
    }

    async fn wait(&mut self, at_most_for: Duration) {
        let clock = Arc::clone(self.handle.link.clock());
        let Some(joined) = self.joined.as_mut().filter(|it| it.is_live()) else {
            // The next attempt joins again. Its error, if no server is there, has a pause.
            self.first = true;
            return clock.sleep(at_most_for.min(REJOIN_PAUSE)).await;
        };
        if !joined.armed {
            joined.armed = true;
            joined.session.step(joined.waiter, Step::Wait);
        }
        let mut waiting = WaitInProgress {
            joined,
            finished: false,
        };
        let signal = Arc::clone(&waiting.joined.signal);
        let woken = at_most(&*clock, at_most_for, signal.woken()).await;
        waiting.finished = true;
        if woken.is_some() {
            // The server waits no more after a push.
            waiting.joined.armed = false;
            drop(waiting);
            self.first = true;
        }
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        let Some(mut joined) = self.joined.take() else {
            return Ok(());
        };
        if !joined.is_live() {
            // The server removes the waiters of a session that has ended.
            return Ok(());
        }
        let name = &self.request.name;
        joined.left = true;
        let leave = Asked::Step(v1::WaiterStep {
            waiter: joined.waiter,
            step: Step::Leave.into(),
            owner: None,
        });
        let answer = joined.ask(&self.handle, leave).await;
        let answer = answer.map_err(|error| located(error, "leave", Some(name)))?;
        match answer {
            answer::Answer::Error(error) => Err(located(error.into(), "leave", Some(name))),
            _ => Ok(()),
        }
    }
}

/// Pauses the waiter at the server if its wait is dropped before the end.
struct WaitInProgress<'a> {
    joined: &'a mut Joined,
    finished: bool,
}

impl Drop for WaitInProgress<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.joined.armed = false;
            self.joined.session.step(self.joined.waiter, Step::Pause);
        }
    }
}
