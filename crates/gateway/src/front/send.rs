//! Messages from a client, and those that were kept for it.

use std::{borrow::Cow, sync::Arc, time::Duration};

use distlock_core::Result;
use distlock_kickout::{Delivery, Location, Message, Receipt, Session, Uid};

use super::{
    Front,
    frames::{DeviceOutcome, ErrorCode, Outbound, Outcome, SendFrame, message_frame, sent_frame},
    machine::within,
    outbox::{Replies, Reply},
};
use crate::{
    may_send::{MAX_MAY_SEND, Permission},
    metering,
};

/// More than a `message` frame holds beside the body, with a sender and an id of which every character must be escaped.
const ENVELOPE: usize = 2048;
const MAX_ID: usize = 128;
/// How long a message is taken back again and again for a receiver that is coming in: longer than a login takes to tell older
/// sessions.
const COMING_IN: Duration = Duration::from_millis(1500);
const PAUSE: Duration = Duration::from_millis(50);
/// How long further kept messages are waited for before those that have arrived are forgotten.
const TOGETHER: Duration = Duration::from_millis(500);

/// What became of a message, and for each device.
pub(crate) struct Fate {
    pub(crate) outcome: Outcome,
    pub(crate) devices: Vec<DeviceOutcome>,
}

impl Fate {
    /// For an account of which no device is there.
    const fn nobody(outcome: Outcome) -> Self {
        Self {
            outcome,
            devices: Vec::new(),
        }
    }

    /// What a delivery came to, with `kept` where a message was kept for its device.
    fn of(receipts: &[Receipt], kept: Outcome) -> Self {
        let devices: Vec<_> = receipts
            .iter()
            .map(|it| DeviceOutcome {
                device: it.location.device.clone(),
                class: it.location.class.clone(),
                outcome: match &it.delivery {
                    Delivery::Delivered => Outcome::Delivered,
                    Delivery::Written => Outcome::Written,
                    Delivery::Unacknowledged | Delivery::Missed => kept,
                    _ => Outcome::Failed,
                },
            })
            .collect();
        Self {
            outcome: devices.iter().map(|it| it.outcome).max().unwrap_or(kept),
            devices,
        }
    }
}

/// Delivers a client's message and answers what became of it, in the client's `version` of the
/// protocol.
pub(super) async fn send(
    front: Front,
    session: Arc<Session>,
    version: u64,
    frame: SendFrame,
    replies: Replies,
) {
    let message = Message {
        id: frame.id,
        to_device: frame.to_device,
        to_class: frame.to_class,
        ..Message::new(session.uid().clone(), frame.body.get())
    };
    let reply = match refusal(&front, &session, &frame.to, &message).await {
        Some(refusal) => Outbound::Error {
            code: refusal.code,
            reason: &refusal.reason,
            id: Some(&message.id),
            retry_after_ms: refusal.retry_after_ms,
        }
        .to_frame(),
        None => {
            let fate = deliver(&front, &frame.to, &message).await;
            let fate = fate.unwrap_or_else(|error| {
                tracing::warn!(to = %frame.to, %error, "a message could not be delivered");
                Fate::nobody(Outcome::Failed)
            });
            sent_frame(&message.id, fate.outcome, &fate.devices, version)
        }
    };
    // A closed outbox is noticed by the conversation.
    let _ = replies.send(reply.into()).await;
}

/// Why a message goes nowhere.
struct Refusal {
    code: ErrorCode,
    reason: Cow<'static, str>,
    retry_after_ms: Option<u64>,
}

impl Refusal {
    fn new(code: ErrorCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            reason: reason.into(),
            retry_after_ms: None,
        }
    }
}

