//! Routing: the locations of an account's sessions, and the delivery of messages to them.
//!
//! Each message reaches a session at most once, or its sender learns that the outcome is unknown.

use std::{cmp::Reverse, fmt};

use distlock_core::Result;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::error::TrySendError;

use crate::{
    model::{
        event::Transition,
        ident::{Class, Device, Generation, SessionKey, Uid},
        node::NodeAddress,
        record::Slot,
        request::{DeliverRequest, DeliverResult, Message, PeerError},
    },
    node::{Node, liveness::Liveness},
    state::{live_session::Phase, message::QueuedMessage},
};

/// Most look-ups for one message. Another look-up follows when a session is no longer current.
const MAX_LOOKUPS: u32 = 3;

/// The location of an account's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Location {
    /// The session.
    #[serde(flatten)]
    pub key: SessionKey,
    /// The generation of the session's login.
    pub r#gen: Generation,
    /// The device of the session.
    pub device: Device,
    /// The class of the device.
    pub class: Class,
    /// The address of the session's node for peers, as the node advertises it.
    pub addr: String,
}

/// The outcome of a message for one session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The session.
    pub location: Location,
    /// The outcome.
    pub delivery: Delivery,
}

/// The outcome of a message for one session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// The client acknowledged the message.
    Delivered,
    /// The message was written to the connection of a client that does not acknowledge. The client
    /// may not have received it.
    Written,
    /// The client acknowledges messages, and did not acknowledge this one in time. Store the
    /// message for the device, because it may not have arrived.
    Unacknowledged,
    /// The message was certainly not delivered: the session's node cannot be reached, or the
    /// session's connection is busy or has ended.
    Missed,
    /// The outcome is unknown, or the receiver's queue is full.
    Failed(String),
}

impl Delivery {
    /// Whether the message has arrived, as far as the client's protocol can tell.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Delivered | Self::Written)
    }

    /// Whether the message has to be stored for the session's device, because it may be lost.
    #[must_use]
    pub const fn is_to_be_kept(&self) -> bool {
        matches!(self, Self::Unacknowledged | Self::Missed)
    }
}

impl fmt::Display for Receipt {
    /// One line for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.location.device;
        match &self.delivery {
            Delivery::Delivered => write!(f, "acknowledged by device {device}"),
            Delivery::Written => write!(f, "written to device {device}"),
            Delivery::Unacknowledged => write!(f, "not acknowledged by device {device}"),
            Delivery::Missed => write!(f, "not delivered to device {device}"),
            Delivery::Failed(why) => {
                write!(f, "not known to be delivered to device {device}: {why}")
            }
        }
    }
}

impl Node {
    /// Delivers a message to every current session that the message addresses. Records each
    /// outcome.
    pub(crate) async fn deliver(&self, uid: &Uid, message: Message) -> Result<Vec<Receipt>> {
        let receipts = self.look_up_and_deliver(uid, &message).await?;
        let id = &message.id;
        for receipt in &receipts {
            let transition = if receipt.delivery.is_done() {
                Transition::Delivered
            } else {
                Transition::Undelivered
            };
            self.events.emit(transition, |event| {
                event.uid = Some(uid.clone());
                event.message = Some(id.clone());
                event.set_session(&receipt.location.key);
                event.r#gen = Some(receipt.location.r#gen);
                event.peer = Some(receipt.location.key.node.clone());
                event.device = Some(receipt.location.device.clone());
                event.result = Some(format!("message {id}: {receipt}"));
            });
        }
        if receipts.is_empty() {
            self.events.emit(Transition::Undelivered, |event| {
                event.uid = Some(uid.clone());
                event.message = Some(id.clone());
                event.result = Some(format!("message {id} reached nobody"));
            });
        }
        Ok(receipts)
    }

