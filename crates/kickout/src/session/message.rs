//! A message on its way through a session's queue, and the receipt that makes its outcome known.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use distlock_core::Clock;
use tokio::sync::oneshot;

use crate::model::request::{DeliverResult, Message};

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const WITHDRAWN: u8 = 2;

/// A message in the queue. Until the session takes it, its sender may withdraw it.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    message: Message,
    state: Arc<AtomicU8>,
    done: oneshot::Sender<DeliverResult>,
}

/// The sender's side of a [`QueuedMessage`].
#[derive(Debug)]
pub(crate) struct DeliveryWatch {
    state: Arc<AtomicU8>,
    done: oneshot::Receiver<DeliverResult>,
}

/// A message that the session must write to its client now.
///
/// Call [`delivered`](Self::delivered) when its client acknowledged it, or after it was written to
/// a client that does not acknowledge; [`refused`](Self::refused) when nothing of it was written.
/// Dropping it says "perhaps": its sender is told that the outcome is unknown.
#[must_use = "its sender waits for the outcome"]
pub struct Outgoing {
    message: Message,
    done: oneshot::Sender<DeliverResult>,
}

impl QueuedMessage {
    pub(crate) fn new(message: Message) -> (Self, DeliveryWatch) {
        let state = Arc::new(AtomicU8::new(WAITING));
        let (done, outcome) = oneshot::channel();
        let pickup = DeliveryWatch {
            state: Arc::clone(&state),
            done: outcome,
        };
        (
            Self {
                message,
                state,
                done,
            },
            pickup,
        )
    }

    /// `None` = withdrawn.
    pub(crate) fn take(self) -> Option<Outgoing> {
        change(&self.state, TAKEN).then_some(Outgoing {
            message: self.message,
            done: self.done,
        })
    }
}

impl DeliveryWatch {
    /// Waits until the message was written, the session ends, or the time is over.
    pub(crate) async fn outcome(
        mut self,
        clock: &dyn Clock,
        limit: Duration,
        ended: impl Future<Output = ()>,
    ) -> DeliverResult {
        tokio::select! {
            biased;
            outcome = &mut self.done => return outcome.unwrap_or_else(|_| self.dropped()),
            () = ended => {}
            () = clock.sleep(limit) => {}
        }
        if change(&self.state, WITHDRAWN) {
            return DeliverResult::NotCurrent;
        }
        // It is being written at this moment. A little more time tells.
        tokio::select! {
            biased;
            outcome = &mut self.done => outcome.unwrap_or(DeliverResult::Unknown),
            () = clock.sleep(limit) => DeliverResult::Unknown,
        }
    }

    fn dropped(&self) -> DeliverResult {
        if self.state.load(Ordering::Acquire) == TAKEN {
            DeliverResult::Unknown
        } else {
            DeliverResult::NotCurrent
        }
    }
}

fn change(state: &AtomicU8, to: u8) -> bool {
    state
        .compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

impl Outgoing {
    /// The message.
    #[must_use]
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// It has arrived, as far as this client can tell. Gives the message back when its sender had
    /// stopped waiting: then it may have been kept for the account.
    #[expect(
        clippy::must_use_candidate,
        reason = "only a late acknowledgement is of interest"
    )]
    pub fn delivered(self) -> Option<Message> {
        let late = self.done.send(DeliverResult::Delivered).is_err();
        late.then_some(self.message)
    }

    /// Nothing of it was written.
    pub fn refused(self) {
        let _ = self.done.send(DeliverResult::NotCurrent);
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the text: messages are private.
        f.debug_struct("Outgoing")
            .field("id", &self.message.id)
            .finish_non_exhaustive()
    }
}
