//! The writing side of a session's connection.
//!
//! This module keeps replies and messages in order, and reserves room for the last frame, so that a
//! full queue cannot delay the notice. This module must never write a queued frame after the last
//! frame.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use distlock_kickout::{Message, Outgoing, Session};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{
    FrameWriter,
    frames::{Frame, message_frame},
};
use crate::inbox::OfflineStore;

/// Replies that may wait. While the queue is full, the client's frames are not read.
const MAX_REPLIES: usize = 16;
/// Room for the last frame, the refusals after it, and the close.
const MAX_URGENT: usize = 8;

/// Messages that may wait for their acknowledgement. At this number, no further message is taken
/// from the session's queue.
const MAX_UNACKNOWLEDGED: usize = 64;

/// A frame that is written in the order of the queue.
#[derive(Debug)]
pub(super) enum Reply {
    /// An answer.
    Answer(Frame),
    /// A stored message, and the receipt for its arrival. The receipt is dropped when the message
    /// will not arrive on this connection.
    Kept(Message, oneshot::Sender<()>),
}

impl Reply {
    /// A stored message and its receipt. The receipt is sent when the client has acknowledged the
    /// message, or when the message was written to a client that does not acknowledge.
    pub(super) fn with_receipt(message: Message) -> (Box<Self>, oneshot::Receiver<()>) {
        let (receipt, arrived) = oneshot::channel();
        (Box::new(Self::Kept(message, receipt)), arrived)
    }
}

impl From<Frame> for Box<Reply> {
    fn from(frame: Frame) -> Self {
        Self::new(Reply::Answer(frame))
    }
}

/// The queue for replies. A channel has room for 32 values from its start, so the values are small:
/// boxes.
pub(super) type Replies = mpsc::Sender<Box<Reply>>;

/// The queues for frames to the client.
#[derive(Debug)]
pub(super) struct Outbox {
    replies: Replies,
    urgent: mpsc::Sender<Box<Urgent>>,
    acked: Arc<Acknowledged>,
}

/// The number of the last message that the client acknowledged.
#[derive(Debug, Default)]
struct Acknowledged {
    last: AtomicU64,
    changed: Notify,
}

impl Acknowledged {
    fn note(&self, seq: u64) {
        if self.last.fetch_max(seq, Ordering::Relaxed) < seq {
            self.changed.notify_one();
        }
    }

    /// Waits until the number has grown.
    async fn changed(&self) -> u64 {
        self.changed.notified().await;
        self.last.load(Ordering::Relaxed)
    }
}

/// A frame that is written before queued replies and messages.
#[derive(Debug)]
pub(super) enum Urgent {
    /// The last frame of the session. Frames that were queued earlier are no longer written.
    LastFrame(Frame),
    /// A refusal after the last frame.
    Frame(Frame),
    /// The close from this side.
    Close(u16, &'static str),
}

impl Outbox {
    /// Returns an outbox, and the task that empties it. When a client acknowledges a message that
    /// may have been stored, the task removes that message from `inbox`.
    pub(super) fn open<W: FrameWriter>(
        writer: W,
        session: Arc<Session>,
        inbox: Arc<dyn OfflineStore>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (replies, replies_out) = mpsc::channel(MAX_REPLIES);
        let (urgent, urgent_out) = mpsc::channel(MAX_URGENT);
        let acked = Arc::<Acknowledged>::default();
        let outbox = Self {
            replies,
            urgent,
            acked: Arc::clone(&acked),
        };
        let unacked = Unacknowledged {
            session: Arc::clone(&session),
            inbox,
            last: 0,
            waiting: VecDeque::new(),
        };
        let writing = write_frames(writer, session, unacked, acked, replies_out, urgent_out);
        (outbox, writing)
    }

    pub(super) fn replies(&self) -> Replies {
        self.replies.clone()
    }

    /// Notes that the client has every message up to this number.
    pub(super) fn note_acknowledged(&self, seq: u64) {
        self.acked.note(seq);
    }

    /// Queues an urgent frame. The last frame and the close always find room; refusals without room
    /// are dropped.
    pub(super) fn queue_urgent(&self, urgent: Urgent) {
        if matches!(urgent, Urgent::Frame(_)) && self.urgent.capacity() <= 1 {
            return;
        }
        let _ = self.urgent.try_send(Box::new(urgent));
    }

    /// Waits until nothing more will be written: this side has closed, or a write has failed.
    pub(super) async fn until_closed(&self) {
        // The task has the receiver of this queue until its end.
        self.urgent.closed().await;
    }
}

/// Messages that were written and are not acknowledged yet.
struct Unacknowledged {
    session: Arc<Session>,
    inbox: Arc<dyn OfflineStore>,
    last: u64,
    waiting: VecDeque<(u64, OnArrival)>,
}

/// The party that waits for the arrival of a message. A drop reports an unknown arrival.
enum OnArrival {
    Live(Outgoing),
    Kept(oneshot::Sender<()>),
}

impl Unacknowledged {
    /// The number of the next message; `None` for a client that does not acknowledge.
    fn next_number(&self) -> Option<u64> {
        self.session.acknowledges().then_some(self.last + 1)
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_UNACKNOWLEDGED
    }

