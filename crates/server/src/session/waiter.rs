//! One waiter of a session: its contender at the store, and the wake-ups that it causes.
//!
//! Invariant: the client is woken at most once between two of its steps, and only a step of the
//! client makes an attempt. So a lock is never granted to a client that does not ask for it.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Contender, Error, ErrorKind, LockName, Moment, OwnerId,
};
use distlock_wire::v1::{self, answer, push};
use tokio::sync::mpsc::{Receiver, UnboundedSender};

use super::{Outgoing, WaiterPlace, held_names::HeldNames};
use crate::operations::{Operations, announce};

/// The longest wait without a look at the lock, by an attempt of the client. The client asks by
/// itself when the lease of the holder ends, so this is for a store that has missed a wake-up.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// A step of the client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The operation's id, the moment at which it was received, and the owner, if it is not that of
    /// the request.
    Attempt(u64, Moment, Option<OwnerId>),
    Wait,
    Pause,
    Leave(u64),
}

/// A waiter, from its joining to its end.
pub(super) struct Waiter {
    pub(super) id: u64,
    pub(super) operations: Arc<Operations>,
    pub(super) steps: Receiver<Step>,
    pub(super) out: UnboundedSender<Outgoing>,
    /// The names of the session, if their number is limited.
    pub(super) held: Option<HeldNames>,
    pub(super) _place: WaiterPlace,
}

impl Waiter {
    /// Joins the queue with this request, and serves the steps of the client until it leaves or its
    /// session ends. `joined` is the id of the operation.
    pub(super) async fn run(mut self, joined: u64, request: AcquireRequest) {
        let contender = match self.operations.contend(&request).await {
            Ok(contender) => contender,
            Err(error) => {
                self.answer(joined, answer::Answer::Error((&error).into()));
                return self.refuse_steps(&error).await;
            }
        };
        self.answer_place(joined, contender.is_first());
        self.serve(contender, &request).await;
    }

    async fn serve(&mut self, mut contender: Box<dyn Contender>, request: &AcquireRequest) {
        let mut waiting = false;
        loop {
            let step = if waiting {
                // A step of the client drops the wait. A wake-up that came at the same moment is
                // kept by the contender.
                tokio::select! {
                    biased;
                    step = self.steps.recv() => step,
                    () = contender.wait(LONGEST_WAIT) => {
                        // A contender behind others would make an attempt for nothing.
                        if contender.is_first() {
                            waiting = false;
                            self.send(Outgoing::Push(push::Push::Wake(self.id)));
                        }
                        continue;
                    }
                }
            } else {
                self.steps.recv().await
            };
            match step {
                Some(Step::Attempt(id, received, owner)) => {
                    let mut request = request.clone();
                    let name = request.name.clone();
                    let admitted = self.may_hold(&name);
                    // A name that was refused has no place, and its refusal is no answer about it.
                    let held = self.held.as_ref().filter(|_| admitted.is_ok());
                    let attempt = match (admitted, owner) {
                        (Err(error), _) => Err(error),
                        (Ok(()), None) => contender.attempt().await,
                        (Ok(()), Some(owner)) => {
                            request.owner = owner;
                            contender.attempt_as(owner).await
                        }
                    };
                    let attempt =
                        attempt.map(|it| announce(it, &request, received, Some(&self.out)));
                    waiting = matches!(attempt, Ok(Attempt::Busy(_)));
                    let answer = match attempt {
                        Ok(attempt) => {
                            let first = contender.is_first();
                            let operations = &self.operations;
                            let answer = operations.acquire_answer(&attempt, &request, first);
                            answer::Answer::Acquire(answer)
                        }
                        Err(error) => answer::Answer::Error((&error).into()),
                    };
                    if let Some(held) = held {
                        held.note(name.as_str(), &answer);
                    }
                    self.answer(id, answer);
                }
                Some(Step::Wait) => waiting = true,
                Some(Step::Pause) => waiting = false,
                Some(Step::Leave(id)) => {
                    match contender.leave().await {
                        Ok(()) => self.answer_place(id, false),
                        Err(error) => self.answer(id, answer::Answer::Error((&error).into())),
                    }
                    return;
                }
                None => {
                    if let Err(error) = contender.leave().await {
                        tracing::debug!(%error, lock = ?request.name, "a waiter did not leave");
                    }
                    return;
                }
            }
        }
    }

    /// Whether the session may hold this name as well.
    fn may_hold(&self, name: &LockName) -> Result<(), Error> {
        match &self.held {
            Some(held) => held.admit(name.as_str()),
            None => Ok(()),
        }
    }

    /// Answers the steps of a waiter that is not in the queue.
    async fn refuse_steps(&mut self, error: &Error) {
        while let Some(step) = self.steps.recv().await {
            match step {
                Step::Attempt(id, ..) => self.answer(id, answer::Answer::Error(error.into())),
                Step::Leave(id) => return self.answer_place(id, false),
                Step::Wait | Step::Pause => {}
            }
        }
    }

    fn answer_place(&self, id: u64, first: bool) {
        self.answer(id, answer::Answer::Waiter(v1::WaiterAnswer { first }));
    }

    fn answer(&self, id: u64, answer: answer::Answer) {
        self.send(Outgoing::Answer(id, answer));
    }

    fn send(&self, outgoing: Outgoing) {
        // Without a receiver the session has ended.
        let _ = self.out.send(outgoing);
    }
}

/// The error of a step whose waiter does not exist.
pub(super) fn no_waiter(waiter: u64) -> Error {
    let problem = format!("this session has no waiter {waiter}");
    Error::new(ErrorKind::InvalidArgument, problem)
}
