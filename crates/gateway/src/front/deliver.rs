//! Delivers a message to an account, or stores it for later, and says what became of it.
//!
//! Invariant of this module: a message is delivered, stored, or reported as failed. This module
//! must never lose a message that it withdrew from the store.

use std::{sync::Arc, time::Duration};

use distlock_core::Result;
use distlock_kickout::{Class, Delivery, Device, Location, Message, Receipt, Uid};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::{
    FrontContext,
    frames::{ErrorCode, message_frame},
};
use crate::metering;

/// The outcome of a message. The variants go from best to worst. If an account has several devices,
/// the worst outcome is the outcome for the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The client acknowledged the message.
    Delivered,
    /// The message was written to the connection of a client that does not acknowledge.
    Written,
    /// The message is stored until a session has received it.
    Stored,
    Failed,
}

impl Outcome {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Written => "written",
            Self::Stored => "stored",
            Self::Failed => "failed",
        }
    }
}

/// The outcome of a message for one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceOutcome {
    pub(crate) device: Device,
    pub(crate) class: Class,
    pub(crate) outcome: Outcome,
}

/// Upper bound for the bytes of a `message` frame beside its body, even if each character of sender
/// and id must be escaped.
const MAX_ENVELOPE: usize = 2048;
const MAX_ID: usize = 128;
/// Time for which a message is withdrawn and delivered again while its receiver logs in. The time
/// is longer than a login takes to end older sessions.
const RECEIVER_LOGIN_LIMIT: Duration = Duration::from_millis(1500);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Time within which the delivery of a message to the last of many accounts must begin. As much
/// time follows for storing the message for the accounts that it did not reach.
const MANY_LIMIT: Duration = Duration::from_secs(10);
/// Most accounts for which a message to many is stored at the same time.
const MAX_KEPT_AT_ONCE: usize = 64;

/// The outcome of a message, for the whole account and for each device.
pub(crate) struct MessageOutcome {
    pub(crate) outcome: Outcome,
    pub(crate) devices: Vec<DeviceOutcome>,
}

impl MessageOutcome {
    /// The outcome for an account without a device online.
    pub(super) const fn without_devices(outcome: Outcome) -> Self {
        Self {
            outcome,
            devices: Vec::new(),
        }
    }

    /// The outcome for one of many accounts, and the error if that was the cause of a failure.
    pub(crate) fn of_account(result: Result<Self>) -> (Self, Option<String>) {
        match result {
            Ok(outcome) => (outcome, None),
            Err(error) => {
                let failed = Self::without_devices(Outcome::Failed);
                (failed, Some(error.to_string()))
            }
        }
    }