/// Why a client's message goes nowhere, if it does not. What costs most is asked last.
async fn refusal(front: &Front, session: &Session, to: &Uid, message: &Message) -> Option<Refusal> {
    if session.check().is_err() {
        return Some(Refusal::new(ErrorCode::Superseded, "the session is over"));
    }
    if let Err((code, reason)) = check(message, front.max_frame) {
        return Some(Refusal::new(code, reason));
    }
    if let Err(retry_after) = front.limits.take(session.uid(), to) {
        return Some(Refusal {
            retry_after_ms: u64::try_from(retry_after.as_millis()).ok(),
            ..Refusal::new(ErrorCode::Throttled, "too many messages")
        });
    }
    let may_send = front.may_send.as_ref()?;
    match within(front, MAX_MAY_SEND, may_send.may_send(session.uid(), to)).await {
        Some(Ok(Permission::Granted)) => {}
        Some(Ok(Permission::Refused(reason))) => {
            return Some(Refusal::new(ErrorCode::NotAllowed, reason));
        }
        unknown => {
            let error = unknown.and_then(Result::err);
            tracing::warn!(%to, ?error, "nobody says whether a message may be sent");
            let reason = "nobody says whether this may be sent";
            return Some(Refusal::new(ErrorCode::Unavailable, reason));
        }
    }
    // That may have taken its time.
    let over = session.check().is_err();
    over.then(|| Refusal::new(ErrorCode::Superseded, "the session is over"))
}

/// Whether a message may be sent as it is; or what is wrong with it.
pub(crate) fn check(
    message: &Message,
    max_frame: usize,
) -> std::result::Result<(), (ErrorCode, &'static str)> {
    if message.id.len() > MAX_ID {
        Err((ErrorCode::BadValue, "the id is longer than 128 bytes"))
    } else if is_too_long(message, max_frame) {
        Err((ErrorCode::TooLong, "the body is too long to be delivered"))
    } else {
        Ok(())
    }
}

/// Whether its receiver could not be sent it: measured as it will be written, where it could matter.
fn is_too_long(message: &Message, max_frame: usize) -> bool {
    message.body.len() + ENVELOPE > max_frame
        && message_frame(message, Some(u64::MAX)).json.len() > max_frame
}

/// Delivers a message, or keeps it.
///
/// Cancel safety: what was taken in hand goes on; its outcome is not known then.
pub(crate) async fn deliver(front: &Front, to: &Uid, message: &Message) -> Result<Fate> {
    let fate = deliver_or_keep(front, to, message).await;
    let outcome = fate.as_ref().map_or(Outcome::Failed, |fate| fate.outcome);
    metering::message(outcome.name());
    fate
}

async fn deliver_or_keep(front: &Front, to: &Uid, message: &Message) -> Result<Fate> {
    let receipts = front.kick.deliver(to, message.clone()).await?;
    if !receipts.is_empty() && !receipts.iter().any(|it| it.delivery.is_to_be_kept()) {
        return Ok(Fate::of(&receipts, Outcome::Failed));
    }
    // Whoever never logged in may be anybody that a client thought up, and what is kept for them would stay for ever.
    if receipts.is_empty() && !front.kick.knows(to).await? {
        return Ok(Fate::nobody(Outcome::Failed));
    }
    // On its own: when the sender goes away meanwhile, what was taken back must not be lost on its way to its receiver.
    let (tracker, front) = (front.connections.clone(), front.clone());
    let (to, message) = (to.clone(), message.clone());
    let kept =
        tracker.spawn(async move { keep_or_hand_over(&front, &to, &message, receipts).await });
    kept.await.unwrap_or(Ok(Fate::nobody(Outcome::Failed)))
}

