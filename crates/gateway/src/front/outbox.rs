//! The writing side of a session's connection: replies and messages in order, and a reserved place for the last word.

use std::{future::Future, sync::Arc};

use distlock_kickout::Session;
use tokio::sync::{mpsc, oneshot, watch};

use super::{FrameWriter, frames::Frame, frames::message_frame};

/// Replies that may wait. A client that does not read its replies is not read either.
const REPLIES: usize = 16;
/// Last word, refusals after it, and the closing.
const URGENT: usize = 8;

/// A frame for the client, and whoever wants to know that it was written.
#[derive(Debug)]
pub(super) struct Reply {
    frame: Frame,
    receipt: Option<oneshot::Sender<()>>,
}

impl Reply {
    /// A reply, and what is told when it was written; when it never will be, that is closed.
    pub(super) fn with_receipt(frame: Frame) -> (Self, oneshot::Receiver<()>) {
        let (receipt, written) = oneshot::channel();
        let receipt = Some(receipt);
        (Self { frame, receipt }, written)
    }
}

impl From<Frame> for Reply {
    fn from(frame: Frame) -> Self {
        Self {
            frame,
            receipt: None,
        }
    }
}

/// Where replies go.
pub(super) type Replies = mpsc::Sender<Reply>;

/// Where frames for the client go.
#[derive(Debug)]
pub(super) struct Outbox {
    replies: Replies,
    urgent: mpsc::Sender<Urgent>,
    alive: watch::Receiver<()>,
}

/// What overtakes replies and messages.
#[derive(Debug)]
pub(super) enum Urgent {
    /// The last word of the session: nothing queued before it is written any more.
    Last(Frame),
    /// A refusal after the last word.
    Frame(Frame),
    /// This side closes.
    Close(u16, &'static str),
}

impl Outbox {
    /// An outbox and the task that empties it.
    pub(super) fn open<W: FrameWriter>(
        writer: W,
        session: Arc<Session>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (replies, replies_out) = mpsc::channel(REPLIES);
        let (urgent, urgent_out) = mpsc::channel(URGENT);
        let (living, alive) = watch::channel(());
        let outbox = Self {
            replies,
            urgent,
            alive,
        };
        let writing = async move {
            let _living = living;
            write(writer, session, replies_out, urgent_out).await;
        };
        (outbox, writing)
    }

    pub(super) fn replies(&self) -> Replies {
        self.replies.clone()
    }

    /// Queues what overtakes the rest. The last word and the closing always find a place; refusals beyond the places are dropped.
    pub(super) fn urgent(&self, urgent: Urgent) {
        if matches!(urgent, Urgent::Frame(_)) && self.urgent.capacity() <= 1 {
            return;
        }
        let _ = self.urgent.try_send(urgent);
    }

    /// Waits until nothing will be written any more: this side has closed, or writing has failed.
    pub(super) async fn over(&self) {
        let mut alive = self.alive.clone();
        // Nothing is ever sent: only the end of the other side is of interest.
        while alive.changed().await.is_ok() {}
    }
}

async fn write<W: FrameWriter>(
    mut writer: W,
    session: Arc<Session>,
    mut replies: mpsc::Receiver<Reply>,
    mut urgent: mpsc::Receiver<Urgent>,
) {
    loop {
        let written = tokio::select! {
            biased;
            Some(urgent) = urgent.recv() => match urgent {
                Urgent::Last(frame) => {
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
            Some(reply) = replies.recv() => {
                let void = match reply.receipt {
                    // A kept message: what the session may not get any more waits for the next one.
                    Some(_) => !session.is_active(),
                    // The last word is on its way, and nothing comes before it.
                    None => session.must_go(),
                };
                if void {
                    continue;
                }
                let written = writer.send(&reply.frame).await;
                if let (Ok(()), Some(receipt)) = (&written, reply.receipt) {
                    let _ = receipt.send(());
                }
                written
            }
            message = session.next_message() => {
                let written = writer.send(&message_frame(message.message())).await;
                if written.is_ok() {
                    message.delivered();
                }
                written
            }
        };
        if written.is_err() {
            return;
        }
    }
    // After the last word: what was queued before is void.
    drop(replies);
    while let Some(urgent) = urgent.recv().await {
        let written = match urgent {
            Urgent::Last(frame) | Urgent::Frame(frame) => writer.send(&frame).await,
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
            frames::Outbound,
            stage::{LONG, Reads, admitted, kick},
        },
        *,
    };

    #[tokio::test]
    async fn answers_that_wait_when_the_session_ends_are_void_unless_its_client_left() {
        let kick = kick(&Memory::default()).await;
        let anna = Uid::new("anna").unwrap();
        for code in [None, Some(Code::Superseded)] {
            let session = Arc::new(admitted(&kick, &anna).await);
            let (client, read) = Reads::up_to(9);
            let (outbox, writing) = Outbox::open(client, Arc::clone(&session));
            let (pong, written) = (Outbound::Pong.to_frame(), outbox.replies());
            written.send(pong.into()).await.unwrap();
            if let Some(code) = code {
                session.end(code);
            }
            session.logout().await;
            // The last word is not there yet.
            drop(written);
            let emptied = async {
                while outbox.replies.capacity() < REPLIES {
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