    /// Notes that a message was written under this number.
    fn note_written(&mut self, seq: Option<u64>, on_arrival: OnArrival) {
        match seq {
            Some(seq) => {
                self.last = seq;
                self.waiting.push_back((seq, on_arrival));
            }
            None => self.report_arrival(on_arrival),
        }
    }

    fn note_acknowledged(&mut self, up_to: u64) {
        while let Some((_, on_arrival)) = self.waiting.pop_front_if(|(seq, _)| *seq <= up_to) {
            self.report_arrival(on_arrival);
        }
    }

    fn report_arrival(&self, on_arrival: OnArrival) {
        let message = match on_arrival {
            OnArrival::Live(outgoing) => outgoing.delivered(),
            OnArrival::Kept(receipt) => {
                let _ = receipt.send(());
                None
            }
        };
        // If the client does not acknowledge, a message without a waiting sender was never stored,
        // so there is nothing to remove from the store.
        let Some(message) = message.filter(|_| self.session.acknowledges()) else {
            return;
        };
        let (inbox, session) = (Arc::clone(&self.inbox), Arc::clone(&self.session));
        tokio::spawn(async move {
            let copy = message.for_device(session.device());
            if let Err(error) = inbox.forget(session.uid(), &[message, copy]).await {
                tracing::debug!(
                    %error,
                    "a message that has arrived is still in the store, and comes once more"
                );
            }
        });
    }
}

async fn write_frames<W: FrameWriter>(
    mut writer: W,
    session: Arc<Session>,
    mut unacked: Unacknowledged,
    acked: Arc<Acknowledged>,
    mut replies: mpsc::Receiver<Box<Reply>>,
    mut urgent: mpsc::Receiver<Box<Urgent>>,
) {
    loop {
        let written = tokio::select! {
            biased;
            Some(urgent) = urgent.recv() => match *urgent {
                Urgent::LastFrame(frame) => {
                    if writer.send(&frame).await.is_err() {
                        return;
                    }
                    if frame.is_offline() {
                        session.told();
                    }
                    break;
                }
                Urgent::Frame(frame) => writer.send(&frame).await,
                Urgent::Close(code, reason) => {
                    let _ = writer.close(code, reason).await;
                    return;
                }
            },
            up_to = acked.changed() => {
                unacked.note_acknowledged(up_to);
                Ok(())
            }
            Some(reply) = replies.recv() => match *reply {
                // The last frame is about to be written, and no answer may be written before it.
                Reply::Answer(_) if session.must_go() => continue,
                Reply::Answer(frame) => writer.send(&frame).await,
                // The session may get no more messages, so this message stays in the store for the
                // next session.
                Reply::Kept(..) if !session.is_active() => continue,
                Reply::Kept(message, receipt) => {
                    let seq = unacked.next_number();
                    let written = writer.send(&message_frame(&message, seq)).await;
                    if written.is_ok() {
                        unacked.note_written(seq, OnArrival::Kept(receipt));
                    }
                    written
                }
            },
            message = session.next_message(), if !unacked.is_full() => {
                let seq = unacked.next_number();
                let written = writer.send(&message_frame(message.message(), seq)).await;
                if written.is_ok() {
                    unacked.note_written(seq, OnArrival::Live(message));
                }
                written
            }
        };
        if written.is_err() {
            return;
        }
    }
    // This drop comes first, because it informs the senders that no acknowledgement will come. The
    // senders then store their messages.
    drop(unacked);
    // The last frame has been written, so replies that were queued earlier are dropped.
    drop(replies);
    while let Some(urgent) = urgent.recv().await {
        let written = match *urgent {
            Urgent::LastFrame(frame) | Urgent::Frame(frame) => writer.send(&frame).await,
            Urgent::Close(code, reason) => {
                let _ = writer.close(code, reason).await;
                return;
            }
        };
        if written.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_kickout::{Code, Uid};
    use distlock_memory::Memory;
    use tokio::time::timeout;

    use super::{
        super::{
            fixtures::{LONG, ReadingClient, log_in_device, start_kickout},
            frames::Outbound,
        },
        *,
    };
    use crate::inbox::RecordsInbox;

    #[tokio::test]
    async fn queued_answers_are_dropped_at_a_forced_end_and_written_at_a_logout() {
        let memory = Memory::default();
        let kick = start_kickout(&memory).await;
        let inbox: Arc<dyn OfflineStore> = Arc::new(RecordsInbox::new(memory.records()));
        let anna = Uid::new("anna").unwrap();
        for code in [None, Some(Code::Superseded)] {
            let session = Arc::new(log_in_device(&kick, &anna).await);
            let (client, read) = ReadingClient::up_to(9);
            let (outbox, writing) = Outbox::open(client, Arc::clone(&session), Arc::clone(&inbox));
            let (pong, written) = (Outbound::Pong.to_frame(), outbox.replies());
            written.send(pong.into()).await.unwrap();
            if let Some(code) = code {
                session.end(code);
            }
            session.logout().await;
            // The last frame is not queued yet.
            drop(written);
            let emptied = async {
                while outbox.replies.capacity() < MAX_REPLIES {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                () = writing => panic!("it waits for the last word"),
                emptied = timeout(LONG, emptied) => emptied.unwrap(),
            }
            assert_eq!(read.borrow().len(), usize::from(code.is_none()), "{code:?}");
        }
    }
}