/// Keeps a message for those who did not get it. `receipts` says what its delivery came to.
async fn keep_or_hand_over(
    front: &Front,
    to: &Uid,
    message: &Message,
    mut receipts: Vec<Receipt>,
) -> Result<Fate> {
    let until = front.clock.now() + COMING_IN;
    for round in 1.. {
        match &receipts[..] {
            [] => {}
            [only] if only.delivery.is_to_be_kept() => {}
            [_] => return Ok(Fate::of(&receipts, Outcome::Failed)),
            _ => return Ok(keep_for_each(front, to, message, &receipts).await),
        }
        keep(front, to, message).await?;
        let stored = Fate::of(&receipts, Outcome::Stored);
        let waits_for_it = |now: &Location| {
            let it = receipts.first();
            it.is_some_and(|it| {
                it.delivery == Delivery::Unacknowledged && it.location.key == now.key
            })
        };
        // Somebody may have logged in, and looked for kept messages, just before this one was kept. Or just after: then it is
        // handed out from there, and can not be had back.
        let current = front.kick.addressed(to, message).await?;
        if current.iter().all(waits_for_it)
            || (round > 1 && front.clock.now() >= until)
            || !front.inbox.withdraw(to, message).await?
        {
            return Ok(stored);
        }
        receipts = front.kick.deliver(to, message.clone()).await?;
        // Its login may not be through yet: it looks for kept messages when it is, and that may be
        // before this one is kept.
        if receipts.iter().all(|it| it.delivery == Delivery::Missed) {
            front.clock.sleep(PAUSE * round).await;
        }
    }
    unreachable!("the rounds end with an answer")
}

/// Of several devices some have the message: it is kept for each of the others.
async fn keep_for_each(front: &Front, to: &Uid, message: &Message, receipts: &[Receipt]) -> Fate {
    let mut fate = Fate::of(receipts, Outcome::Stored);
    for (receipt, device) in receipts.iter().zip(&mut fate.devices) {
        if !receipt.delivery.is_to_be_kept() {
            continue;
        }
        let copy = message.for_device(&device.device);
        if let Err(error) = keep(front, to, &copy).await {
            tracing::warn!(%to, %error, "a message could not be kept for a device");
            device.outcome = Outcome::Failed;
            fate.outcome = Outcome::Failed;
        }
    }
    fate
}

async fn keep(front: &Front, to: &Uid, message: &Message) -> Result<()> {
    front.inbox.keep(to, message).await?;
    front.kick.stored(to, message);
    Ok(())
}

