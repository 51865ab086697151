//! Messages from a client.
//!
//! This module checks each message before any part of the message leaves this node. A message of a
//! session that has ended must never be delivered.
//!
//! Messages to one account are delivered one after the other, so they keep their order. Messages to
//! different accounts are delivered at the same time: a receiver that does not acknowledge delays
//! the messages to itself alone.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use distlock_core::{Clock, Result};
use distlock_kickout::{Message, Rates, Session, Uid};
use futures_util::{
    future::{BoxFuture, FutureExt as _},
    stream::{FuturesUnordered, StreamExt as _},
};

use super::{
    FrontContext, MessageOutcome, Outcome, check_message, deliver,
    frames::{ErrorCode, Outbound, SendFrame},
    outbox::Replies,
};
use crate::{
    config::{GatewayConfig, MAX_MAY_SEND},
    services::Permission,
};

#[derive(Debug)]
pub(crate) struct SendLimits {
    /// The rate of each sender.
    senders: Rates<Uid>,
    /// The rate of each sender towards each receiver.
    pairs: Rates<(Uid, Uid)>,
}

impl SendLimits {
    pub(crate) fn from_config(config: &GatewayConfig, clock: &Arc<dyn Clock>) -> Self {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (rate, burst) = (number(config.send_rate), number(config.send_burst));
        let senders = Rates::new(rate, burst, Arc::clone(clock));
        let (rate, burst) = (number(config.pair_rate), number(config.pair_burst));
        let pairs = Rates::new(rate, burst, Arc::clone(clock));
        Self { senders, pairs }
    }

    /// Counts one message from one account to another against both limits.
    ///
    /// # Errors
    /// The time after which the sender may try again. So an account that sends too much to one
    /// receiver, or to many receivers, is slowed down.
    pub(super) fn take(&self, from: &Uid, to: &Uid) -> Result<(), Duration> {
        self.senders.take(from)?;
        self.pairs.take(&(from.clone(), to.clone()))
    }
}

/// Messages of one client that may be in progress. At this number the connection reads no further
/// message until one has its outcome. At the default `send_rate`, fewer are in progress even if no
/// receiver acknowledges: 50 a second for 0.6 s each.
const MAX_SENDS: usize = 64;
/// The bytes of their bodies. A single message of more is in progress alone.
const MAX_SEND_BYTES: usize = 256 * 1024;

/// The messages of one client that are in progress.
pub(super) struct SendsInProgress {
    front: Arc<FrontContext>,
    session: Arc<Session>,
    replies: Replies,
    /// For each account with a message in progress, the messages that wait behind it.
    waiting: HashMap<Uid, VecDeque<SendFrame>>,
    /// The first message to each account. The output is the account, and the bytes of the body.
    running: FuturesUnordered<BoxFuture<'static, (Uid, usize)>>,
    count: usize,
    bytes: usize,
}

impl SendsInProgress {
    pub(super) fn new(front: Arc<FrontContext>, session: Arc<Session>, replies: Replies) -> Self {
        Self {
            front,
            session,
            replies,
            waiting: HashMap::new(),
            running: FuturesUnordered::new(),
            count: 0,
            bytes: 0,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) const fn is_full(&self) -> bool {
        self.count >= MAX_SENDS || self.bytes >= MAX_SEND_BYTES
    }

    /// Adds a message of the client.
    pub(super) fn push(&mut self, frame: SendFrame) {
        self.count += 1;
        self.bytes += frame.body.get().len();
        if let Some(waiting) = self.waiting.get_mut(&frame.to) {
            waiting.push_back(frame);
        } else {
            self.waiting.insert(frame.to.clone(), VecDeque::new());
            self.start(frame);
        }
    }

    /// Waits until a message has its outcome. Without a message, the call never returns.
    ///
    /// Cancel safety: safe.
    pub(super) async fn next_done(&mut self) {
        let Some((to, bytes)) = self.running.next().await else {
            return std::future::pending().await;
        };
        self.count -= 1;
        self.bytes -= bytes;
        match self.waiting.get_mut(&to).and_then(VecDeque::pop_front) {
            Some(next) => self.start(next),
            None => drop(self.waiting.remove(&to)),
        }
    }

    /// Brings the messages in progress to their end after the connection was left. A message whose
    /// delivery has begun is delivered or stored. The others are refused once the session is over.
    pub(super) async fn finish(mut self) {
        while !self.is_empty() {
            self.next_done().await;
        }
    }

    fn start(&self, frame: SendFrame) {
        let (to, bytes) = (frame.to.clone(), frame.body.get().len());
        let answer = answer_send(
            self.front.clone(),
            Arc::clone(&self.session),
            frame,
            self.replies.clone(),
        );
        self.running.push(answer.map(move |()| (to, bytes)).boxed());
    }
}

/// Delivers a client's message and answers with the outcome.
async fn answer_send(
    front: Arc<FrontContext>,
    session: Arc<Session>,
    frame: SendFrame,
    replies: Replies,
) {
    let message = Message {
        id: frame.id,
        to_device: frame.to_device,
        to_class: frame.to_class,
        ..Message::new(session.uid().clone(), frame.body.get())
    };
    let reply = match send_refusal(&front, &session, &frame.to, &message).await {
        Some(refusal) => Outbound::Error {
            code: refusal.code,
            reason: &refusal.reason,
            id: Some(&message.id),
            retry_after_ms: refusal.retry_after_ms,
        }
        .to_frame(),
        None => {
            let outcome = deliver(&front, &frame.to, &message).await;
            let outcome = outcome.unwrap_or_else(|error| {
                tracing::warn!(to = %frame.to, %error, "a message could not be delivered");
                MessageOutcome::without_devices(Outcome::Failed)
            });
            Outbound::Sent {
                id: &message.id,
                outcome: outcome.outcome,
                devices: &outcome.devices,
            }
            .to_frame()
        }
    };
    // A send fails if the outbox is closed, and the connection's own loop notices the closed
    // outbox.
    let _ = replies.send(reply.into()).await;
}

/// The reason why a message is refused.
struct SendRefusal {
    code: ErrorCode,
    reason: Cow<'static, str>,
    retry_after_ms: Option<u64>,
}

impl SendRefusal {
    fn new(code: ErrorCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            reason: reason.into(),
            retry_after_ms: None,
        }
    }
}

