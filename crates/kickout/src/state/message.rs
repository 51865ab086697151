//! A message in a session's queue, and the report of its outcome.
//!
//! Either the session takes the message or the sender withdraws it, never both. So a withdrawn
//! message is certainly not delivered.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, at_most};
use tokio::sync::oneshot;

use crate::model::request::{DeliverResult, Message};

// The states of a queued message. A message leaves the state WAITING once.
const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const WITHDRAWN: u8 = 2;

/// A message in the queue. The sender may withdraw it until the session takes it.
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
/// Call [`delivered`](Self::delivered) after the client acknowledged the message, or after the
/// message was written to a client that does not acknowledge. Call [`refused`](Self::refused) if
/// nothing of the message was written. If the value is dropped without a call, the sender learns
/// that the outcome is unknown.
#[must_use = "its sender waits for the outcome"]
pub struct Outgoing {
    message: Message,
    done: oneshot::Sender<DeliverResult>,
    /// Whether the session owes an acknowledgement. The arrival of this message clears it.
    overdue: Arc<AtomicBool>,
}

impl QueuedMessage {
    /// Makes a queue entry, and the sender's side of the entry.
    pub(crate) fn new(message: Message) -> (Self, DeliveryWatch) {
        let state = Arc::new(AtomicU8::new(WAITING));
        let (done, outcome) = oneshot::channel();
        let watch = DeliveryWatch {
            state: Arc::clone(&state),
            done: outcome,
        };
        (
            Self {
                message,
                state,
                done,
            },
            watch,
        )
    }

    /// Takes the message; `None` if the sender has withdrawn the message. The arrival of the
    /// message clears `overdue`.
    pub(crate) fn take(self, overdue: Arc<AtomicBool>) -> Option<Outgoing> {
        leave_waiting(&self.state, TAKEN).then_some(Outgoing {
            message: self.message,
            done: self.done,
            overdue,
        })
    }
}

impl DeliveryWatch {
    /// Waits until the session reports an outcome. When `ended` completes or `limit` has passed, a
    /// message that the session has not taken is withdrawn. For a message that the session has
    /// taken, the wait lasts up to `limit` again.
    pub(crate) async fn wait_for_outcome(
        mut self,
        clock: &dyn Clock,
        limit: Duration,
        ended: impl Future<Output = ()>,
    ) -> DeliverResult {
        tokio::select! {
            biased;
            outcome = &mut self.done => return outcome.unwrap_or_else(|_| self.lost_outcome()),
            () = ended => {}
            () = clock.sleep(limit) => {}
        }
        if leave_waiting(&self.state, WITHDRAWN) {
            return DeliverResult::NotCurrent;
        }
        // The session is writing the message at this moment, so the outcome may be known soon.
        match at_most(clock, limit, &mut self.done).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) | None => DeliverResult::Unknown,
        }
    }

    /// The outcome of a message that was dropped without a report.
    fn lost_outcome(&self) -> DeliverResult {
        if self.state.load(Ordering::Acquire) == TAKEN {
            DeliverResult::Unknown
        } else {
            DeliverResult::NotCurrent
        }
    }
}

/// Moves a message from WAITING to this state. Returns whether the message was still waiting.
fn leave_waiting(state: &AtomicU8, to: u8) -> bool {
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

    /// Reports that the message has arrived, as far as the client's protocol can tell. Returns the
    /// message if its sender had stopped waiting: the message may then be stored for the account.
    #[expect(
        clippy::must_use_candidate,
        reason = "only a late acknowledgement is of interest"
    )]
    pub fn delivered(self) -> Option<Message> {
        // This comes before the report: a sender that learns of the arrival and sends again waits
        // for the next acknowledgement.
        self.overdue.store(false, Ordering::Relaxed);
        let late = self.done.send(DeliverResult::Delivered).is_err();
        late.then_some(self.message)
    }

    /// Reports that nothing of the message was written.
    pub fn refused(self) {
        let _ = self.done.send(DeliverResult::NotCurrent);
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text is left out, because messages are private.
        f.debug_struct("Outgoing")
            .field("id", &self.message.id)
            .finish_non_exhaustive()
    }
}