/// Hands out what was kept for an account, or for this device of it. A message is forgotten after
/// it has arrived, as far as its client can tell: what the last word of the session overtook, or a
/// crash, waits for the next session. One that has arrived and is not yet forgotten then comes once
/// more; its id tells.
pub(super) async fn hand_out_kept(front: Front, session: Arc<Session>, replies: Replies) {
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
        // The outbox may go on without this task.
        drop(replies);
        let mut kept = &kept[..receipts.len()];
        let mut receipts = receipts.into_iter();
        while let Some(first) = receipts.next() {
            if first.await.is_err() {
                break;
            }
            // Those that arrive one after the other are forgotten together.
            let mut arrived = 1;
            let more = async {
                for receipt in receipts.by_ref() {
                    if receipt.await.is_err() {
                        return;
                    }
                    arrived += 1;
                }
            };
            within(&front, TOGETHER, more).await;
            let (these, others) = kept.split_at(arrived);
            inbox.forget(session.uid(), these).await?;
            kept = others;
        }
        Result::<()>::Ok(())
    };
    if let Err(error) = handed_out.await {
        tracing::warn!(uid = %session.uid(), %error, "kept messages could not be handed out");
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use distlock_kickout::{Code, KickOut};
    use distlock_memory::Memory;
    use tokio::{
        sync::{Mutex, Notify, mpsc},
        time::timeout,
    };
    use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

    use super::{
        super::{
            outbox::Outbox,
            stage::{LONG, Reads, admitted, front, kick},
        },
        *,
    };
    use crate::inbox::{OfflineStore, RecordsInbox};

    fn message(number: usize) -> Message {
        let mut message = Message::new(Uid::new("otto").unwrap(), "hello");
        message.id = format!("m{number}");
        message
    }

    #[tokio::test]
    async fn what_was_not_written_is_kept() {
        let memory = Memory::default();
        let kick = kick(&memory).await;
        let anna = Uid::new("anna").unwrap();
        let inbox: Arc<dyn OfflineStore> = Arc::new(RecordsInbox::new(memory.records()));
        // More than wait in the outbox, so that some are queued and others are not.
        let messages: Vec<_> = (0..40).map(message).collect();
        for message in &messages {
            inbox.keep(&anna, message).await.unwrap();
        }
        let session = Arc::new(admitted(&kick, &anna).await);
        let (client, mut read) = Reads::up_to(3);
        let (outbox, writing) = Outbox::open(client, Arc::clone(&session), Arc::clone(&inbox));
        let writing = tokio::spawn(writing);
        let handing_out = tokio::spawn(hand_out_kept(
            front(&kick, Arc::clone(&inbox)),
            Arc::clone(&session),
            outbox.replies(),
        ));
        let three = read.wait_for(|read| read.len() == 3);
        timeout(LONG, three).await.unwrap().unwrap();
        // As at the end of a connection.
        writing.abort();
        timeout(LONG, handing_out).await.unwrap().unwrap();
        assert_eq!(inbox.claim(&anna).await.unwrap(), messages[3..]);
    }

    #[tokio::test]
    async fn what_waits_when_the_session_ends_is_kept() {
        let memory = Memory::default();
        let kick = kick(&memory).await;
        let anna = Uid::new("anna").unwrap();
        let inbox: Arc<dyn OfflineStore> = Arc::new(RecordsInbox::new(memory.records()));
        let messages: Vec<_> = (0..10).map(message).collect();
        for message in &messages {
            inbox.keep(&anna, message).await.unwrap();
        }
        let session = Arc::new(admitted(&kick, &anna).await);
        let (client, read) = Reads::up_to(99);
        let (outbox, writing) = Outbox::open(client, Arc::clone(&session), Arc::clone(&inbox));
        let replies = outbox.replies();
        let free = replies.capacity();
        let handing_out = tokio::spawn(hand_out_kept(
            front(&kick, Arc::clone(&inbox)),
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
        // The last word is not there yet.
        let _writing = AbortOnDropHandle::new(tokio::spawn(writing));
        timeout(LONG, handing_out).await.unwrap().unwrap();
        assert!(read.borrow().is_empty());
        assert_eq!(inbox.claim(&anna).await.unwrap(), messages);
    }

    #[test]
    fn a_message_is_measured_as_it_will_be_written() {
        let mut message = message(1);
        message.from = Uid::new("\"".repeat(128)).unwrap();
        message.id = "\u{1}".repeat(MAX_ID);
        for length in (64_000..65_535).step_by(100) {
            message.body = format!("\"{}\"", "x".repeat(length));
            let frame = message_frame(&message, Some(u64::MAX)).json.len();
            assert_eq!(is_too_long(&message, 65_535), frame > 65_535, "{length}");
        }
        message.from = Uid::new("otto").unwrap();
        message.id = "m1".into();
        message.body = format!("\"{}\"", "x".repeat(400));
        assert!(!is_too_long(&message, 512), "it fits the shortest limit");
    }

    /// Its receiver logs in just as a message is kept, and giving that back takes a while.
    #[derive(Debug)]
    struct Slow {
        inbox: RecordsInbox,
        kick: KickOut,
        receiver: Mutex<Option<Session>>,
        taken: Notify,
        go_on: CancellationToken,
    }

    #[async_trait]
    impl OfflineStore for Slow {
        async fn keep(&self, uid: &Uid, message: &Message) -> Result<()> {
            self.inbox.keep(uid, message).await?;
            let mut receiver = self.receiver.lock().await;
            if receiver.is_none() {
                *receiver = Some(admitted(&self.kick, uid).await);
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
    }

    /// From now on messages for the account are kept.
    async fn make_known(kick: &KickOut, uid: &Uid) {
        admitted(kick, uid).await.logout().await;
    }

    #[tokio::test]
    async fn a_message_that_was_taken_back_is_not_lost_with_its_sender() {
        let memory = Memory::default();
        let kick = kick(&memory).await;
        let (anna, otto) = (Uid::new("anna").unwrap(), Uid::new("otto").unwrap());
        make_known(&kick, &anna).await;
        let slow = Arc::new(Slow {
            inbox: RecordsInbox::new(memory.records()),
            kick: kick.clone(),
            receiver: Mutex::default(),
            taken: Notify::new(),
            go_on: CancellationToken::new(),
        });
        let front = front(&kick, Arc::clone(&slow) as Arc<dyn OfflineStore>);
        let connections = front.connections.clone();
        let sender = Arc::new(admitted(&kick, &otto).await);
        let (client, _) = Reads::up_to(0);
        let inbox: Arc<dyn OfflineStore> = Arc::new(RecordsInbox::new(memory.records()));
        let (outbox, _writing) = Outbox::open(client, Arc::clone(&sender), inbox);
        let frame = SendFrame {
            to: anna.clone(),
            to_device: None,
            to_class: None,
            body: serde_json::value::to_raw_value("hello").unwrap(),
            id: "m1".into(),
        };
        let sending = tokio::spawn(send(front, sender, 1, frame, outbox.replies()));
        timeout(LONG, slow.taken.notified()).await.unwrap();
        sending.abort();
        slow.go_on.cancel();
        connections.close();
        timeout(LONG, connections.wait()).await.unwrap();
        // Its receiver reads nothing, so it is kept again.
        let kept = slow.inbox.claim(&anna).await.unwrap();
        assert_eq!(kept.len(), 1, "{kept:?}");
    }

    /// Its receiver logs in just as a message is kept, and begins to receive only just before it is kept for the second time.
    #[derive(Debug)]
    struct Late {
        inbox: RecordsInbox,
        kick: KickOut,
        receiver: Mutex<Vec<Arc<Session>>>,
        received: mpsc::UnboundedSender<String>,
    }

    #[async_trait]
    impl OfflineStore for Late {
        async fn keep(&self, uid: &Uid, message: &Message) -> Result<()> {
            let mut receiver = self.receiver.lock().await;
            if let [session] = &receiver[..] {
                let (session, received) = (Arc::clone(session), self.received.clone());
                assert!(self.claim(uid).await?.is_empty());
                receiver.push(Arc::clone(&session));
                tokio::spawn(async move {
                    let message = session.next_message().await;
                    received.send(message.message().id.clone()).unwrap();
                    message.delivered();
                });
            }
            self.inbox.keep(uid, message).await?;
            if receiver.is_empty() {
                receiver.push(Arc::new(admitted(&self.kick, uid).await));
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
            self.inbox.withdraw(uid, message).await
        }
    }

    #[tokio::test]
    async fn a_message_is_not_kept_from_a_receiver_that_comes_in_late() {
        let memory = Memory::default();
        let kick = kick(&memory).await;
        let anna = Uid::new("anna").unwrap();
        make_known(&kick, &anna).await;
        let (received, mut receives) = mpsc::unbounded_channel();
        let late = Arc::new(Late {
            inbox: RecordsInbox::new(memory.records()),
            kick: kick.clone(),
            receiver: Mutex::default(),
            received,
        });
        let front = front(&kick, Arc::clone(&late) as Arc<dyn OfflineStore>);
        let message = message(1);
        let outcome = timeout(LONG, deliver(&front, &anna, &message)).await;
        assert_eq!(outcome.unwrap().unwrap().outcome, Outcome::Written);
        assert_eq!(receives.try_recv().unwrap(), "m1");
        assert!(late.claim(&anna).await.unwrap().is_empty());
    }
}
