//! Delivers the messages that were stored for an account, to a session that has just begun.
//!
//! Invariant of this module: a message leaves the store only after it has arrived. A message that
//! only waits in a queue must never be removed from the store.

use std::{sync::Arc, time::Duration};

use distlock_core::Result;
use distlock_kickout::Session;

use super::{
    FrontContext,
    outbox::{Replies, Reply},
};

/// Time to wait for further receipts, so that the messages that have arrived are removed from the
/// store in one write.
const FORGET_TOGETHER_WAIT: Duration = Duration::from_millis(500);

/// Delivers the messages that were stored for an account, or for this device of the account. A
/// message is removed from the store after it has arrived, as far as its client can tell. A message
/// that was not written before the session's last frame, or before a crash, waits for the next
/// session. A message that arrived and was not yet removed is delivered once more; the client
/// recognises the message by its id.
pub(super) async fn deliver_kept(
    front: Arc<FrontContext>,
    session: Arc<Session>,
    replies: Replies,
) {
    let inbox = &front.inbox;
    let handed_out = async {
        let mut kept = inbox.claim(session.uid()).await?;
        kept.retain(|message| message.addresses(session.device(), session.class()));
        let mut receipts = Vec::with_capacity(kept.len());
        for message in &kept {
            let (reply, arrived) = Reply::with_receipt(message.clone());
            if !session.is_active() || replies.send(reply).await.is_err() {
                break;
            }
            receipts.push(arrived);
        }
        // This task must not keep the outbox open.
        drop(replies);
        let mut kept = &kept[..receipts.len()];
        let mut receipts = receipts.into_iter();
        while let Some(first) = receipts.next() {
            if first.await.is_err() {
                break;
            }
            // Messages that arrive in quick succession are removed from the store together, which
            // saves writes.
            let mut arrived = 1;
            let more = async {
                for receipt in receipts.by_ref() {
                    if receipt.await.is_err() {
                        return;
                    }
                    arrived += 1;
                }
            };
            front.within(FORGET_TOGETHER_WAIT, more).await;
            let (these, others) = kept.split_at(arrived);
            inbox.forget(session.uid(), these).await?;
            kept = others;
        }
        Result::<()>::Ok(())
    };
    if let Err(error) = handed_out.await {
        tracing::warn!(
            uid = %session.uid(), %error,
            "stored messages could not be delivered; they wait for the next session"
        );
    }
}

#[cfg(test)]
mod tests {
    use distlock_kickout::{Code, Uid};
    use distlock_memory::Memory;
    use tokio::time::timeout;
    use tokio_util::task::AbortOnDropHandle;

    use super::{
        super::{
            fixtures::{
                LONG, ReadingClient, front_context, log_in_device, numbered_message, start_kickout,
            },
            outbox::Outbox,
        },
        *,
    };
    use crate::inbox::{OfflineStore, RecordsInbox};

    #[tokio::test]
    async fn messages_that_were_not_written_stay_stored() {
        let memory = Memory::default();
        let kick = start_kickout(&memory).await;
        let anna = Uid::new("anna").unwrap();
        let inbox: Arc<dyn OfflineStore> = Arc::new(RecordsInbox::new(memory.records()));
        // These are more messages than the outbox can queue, so that some messages are queued and
        // others are not.
        let messages: Vec<_> = (0..40).map(numbered_message).collect();
        for message in &messages {
            inbox.keep(&anna, message).await.unwrap();
        }
        let session = Arc::new(log_in_device(&kick, &anna).await);
        let (client, mut read) = ReadingClient::up_to(3);
        let (outbox, writing) = Outbox::open(client, Arc::clone(&session), Arc::clone(&inbox));
        let writing = tokio::spawn(writing);
        let handing_out = tokio::spawn(deliver_kept(
            front_context(&kick, Arc::clone(&inbox)),
            Arc::clone(&session),
            outbox.replies(),
        ));
        let three = read.wait_for(|read| read.len() == 3);
        timeout(LONG, three).await.unwrap().unwrap();
        // The end of a connection aborts its writer in the same way.
        writing.abort();
        timeout(LONG, handing_out).await.unwrap().unwrap();
        assert_eq!(inbox.claim(&anna).await.unwrap(), messages[3..]);
    }

    #[tokio::test]
    async fn queued_messages_stay_stored_when_the_session_ends() {
        let memory = Memory::default();
        let kick = start_kickout(&memory).await;
        let anna = Uid::new("anna").unwrap();
        let inbox: Arc<dyn OfflineStore> = Arc::new(RecordsInbox::new(memory.records()));
        let messages: Vec<_> = (0..10).map(numbered_message).collect();
        for message in &messages {
            inbox.keep(&anna, message).await.unwrap();
        }
        let session = Arc::new(log_in_device(&kick, &anna).await);
        let (client, read) = ReadingClient::up_to(99);
        let (outbox, writing) = Outbox::open(client, Arc::clone(&session), Arc::clone(&inbox));
        let replies = outbox.replies();
        let free = replies.capacity();
        let handing_out = tokio::spawn(deliver_kept(
            front_context(&kick, Arc::clone(&inbox)),
            Arc::clone(&session),
            outbox.replies(),
        ));
        let all_wait = async {
            while replies.capacity() > free - messages.len() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, all_wait).await.unwrap();
        session.end(Code::Superseded);
        // The last frame is not queued yet.
        let _writing = AbortOnDropHandle::new(tokio::spawn(writing));
        timeout(LONG, handing_out).await.unwrap().unwrap();
        assert!(read.borrow().is_empty());
        assert_eq!(inbox.claim(&anna).await.unwrap(), messages);
    }
}