    /// The outcome of a delivery. `kept` is the outcome for each device that did not get the
    /// message.
    fn from_receipts(receipts: &[Receipt], kept: Outcome) -> Self {
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

/// Checks that a message may be sent as it is.
///
/// # Errors
/// The code and the reason for the sender.
pub(crate) fn check_message(
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

/// Whether the message is too long for its receiver's frame. The exact length is measured only if
/// the message is near the limit.
fn is_too_long(message: &Message, max_frame: usize) -> bool {
    message.body.len() + MAX_ENVELOPE > max_frame
        && message_frame(message, Some(u64::MAX)).json.len() > max_frame
}

/// Delivers a message, or stores it for later.
///
/// Cancel safety: after a drop, a message that is being stored is still stored or delivered, but
/// the sender does not learn the outcome.
pub(crate) async fn deliver(
    front: &Arc<FrontContext>,
    to: &Uid,
    message: &Message,
) -> Result<MessageOutcome> {
    let delivered = deliver_or_keep(front, to, message).await;
    let outcome = delivered.as_ref().map_or(Outcome::Failed, |it| it.outcome);
    metering::count_message(outcome.name());
    delivered
}

/// Delivers a message to many accounts, or stores it for later. The results are in the order of
/// `to`. The failure of one account does not fail the others. Each account begins within
/// `MANY_LIMIT`, or fails.
///
/// # Errors
/// Failures of the store before anything was delivered.
pub(crate) async fn deliver_to_many(
    front: &Arc<FrontContext>,
    to: &[Uid],
    message: &Message,
) -> Result<Vec<Result<MessageOutcome>>> {
    let until = front.clock.now() + MANY_LIMIT * 2;
    let delivered = front.kick.deliver_to_many(to, message, MANY_LIMIT).await;
    let places = Semaphore::new(MAX_KEPT_AT_ONCE);
    let keeping = delivered?.into_iter().zip(to).map(async |(receipts, to)| {
        let _place = places.acquire().await;
        let outcome = match receipts {
            Ok(receipts) if front.clock.now() < until => {
                keep_if_missed(front, to, message, receipts).await
            }
            // No time is left for the store.
            Ok(receipts) => Ok(MessageOutcome::from_receipts(&receipts, Outcome::Failed)),
            Err(error) => Err(error),
        };
        let counted = outcome.as_ref().map_or(Outcome::Failed, |it| it.outcome);
        metering::count_message(counted.name());
        outcome
    });
    Ok(join_all(keeping).await)
}

async fn deliver_or_keep(
    front: &Arc<FrontContext>,
    to: &Uid,
    message: &Message,
) -> Result<MessageOutcome> {
    let receipts = front.kick.deliver(to, message.clone()).await?;
    keep_if_missed(front, to, message, receipts).await
}

/// Whether a message with these receipts must be stored: it reached nobody, or missed a session.
fn is_to_be_kept(receipts: &[Receipt]) -> bool {
    receipts.is_empty() || receipts.iter().any(|it| it.delivery.is_to_be_kept())
}

/// Stores a message if it has to be stored. `receipts` holds the results of the delivery.
async fn keep_if_missed(
    front: &Arc<FrontContext>,
    to: &Uid,
    message: &Message,
    receipts: Vec<Receipt>,
) -> Result<MessageOutcome> {
    if !is_to_be_kept(&receipts) {
        return Ok(MessageOutcome::from_receipts(&receipts, Outcome::Failed));
    }
    // A client may invent an account that never logged in. A message for such an account would stay
    // in the store for ever.
    if receipts.is_empty() && !front.kick.knows(to).await? {
        return Ok(MessageOutcome::without_devices(Outcome::Failed));
    }
    // This runs in a separate task. If the sender leaves meanwhile, a message that was withdrawn
    // from the store must still reach its receiver.
    let (tracker, front) = (front.connections.clone(), Arc::clone(front));
    let (to, message) = (to.clone(), message.clone());
    let kept =
        tracker.spawn(async move { keep_or_redeliver(&front, &to, &message, receipts).await });
    kept.await
        .unwrap_or(Ok(MessageOutcome::without_devices(Outcome::Failed)))
}

/// Stores a message for the devices that did not get it. `receipts` holds the results of the
/// delivery.
async fn keep_or_redeliver(
    front: &FrontContext,
    to: &Uid,
    message: &Message,
    mut receipts: Vec<Receipt>,
) -> Result<MessageOutcome> {
    let until = front.clock.now() + RECEIVER_LOGIN_LIMIT;
    for round in 1.. {
        match &receipts[..] {
            [] => {}
            [only] if only.delivery.is_to_be_kept() => {}
            [_] => return Ok(MessageOutcome::from_receipts(&receipts, Outcome::Failed)),
            _ => {
                let kept = keep_for_each(front, to, message, &receipts).await;
                front.kick.hand_out_later(to, &receipts);
                return Ok(kept);
            }
        }
        keep(front, to, message).await?;
        let stored = MessageOutcome::from_receipts(&receipts, Outcome::Stored);
        let waits_for_ack = |now: &Location| {
            let it = receipts.first();
            it.is_some_and(|it| {
                it.delivery == Delivery::Unacknowledged && it.location.key == now.key
            })
        };
        // The receiver may have logged in, and claimed its stored messages, just before this
        // message was stored. Then this message would wait for the next login. So it is withdrawn
        // and delivered again. If the receiver claimed its messages after this one was stored, its
        // session delivers the message, and the withdrawal fails.
        let current = front.kick.addressed(to, message).await?;
        if current.iter().all(waits_for_ack)
            || (round > 1 && front.clock.now() >= until)
            || !front.inbox.withdraw(to, message).await?
        {
            // The session may live although the message did not reach it.
            front.kick.hand_out_later(to, &receipts);
            return Ok(stored);
        }
        receipts = front.kick.deliver(to, message.clone()).await?;
        // The receiver's login may still be in progress. That login claims the stored messages at
        // its end, which may come before this message is stored again.
        if receipts.iter().all(|it| it.delivery == Delivery::Missed) {
            front.clock.sleep(RETRY_PAUSE * round).await;
        }
    }
    unreachable!("the rounds end with an answer")
}

/// Stores the message for each device that did not get it, when other devices of the account did.
async fn keep_for_each(
    front: &FrontContext,
    to: &Uid,
    message: &Message,
    receipts: &[Receipt],
) -> MessageOutcome {
    let mut outcome = MessageOutcome::from_receipts(receipts, Outcome::Stored);
    for (receipt, device) in receipts.iter().zip(&mut outcome.devices) {
        if !receipt.delivery.is_to_be_kept() {
            continue;
        }
        let copy = message.for_device(&device.device);
        if let Err(error) = keep(front, to, &copy).await {
            tracing::warn!(
                %to, %error,
                "a message could not be stored for a device, and is lost to it"
            );
            device.outcome = Outcome::Failed;
            outcome.outcome = Outcome::Failed;
        }
    }
    outcome
}

async fn keep(front: &FrontContext, to: &Uid, message: &Message) -> Result<()> {
    front.inbox.keep(to, message).await?;
    front.kick.stored(to, message);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use distlock_kickout::{KickOut, Session};
    use distlock_memory::Memory;
    use tokio::{
        sync::{Mutex, mpsc},
        time::timeout,
    };

    use super::{
        super::fixtures::{
            LONG, front_context, log_in_device, make_known, numbered_message, start_kickout,
        },
        *,
    };
    use crate::inbox::{OfflineStore, RecordsInbox};

    #[test]
    fn a_message_is_measured_as_it_will_be_written() {
        let mut message = numbered_message(1);
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

    /// The receiver logs in while a message is being stored, and begins to receive only just before
    /// the message is stored for the second time.
    #[derive(Debug)]
    struct LateReceiver {
        inbox: RecordsInbox,
        kick: KickOut,
        receiver: Mutex<Vec<Arc<Session>>>,
        received: mpsc::UnboundedSender<String>,
    }

    #[async_trait]
    impl OfflineStore for LateReceiver {
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
                receiver.push(Arc::new(log_in_device(&self.kick, uid).await));
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

        async fn waiting(&self, uid: &Uid) -> Result<usize> {
            self.inbox.waiting(uid).await
        }
    }

    #[tokio::test]
    async fn a_receiver_that_logs_in_while_a_message_is_stored_gets_it() {
        let memory = Memory::default();
        let kick = start_kickout(&memory).await;
        let anna = Uid::new("anna").unwrap();
        make_known(&kick, &anna).await;
        let (received, mut receives) = mpsc::unbounded_channel();
        let late = Arc::new(LateReceiver {
            inbox: RecordsInbox::new(memory.records()),
            kick: kick.clone(),
            receiver: Mutex::default(),
            received,
        });
        let front = front_context(&kick, Arc::clone(&late) as Arc<dyn OfflineStore>);
        let message = numbered_message(1);
        let outcome = timeout(LONG, deliver(&front, &anna, &message)).await;
        assert_eq!(outcome.unwrap().unwrap().outcome, Outcome::Written);
        assert_eq!(receives.try_recv().unwrap(), "m1");
        assert!(late.claim(&anna).await.unwrap().is_empty());
    }
}
