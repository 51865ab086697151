//! Messages from a client, and those that were kept for it.

use std::sync::Arc;

use distlock_core::Result;
use distlock_kickout::{Delivery, Message, Session, Uid};

use super::{
    Front,
    frames::{ErrorCode, Outbound, Outcome, SendFrame, message_frame},
    outbox::{Replies, Reply},
};
use crate::inbox::OfflineStore;

/// What a `message` frame holds beside the body and the id.
const ENVELOPE: usize = 512;
const MAX_ID: usize = 128;

/// Delivers a client's message and answers what became of it.
pub(super) async fn send(front: Front, session: Arc<Session>, frame: SendFrame, replies: Replies) {
    let body = frame.body.to_string();
    let reply = if session.check().is_err() {
        refuse(ErrorCode::Superseded, "the session is over")
    } else if frame.id.len() > MAX_ID {
        refuse(ErrorCode::BadValue, "the id is longer than 128 bytes")
    } else if body.len() + ENVELOPE > front.max_frame {
        refuse(ErrorCode::TooLong, "the body is too long to be delivered")
    } else {
        let message = Message {
            from: session.uid().clone(),
            id: frame.id,
            body,
        };
        let outcome = deliver(&front, &frame.to, &message)
            .await
            .unwrap_or_else(|error| {
                tracing::warn!(to = %frame.to, %error, "a message could not be delivered");
                Outcome::Failed
            });
        Outbound::Sent {
            id: &message.id,
            outcome,
        }
        .to_frame()
    };
    // A closed outbox is noticed by the conversation.
    let _ = replies.send(reply.into()).await;
}

fn refuse(code: ErrorCode, reason: &str) -> super::frames::Frame {
    Outbound::Error { code, reason }.to_frame()
}

async fn deliver(front: &Front, to: &Uid, message: &Message) -> Result<Outcome> {
    match front.kick.deliver(to, message.clone()).await? {
        Delivery::Delivered(_) => return Ok(Outcome::Delivered),
        Delivery::Offline => {}
        _ => return Ok(Outcome::Failed),
    }
    keep(front, to, message).await?;
    // Somebody may have logged in, and looked for kept messages, just before this one was kept. Or just after: then it is
    // handed out from there, and can not be had back.
    if front.kick.route(to).await?.is_none() || !front.inbox.withdraw(to, message).await? {
        return Ok(Outcome::Stored);
    }
    match front.kick.deliver(to, message.clone()).await? {
        Delivery::Delivered(_) => Ok(Outcome::Delivered),
        Delivery::Offline => {
            keep(front, to, message).await?;
            Ok(Outcome::Stored)
        }
        _ => Ok(Outcome::Failed),
    }
}

async fn keep(front: &Front, to: &Uid, message: &Message) -> Result<()> {
    front.inbox.keep(to, message).await?;
    front.kick.stored(to, &message.id);
    Ok(())
}

/// Hands out what was kept for an account before it logged in. A message is forgotten after it was written to the client: what
/// the last word of the session overtook, or a crash, waits for the next session. One that was written and not yet forgotten
/// then comes once more; its id tells.
pub(super) async fn hand_out_kept(
    inbox: Arc<dyn OfflineStore>,
    session: Arc<Session>,
    replies: Replies,
) {
    let handed_out = async {
        let kept = inbox.claim(session.uid()).await?;
        let mut receipts = Vec::with_capacity(kept.len());
        for message in &kept {
            let (reply, written) = Reply::with_receipt(message_frame(message));
            if session.check().is_err() || replies.send(reply).await.is_err() {
                break;
            }
            receipts.push(written);
        }
        let mut written = 0;
        for receipt in receipts {
            if receipt.await.is_err() {
                break;
            }
            written += 1;
        }
        if written > 0 {
            inbox.forget(session.uid(), &kept[..written]).await?;
        }
        Result::<()>::Ok(())
    };
    if let Err(error) = handed_out.await {
        tracing::warn!(uid = %session.uid(), %error, "kept messages could not be handed out");
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use async_trait::async_trait;
    use distlock_core::Store;
    use distlock_kickout::{Class, Device, KickOut, Login, LoginOutcome, NodeId};
    use distlock_memory::Memory;
    use tokio::{sync::watch, time::timeout};

    use super::{super::FrameWriter, super::frames::Frame, super::outbox::Outbox, *};
    use crate::inbox::RecordsInbox;

    const LONG: Duration = Duration::from_secs(30);

    /// A client that reads so many frames, and then no more.
    struct Reads {
        most: usize,
        frames: watch::Sender<usize>,
    }

    #[async_trait]
    impl FrameWriter for Reads {
        async fn send(&mut self, _: &Frame) -> io::Result<()> {
            if *self.frames.borrow() == self.most {
                std::future::pending::<()>().await;
            }
            self.frames.send_modify(|frames| *frames += 1);
            Ok(())
        }

        async fn close(&mut self, _: u16, _: &str) -> io::Result<()> {
            Ok(())
        }
    }

    fn message(number: usize) -> Message {
        let mut message = Message::new(Uid::new("otto").unwrap(), "hello");
        message.id = format!("m{number}");
        message
    }

    #[tokio::test]
    async fn what_was_not_written_is_kept() {
        let memory = Memory::default();
        let store = Store::new(memory.lock(), memory.records());
        let kick = KickOut::builder(store, NodeId::new("n1").unwrap());
        let kick = kick.start().await.unwrap();
        let anna = Uid::new("anna").unwrap();
        let inbox: Arc<dyn OfflineStore> = Arc::new(RecordsInbox::new(memory.records()));
        // More than wait in the outbox, so that some are queued and others are not.
        let messages: Vec<_> = (0..40).map(message).collect();
        for message in &messages {
            inbox.keep(&anna, message).await.unwrap();
        }
        let login = Login::new(
            anna.clone(),
            Device::new("d1").unwrap(),
            Class::new("pc").unwrap(),
        );
        let LoginOutcome::Admitted(session) = kick.login(login).await.unwrap() else {
            panic!("nobody else is there");
        };
        let session = Arc::new(session);
        let (frames, mut read) = watch::channel(0);
        let (outbox, writing) = Outbox::open(Reads { most: 3, frames }, Arc::clone(&session));
        let writing = tokio::spawn(writing);
        let handing_out = tokio::spawn(hand_out_kept(
            Arc::clone(&inbox),
            Arc::clone(&session),
            outbox.replies(),
        ));
        let three = read.wait_for(|read| *read == 3);
        timeout(LONG, three).await.unwrap().unwrap();
        // As at the end of a connection.
        writing.abort();
        timeout(LONG, handing_out).await.unwrap().unwrap();
        assert_eq!(inbox.claim(&anna).await.unwrap(), messages[3..]);
    }
}
