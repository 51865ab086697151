//! What happens to the answers of a batch.

use std::{
    collections::VecDeque,
    future::{Future as _, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

use crate::{
    engine::log,
    types::error::{Error, ErrorKind, Result},
};

use super::{
    executor::{Executor, Failure, Reply},
    queue::{Batch, Pending},
};

/// What came of a batch.
pub(super) type Outcome<E> = Result<Vec<Reply<<E as Executor>::Answer>>, Failure>;

/// The batcher as this module needs it. A trait, because the batcher's own state knows the tasks
/// that hand out answers.
pub(super) trait BatchOwner<E: Executor>: Clone + Send + Sync + 'static {
    /// Queues operations to be sent singly.
    fn send_singly(&self, operations: impl Iterator<Item = Pending<E>>);

    /// Notes that an operation that was sent singly has ended. Returns operations that are given
    /// up.
    fn single_ended(&self, failed: bool) -> VecDeque<Pending<E>>;

    /// Sends the operation that takes an answer back which nobody received.
    fn undo(&self, op: &E::Op, answer: &E::Answer);
}

/// From how many answers on they are handed out between two turns of the scheduler.
const WOKEN_TOGETHER: usize = 8;

/// Hands out the answers of a batch that came back.
///
/// A task that wakes others has the scheduler wake another thread for each of them. Where that
/// thread has to share a processor, it comes in between at once, does the one task it finds, and
/// goes back to sleep, for answer after answer. So a crowd is woken from where a task that yields
/// is woken: there the scheduler first takes them all, and then wakes one thread.
///
/// # Cancel safety
/// When it is dropped, what is left is handed out at once.
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
        // Woken, by whomever: it is done, or is now.
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
        // All that is wanted of it is that it has our waker woken where it would be its own task's.
        // Without a scheduler it does so at once.
        let turn = pin!(tokio::task::yield_now());
        let _ = turn.poll(&mut Context::from_waker(&waker));
        Poll::Pending
    })
    .await;
}

/// A batch that came back, to be handed out when this is woken.
struct WokenTogether<E: Executor, O: BatchOwner<E>> {
    owner: O,
    // A std mutex: held while they are handed out, which waits for nobody.
    back: Mutex<Option<(Batch<E>, Outcome<E>)>>,
    /// Whoever waits until that is done.
    waiting_task: Waker,
}

impl<E: Executor, O: BatchOwner<E>> WokenTogether<E, O> {
    fn finish(&self) {
        // To the end: whoever else comes here, woken by chance, takes it for done and gives the
        // keys of the batch away.
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

/// Sees to it that nobody is forgotten where the task that hands out is destroyed before it is
/// woken.
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
                tracing::debug!(%error, "a batch failed as a whole: its operations are sent singly");
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
