//! The delivery of the answers of a batch to the callers.
//!
//! This module owns this delivery. Invariant: each answer of a batch is given to its caller or
//! undone, or its operation is queued again, also when the task that hands out the answers is
//! destroyed. The module sends nothing to the store.

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

/// The part of the batcher that this module calls. The trait avoids a circle of imports, because
/// the batcher's state uses this module.
pub(super) trait BatchOwner<E: Executor>: Clone + Send + Sync + 'static {
    /// Queues operations that must be sent singly, each in its own request.
    fn send_singly(&self, operations: impl Iterator<Item = Pending<E>>);

    /// Counts the result of an operation that was sent singly. After too many failures in a row,
    /// returns all operations that wait to be sent singly; the caller answers them with the error.
    fn count_single_result(&self, failed: bool) -> VecDeque<Pending<E>>;

    /// Undoes an answer that no caller received.
    fn undo(&self, op: &E::Op, answer: &E::Answer);
}

/// The smallest number of answers that are handed out together, at the point where the scheduler
/// wakes tasks that yield.
const WOKEN_TOGETHER: usize = 8;

/// Hands out the answers of a batch.
///
/// When a task wakes another task, tokio's scheduler also wakes a worker thread. If that thread
/// shares a processor with the present thread, the woken thread runs at once, finds one task, and
/// sleeps again. That happens once for each answer. So a large number of answers is handed out at
/// the point where the scheduler wakes tasks that yield. There the scheduler first collects all
/// woken tasks, and then wakes one thread.
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
    let mut undelivered = Some((batch, outcome));
    let mut finishing = None;
    poll_fn(|context| {
        // This is the second poll. The drop of the value in `finishing` hands out the answers if
        // the waker has not done so yet.
        if finishing.take().is_some() {
            return Poll::Ready(());
        }
        let together = Arc::new(WokenTogether {
            owner: owner.clone(),
            undelivered: Mutex::new(undelivered.take()),
            waiting_task: context.waker().clone(),
        });
        let waker = Waker::from(Arc::clone(&together));
        finishing = Some(FinishOnDrop(together));
        // The yield wakes the waker of its poll at the point where the scheduler wakes tasks that
        // yield. Without a scheduler, the yield wakes that waker at once.
        let turn = pin!(tokio::task::yield_now());
        let _ = turn.poll(&mut Context::from_waker(&waker));
        Poll::Pending
    })
    .await;
}

/// A waker that hands out the answers of a batch when it is woken.
struct WokenTogether<E: Executor, O: BatchOwner<E>> {
    owner: O,
    // A std mutex, which is held while the answers are handed out. Handing out never waits.
    undelivered: Mutex<Option<(Batch<E>, Outcome<E>)>>,
    /// The task that waits until all answers are handed out.
    waiting_task: Waker,
}

impl<E: Executor, O: BatchOwner<E>> WokenTogether<E, O> {
    fn finish(&self) {
        // The mutex is locked to the end of this function. Otherwise a second caller would return
        // early, and the keys of the batch would be freed while answers are still being handed out.
        let mut undelivered = self
            .undelivered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((batch, outcome)) = undelivered.take() {
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

/// Hands the answers out in its drop, also when the task is destroyed before it was woken.
struct FinishOnDrop<E: Executor, O: BatchOwner<E>>(Arc<WokenTogether<E, O>>);

impl<E: Executor, O: BatchOwner<E>> Drop for FinishOnDrop<E, O> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

fn distribute<E: Executor>(owner: &impl BatchOwner<E>, batch: Batch<E>, outcome: Outcome<E>) {
    let (is_single, is_one) = (batch.is_single, batch.ops.len() == 1);
    if is_single {
        let given_up = owner.count_single_result(outcome.is_err());
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
                    Some(Reply::Alone) if !is_one => {
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
        Err(Failure::Split(error)) if !is_one => {
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