    /// The account's current sessions and their slots, the newest first.
    pub(crate) async fn locate(&self, uid: &Uid) -> Result<Vec<(Slot, Location)>> {
        let record = self.directory.read(uid).await?.record;
        let mut current = Vec::new();
        for (slot, entry) in record.slots {
            match self.liveness_of(&entry.key.node, entry.key.boot).await? {
                Liveness::Dead => {}
                Liveness::Up(NodeAddress { addr, .. }) => {
                    let location = Location {
                        key: entry.key,
                        r#gen: entry.r#gen,
                        device: entry.device,
                        class: entry.class,
                        addr,
                    };
                    current.push((slot, location));
                }
            }
        }
        current.sort_by_key(|(_, location)| Reverse(location.r#gen));
        Ok(current)
    }

    /// The account's current sessions that a message addresses, the newest first.
    pub(crate) async fn locate_addressed(
        &self,
        uid: &Uid,
        message: &Message,
    ) -> Result<Vec<(Slot, Location)>> {
        let mut current = self.locate(uid).await?;
        current.retain(|(_, it)| message.addresses(&it.device, &it.class));
        Ok(current)
    }

    /// Delivers a message to the sessions that a look-up found. Looks up again for the sessions
    /// that missed the message.
    async fn look_up_and_deliver(&self, uid: &Uid, message: &Message) -> Result<Vec<Receipt>> {
        let mut receipts: Vec<Receipt> = Vec::new();
        let mut missed: Vec<(Slot, Location)> = Vec::new();
        for _ in 0..MAX_LOOKUPS {
            let mut current = match self.locate_addressed(uid, message).await {
                Ok(current) => current,
                // Earlier rounds have outcomes, and the sender must get these outcomes.
                Err(_) if !(receipts.is_empty() && missed.is_empty()) => break,
                Err(error) => return Err(error),
            };
            current.retain(|(_, it)| {
                receipts
                    .iter()
                    .all(|receipt| receipt.location.key != it.key)
            });
            // A session that has ended since the last look-up still counts as missed, unless a
            // newer session has its slot or its device has a receipt.
            missed.retain(|(slot, it)| {
                current
                    .iter()
                    .all(|(other, now)| other != slot && now.key != it.key)
                    && receipts
                        .iter()
                        .all(|receipt| receipt.location.device != it.device)
            });
            if current.is_empty() {
                break;
            }
            let delivering = current.into_iter().map(async |(slot, location)| {
                let delivery = self.deliver_to(uid, &location, message).await;
                (slot, Receipt { location, delivery })
            });
            for (slot, receipt) in join_all(delivering).await {
                if receipt.delivery == Delivery::Missed {
                    missed.push((slot, receipt.location));
                } else {
                    receipts.push(receipt);
                }
            }
            if missed.is_empty() {
                break;
            }
        }
        receipts.extend(missed.into_iter().map(|(_, location)| Receipt {
            location,
            delivery: Delivery::Missed,
        }));
        Ok(receipts)
    }

    /// Delivers a message to one session, on this node or on another.
    async fn deliver_to(&self, uid: &Uid, location: &Location, message: &Message) -> Delivery {
        let request = DeliverRequest::new(
            uid.clone(),
            location.key.clone(),
            message.clone(),
            self.settings.timers.peer_deadline,
        );
        let answer = if location.key.node == self.this.id {
            Ok(self.deliver_here(request).await)
        } else {
            let to = NodeAddress {
                node: location.key.node.clone(),
                boot: location.key.boot,
                addr: location.addr.clone(),
            };
            // The target answers within twice the time limit of the request. The third
            // `peer_deadline` is for the network.
            let deadline = self.settings.timers.peer_deadline * 3;
            self.peers.deliver(&to, request, deadline).await
        };
        match answer {
            Ok(DeliverResult::Delivered) => Delivery::Delivered,
            Ok(DeliverResult::Written) => Delivery::Written,
            Ok(DeliverResult::Unacknowledged) => Delivery::Unacknowledged,
            Ok(DeliverResult::NotCurrent) | Err(PeerError::NotSent(_)) => {
                self.forget_liveness(&location.key.node);
                Delivery::Missed
            }
            Ok(DeliverResult::Full) => Delivery::Failed("the receiver's queue is full".into()),
            Ok(DeliverResult::Unknown) => {
                Delivery::Failed("the receiver's connection did not take it in time".into())
            }
            Err(PeerError::Unknown(why)) => {
                self.forget_liveness(&location.key.node);
                Delivery::Failed(why)
            }
        }
    }

    /// Delivers a message to exactly one active session of this node.
    pub(crate) async fn deliver_here(&self, request: DeliverRequest) -> DeliverResult {
        let live = self
            .registry
            .get(&request.uid, &request.key)
            .filter(|live| live.phase() == Phase::Active && live.check().is_ok());
        let Some(live) = live else {
            return refuse_stale_delivery();
        };
        let (queued, watch) = QueuedMessage::new(request.message);
        match live.enqueue(queued) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) if live.acks => return DeliverResult::Unacknowledged,
            Err(TrySendError::Full(_)) => return DeliverResult::Full,
            Err(TrySendError::Closed(_)) => return refuse_stale_delivery(),
        }
        // A client that has left a message unacknowledged does not delay the next sender. The
        // message is written in its turn, and stored as well; its late acknowledgement removes it
        // from the store.
        if live.acks && live.is_overdue() {
            return DeliverResult::Unacknowledged;
        }
        let ended = async {
            live.superseded().await;
        };
        let outcome = watch
            .wait_for_outcome(&*self.clock, request.within, ended)
            .await;
        match outcome {
            // If the session is still current, the message was withdrawn only because the client
            // reads too slowly. Such a delivery is not stale.
            DeliverResult::NotCurrent if live.check().is_err() => refuse_stale_delivery(),
            DeliverResult::Delivered if !live.acks => DeliverResult::Written,
            // A client that acknowledges messages recognises a duplicate. So the message can be
            // stored for that client even though the message may still arrive.
            DeliverResult::NotCurrent | DeliverResult::Unknown if live.acks => {
                live.note_overdue();
                DeliverResult::Unacknowledged
            }
            outcome => outcome,
        }
    }
}

/// Counts a delivery to a session that is not current, and returns the answer.
fn refuse_stale_delivery() -> DeliverResult {
    metrics::counter!("distlock_stale_delivery_refused_total").increment(1);
    DeliverResult::NotCurrent
}