/// Returns the reason why a client's message must be refused, if there is one. The most expensive
/// check comes last.
async fn send_refusal(
    front: &FrontContext,
    session: &Session,
    to: &Uid,
    message: &Message,
) -> Option<SendRefusal> {
    if session.check().is_err() {
        return Some(SendRefusal::new(
            ErrorCode::Superseded,
            "the session is over",
        ));
    }
    if let Err((code, reason)) = check_message(message, front.max_frame) {
        return Some(SendRefusal::new(code, reason));
    }
    if let Err(retry_after) = front.limits.take(session.uid(), to) {
        return Some(SendRefusal {
            retry_after_ms: u64::try_from(retry_after.as_millis()).ok(),
            ..SendRefusal::new(ErrorCode::Throttled, "too many messages")
        });
    }
    let may_send = front.may_send.as_ref()?;
    match front
        .within(MAX_MAY_SEND, may_send.may_send(session.uid(), to))
        .await
    {
        Some(Ok(Permission::Granted)) => {}
        Some(Ok(Permission::Refused(reason))) => {
            return Some(SendRefusal::new(ErrorCode::NotAllowed, reason));
        }
        unknown => {
            let error = unknown.and_then(Result::err);
            tracing::warn!(
                %to, ?error,
                "the check of messages did not answer, so a message was refused"
            );
            let reason = "it is not known now whether this may be sent: try again later";
            return Some(SendRefusal::new(ErrorCode::Unavailable, reason));
        }
    }
    // The check of messages may have taken long, and the session may have ended meanwhile.
    let over = session.check().is_err();
    over.then(|| SendRefusal::new(ErrorCode::Superseded, "the session is over"))
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use distlock_kickout::KickOut;
    use distlock_memory::Memory;
    use tokio::{
        sync::{Mutex, Notify},
        time::timeout,
    };
    use tokio_util::sync::CancellationToken;

    use super::{
        super::{
            fixtures::{
                LONG, ReadingClient, front_context, log_in_device, make_known, start_kickout,
            },
            outbox::Outbox,
        },
        *,
    };
    use crate::inbox::{OfflineStore, RecordsInbox};

    /// The receiver logs in while a message is being stored, and the withdrawal takes a while.
    #[derive(Debug)]
    struct SlowInbox {
        inbox: RecordsInbox,
        kick: KickOut,
        receiver: Mutex<Option<Session>>,
        taken: Notify,
        go_on: CancellationToken,
    }

    #[async_trait]
    impl OfflineStore for SlowInbox {
        async fn keep(&self, uid: &Uid, message: &Message) -> Result<()> {
            self.inbox.keep(uid, message).await?;
            let mut receiver = self.receiver.lock().await;
            if receiver.is_none() {
                *receiver = Some(log_in_device(&self.kick, uid).await);
            }
            Ok(())
        }

        async fn claim(&self, uid: &Uid) -> Result<Vec<Message>> {
            self.inbox.claim(uid).await
        }

        async fn forget(&self, uid: &Uid, messages: &[Message]) -> Result<()> {
            self.inbox.forget(uid, messages).await
        }

        async fn withdraw(&self, uid: &Uid, message: &Message) -> Result<bool> {
            let there = self.inbox.withdraw(uid, message).await;
            self.taken.notify_one();
            self.go_on.cancelled().await;
            there
        }

        async fn waiting(&self, uid: &Uid) -> Result<usize> {
            self.inbox.waiting(uid).await
        }
    }

    #[tokio::test]
    async fn a_withdrawn_message_is_stored_again_after_its_sender_left() {
        let memory = Memory::default();
        let kick = start_kickout(&memory).await;
        let (anna, otto) = (Uid::new("anna").unwrap(), Uid::new("otto").unwrap());
        make_known(&kick, &anna).await;
        let slow = Arc::new(SlowInbox {
            inbox: RecordsInbox::new(memory.records()),
            kick: kick.clone(),
            receiver: Mutex::default(),
            taken: Notify::new(),
            go_on: CancellationToken::new(),
        });
        let front = front_context(&kick, Arc::clone(&slow) as Arc<dyn OfflineStore>);
        let connections = front.connections.clone();
        let sender = Arc::new(log_in_device(&kick, &otto).await);
        let (client, _) = ReadingClient::up_to(0);
        let inbox: Arc<dyn OfflineStore> = Arc::new(RecordsInbox::new(memory.records()));
        let (outbox, _writing) = Outbox::open(client, Arc::clone(&sender), inbox);
        let frame = SendFrame {
            to: anna.clone(),
            to_device: None,
            to_class: None,
            body: serde_json::value::to_raw_value("hello").unwrap(),
            id: "m1".into(),
        };
        let sending = tokio::spawn(answer_send(front, sender, frame, outbox.replies()));
        timeout(LONG, slow.taken.notified()).await.unwrap();
        sending.abort();
        slow.go_on.cancel();
        connections.close();
        timeout(LONG, connections.wait()).await.unwrap();
        // The receiver reads nothing, so the message is stored again.
        let kept = slow.inbox.claim(&anna).await.unwrap();
        assert_eq!(kept.len(), 1, "{kept:?}");
    }
}
