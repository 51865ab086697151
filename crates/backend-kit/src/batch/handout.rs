//! Handing out the answers of a batch.
//!
//! This module owns the way of each answer to its caller. Invariant: every answer of a batch is
//! given to its caller, undone, or its operation is queued again; also when the task that hands out
//! is destroyed. The module never sends anything itself.

use std::{
    collections::VecDeque,
    future::{Future as _, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

use distlock_core::{Error, ErrorKind, Result, log};

use super::{
    executor::{Executor, Failure, Reply},
    queue::{Batch, Pending},
};

/// The result of a batch.
pub(super) type Outcome<E> = Result<Vec<Reply<<E as Executor>::Answer>>, Failure>;

/// The batcher as this module needs it. A trait breaks the circle: the batcher's state knows the
/// tasks that hand out answers.
pub(super) trait BatchOwner<E: Executor>: Clone + Send + Sync + 'static {
    /// Queues operations to be sent singly.
    fn send_singly(&self, operations: impl Iterator<Item = Pending<E>>);

    /// Notes that an operation that was sent singly has ended. Returns operations that are given
    /// up.
    fn single_ended(&self, failed: bool) -> VecDeque<Pending<E>>;

    /// Undoes an answer that no caller received.
    fn undo(&self, op: &E::Op, answer: &E::Answer);
}

/// Number of answers from which on they are handed out between two turns of the scheduler.
const WOKEN_TOGETHER: usize = 8;

/// Hands out the answers of a batch that came back.
///
/// For each task that another task wakes, tokio's scheduler wakes a thread. Where that thread
/// shares a processor, it runs at once, finds one task, and sleeps again, for answer after answer.
/// So many answers are handed out at the point where a task that yields is woken: there the
/// scheduler first collects all woken tasks, and then wakes one thread.
///
/// # Cancel safety
/// When the future is dropped, the remaining answers are handed out at once.
pub(super) async fn hand_out<E: Executor>(
    owner: &impl BatchOwner<E>,
    batch: Batch<E>,
    outcome: Outcome<E>,
) {
    if batch.ops.len() < WOKEN_TOGETHER {
        return distribute(owner, batch, outcome);
    }
    let mut back = Some((batch, outcome));
    let mut finishing = None;
    poll_fn(|context| {
        // Woken, for whatever reason: the drop hands out what is not handed out yet.
        if finishing.take().is_some() {
            return Poll::Ready(());
        }
        let together = Arc::new(WokenTogether {
            owner: owner.clone(),
            back: Mutex::new(back.take()),
            waiting_task: context.waker().clone(),
        });
        let waker = Waker::from(Arc::clone(&together));
        finishing = Some(FinishOnDrop(together));
        // The yield wakes the waker that it is polled with, from the place where the scheduler
        // wakes tasks that yield. Without a scheduler, it wakes at once.
        let turn = pin!(tokio::task::yield_now());
        let _ = turn.poll(&mut Context::from_waker(&waker));
        Poll::Pending
    })
    .await;
}

/// The answers of a batch, which are handed out when this waker is woken.
struct WokenTogether<E: Executor, O: BatchOwner<E>> {
    owner: O,
    // A std mutex: it is held while the answers are handed out, which never waits.
    back: Mutex<Option<(Batch<E>, Outcome<E>)>>,
    /// The task that waits until all answers are handed out.
    waiting_task: Waker,
}

impl<E: Executor, O: BatchOwner<E>> WokenTogether<E, O> {
    fn finish(&self) {
        // Locked to the end: a second caller of this function would otherwise return early and free
        // the keys of the batch while answers are still being handed out.
        let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((batch, outcome)) = back.take() {
            distribute(&self.owner, batch, outcome);
        }
    }
}

impl<E: Executor, O: BatchOwner<E>> Wake for WokenTogether<E, O> {
    fn wake(self: Arc<Self>) {
        self.finish();
        self.waiting_task.wake_by_ref();
    }
}

/// Hands the answers out in its drop, also when the task is destroyed before it is woken.
struct FinishOnDrop<E: Executor, O: BatchOwner<E>>(Arc<WokenTogether<E, O>>);

impl<E: Executor, O: BatchOwner<E>> Drop for FinishOnDrop<E, O> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

fn distribute<E: Executor>(owner: &impl BatchOwner<E>, batch: Batch<E>, outcome: Outcome<E>) {
    let (alone, lone) = (batch.alone, batch.ops.len() == 1);
    if alone {
        let given_up = owner.single_ended(outcome.is_err());
        if let Err(Failure::Split(error) | Failure::Whole(error)) = &outcome {
            for pending in given_up {
                let _ = pending.answer(Err(error.clone()));
            }
        }
    }
    match outcome {
        Ok(replies) => {
            let mut replies = replies.into_iter();
            for pending in batch.into_pending() {
                match replies.next() {
                    Some(Reply::Alone) if !lone => {
                        owner.send_singly(std::iter::once(pending));
                    }
                    reply => {
                        if let Some((op, Ok(answer))) = pending.answer(reply_of(reply)) {
                            owner.undo(&op, &answer);
                        }
                    }
                }
            }
        }
        Err(Failure::Split(error)) if !lone => {
            log::debug(move || {
                tracing::debug!(
                    %error,
                    "a batch failed as a whole: its operations are sent singly",
                );
            });
            owner.send_singly(batch.into_pending());
        }
        Err(Failure::Split(error) | Failure::Whole(error)) => {
            for pending in batch.into_pending() {
                let _ = pending.answer(Err(error.clone()));
            }
        }
    }
}

pub(super) fn reply_of<A>(reply: Option<Reply<A>>) -> Result<A> {
    match reply {
        Some(Reply::Done(answer)) => answer,
        Some(Reply::Alone) => Err(Error::new(
            ErrorKind::Unavailable,
            "the store skipped the operation",
        )),
        None => Err(Error::new(
            ErrorKind::Internal,
            "the store's answer to a batch has too few entries",
        )),
    }
}
