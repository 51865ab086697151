//! Messages from a client, and those that were kept for it.

use std::sync::Arc;

use distlock_core::Result;
use distlock_kickout::{Delivery, Message, Session, Uid};

use super::{
    Front,
    frames::{ErrorCode, Outbound, Outcome, SendFrame, message_frame},
    machine::Replies,
};

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
    let _ = replies.send(reply).await;
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

/// Hands out what was kept for an account before it logged in. A message is forgotten after it was queued for the client, so
/// a crash in between repeats it rather than losing it; its id tells.
pub(super) async fn hand_out_kept(front: Front, session: Arc<Session>, replies: Replies) {
    let handed_out = async {
        let kept = front.inbox.claim(session.uid()).await?;
        let mut sent = 0;
        for message in &kept {
            if session.check().is_err() || replies.send(message_frame(message)).await.is_err() {
                break;
            }
            sent += 1;
        }
        if sent > 0 {
            front.inbox.forget(session.uid(), &kept[..sent]).await?;
        }
        Result::<()>::Ok(())
    };
    if let Err(error) = handed_out.await {
        tracing::warn!(uid = %session.uid(), %error, "kept messages could not be handed out");
    }
}
