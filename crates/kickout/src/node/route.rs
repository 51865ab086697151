//! Routing: the locations of an account's sessions, and the delivery of messages to them.
//!
//! Each message reaches a session at most once, or its sender learns that the outcome is unknown.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    fmt,
    time::Duration,
};

use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::error::TrySendError;

use crate::{
    directory::accounts::CONCURRENT_CHANGES,
    model::{
        event::Transition,
        ident::{Boot, Class, Device, Generation, NodeId, SessionKey, Uid},
        node::NodeAddress,
        record::{Slot, SlotEntry, UserRecord},
        request::{DeliverRequest, DeliverResult, Message, PeerError},
    },
    node::{Node, admin::PAGE, liveness::Liveness},
    state::{live_session::Phase, message::QueuedMessage},
};

/// Most look-ups for one message. Another look-up follows when a session is no longer current.
const MAX_LOOKUPS: u32 = 3;

/// Most accounts to which messages to many are delivered at the same time. Twice as many deliveries
/// may be in progress to one other node, so messages to one account still get their turn.
pub(crate) const MANY_AT_ONCE: usize = 32;

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
    /// The session's place in the account's record.
    pub slot: Slot,
    /// Login time of the session, by the wall clock of its node, in milliseconds since 1970. For
    /// display.
    pub since_ms: u64,
    /// The address of the session's node for peers, as the node advertises it.
    pub addr: String,
}

impl Location {
    /// The location of the session in a slot, whose node has this address.
    fn new(slot: Slot, entry: SlotEntry, addr: String) -> Self {
        Self {
            key: entry.key,
            r#gen: entry.r#gen,
            device: entry.device,
            class: entry.class,
            slot,
            since_ms: entry.since_ms,
            addr,
        }
    }
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
    pub(crate) async fn deliver(&self, uid: &Uid, message: &Message) -> Result<Vec<Receipt>> {
        let current = self.locate(uid).await?;
        Ok(self.deliver_from(uid, current, message).await)
    }

    /// Delivers a message to several accounts, each of them as [`deliver`](Self::deliver) does. An
    /// account whose turn does not come within `limit` gets nothing, and its result is an error.
    pub(crate) async fn deliver_to_many(
        &self,
        uids: &[Uid],
        message: &Message,
        limit: Duration,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let until = self.clock.now() + limit;
        let located = self.locate_many(uids).await?;
        let delivering = uids.iter().zip(located).map(async |(uid, current)| {
            let current = current?;
            let _place = self.many.acquire().await;
            if self.clock.now() >= until {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "nothing was sent to account {uid:?}: its turn did not come within \
                         {limit:.0?}"
                    ),
                ));
            }
            Ok(self.deliver_from(uid, current, message).await)
        });
        Ok(join_all(delivering).await)
    }

    /// Delivers a message to the sessions that a look-up found, and records each outcome.
    async fn deliver_from(
        &self,
        uid: &Uid,
        current: Vec<Location>,
        message: &Message,
    ) -> Vec<Receipt> {
        let receipts = self.deliver_and_look_up_again(uid, current, message).await;
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
        receipts
    }

    /// The account's current sessions, the newest first.
    pub(crate) async fn locate(&self, uid: &Uid) -> Result<Vec<Location>> {
        let record = self.directory.read(uid).await?.record;
        let mut current = Vec::new();
        for (slot, entry) in record.slots {
            match self.liveness_of(&entry.key.node, entry.key.boot).await? {
                Liveness::Dead => {}
                Liveness::Up(up) => current.push(Location::new(slot, entry, up.addr)),
            }
        }
        newest_first(&mut current);
        Ok(current)
    }

    /// The current sessions of several accounts, in the order of `uids`. Reads the records together
    /// and asks once for each node. An account whose record cannot be read, or names a node whose
    /// liveness is not known, has its own error.
    pub(crate) async fn locate_many(&self, uids: &[Uid]) -> Result<Vec<Result<Vec<Location>>>> {
        let mut located = Vec::with_capacity(uids.len());
        // Clients can make their accounts' records long. The pages bound the memory of one read.
        for page in uids.chunks(PAGE as usize) {
            let read = self.directory.read_many(page).await?;
            let records: Vec<_> = read.into_iter().map(|it| it.map(|it| it.record)).collect();
            // The liveness is asked after the records were read, never before: see `liveness_of`.
            let nodes = self.liveness_of_named(&records).await;
            located.extend(records.into_iter().map(|record| {
                let mut current = Vec::new();
                for (slot, entry) in record?.slots {
                    match nodes.get(&(entry.key.node.clone(), entry.key.boot)) {
                        Some(Ok(Liveness::Dead)) | None => {}
                        Some(Ok(Liveness::Up(up))) => {
                            current.push(Location::new(slot, entry, up.addr.clone()));
                        }
                        Some(Err(error)) => return Err(error.clone()),
                    }
                }
                newest_first(&mut current);
                Ok(current)
            }));
        }
        Ok(located)
    }

    /// The liveness of each incarnation that a session of these records names.
    async fn liveness_of_named(
        &self,
        records: &[Result<UserRecord>],
    ) -> HashMap<(NodeId, Boot), Result<Liveness>> {
        let entries = records
            .iter()
            .flatten()
            .flat_map(|record| record.slots.values());
        let named: BTreeSet<_> = entries
            .map(|entry| (entry.key.node.clone(), entry.key.boot))
            .collect();
        let named: Vec<_> = named.into_iter().collect();
        let mut nodes = HashMap::new();
        for some in named.chunks(CONCURRENT_CHANGES) {
            let asking = some.iter().map(async |(node, boot)| {
                let liveness = self.liveness_of(node, *boot).await;
                ((node.clone(), *boot), liveness)
            });
            nodes.extend(join_all(asking).await);
        }
        nodes
    }

    /// The account's current sessions that a message addresses, the newest first.
    pub(crate) async fn locate_addressed(
        &self,
        uid: &Uid,
        message: &Message,
    ) -> Result<Vec<Location>> {
        let mut current = self.locate(uid).await?;
        current.retain(|it| message.addresses(&it.device, &it.class));
        Ok(current)
    }

    /// Delivers a message to the sessions that a look-up found. Looks up again for the sessions
    /// that missed the message.
    async fn deliver_and_look_up_again(
        &self,
        uid: &Uid,
        mut current: Vec<Location>,
        message: &Message,
    ) -> Vec<Receipt> {
        let mut receipts: Vec<Receipt> = Vec::new();
        let mut missed: Vec<Location> = Vec::new();
        for lookups in 1.. {
            current.retain(|it| {
                message.addresses(&it.device, &it.class)
                    && receipts
                        .iter()
                        .all(|receipt| receipt.location.key != it.key)
            });
            // A session that has ended since the last look-up still counts as missed, unless a
            // newer session has its slot or its device has a receipt.
            missed.retain(|it| {
                current
                    .iter()
                    .all(|now| now.slot != it.slot && now.key != it.key)
                    && receipts
                        .iter()
                        .all(|receipt| receipt.location.device != it.device)
            });
            if current.is_empty() {
                break;
            }
            let delivering = current.into_iter().map(async |location| {
                let delivery = self.deliver_to(uid, &location, message).await;
                Receipt { location, delivery }
            });
            for receipt in join_all(delivering).await {
                if receipt.delivery == Delivery::Missed {
                    missed.push(receipt.location);
                } else {
                    receipts.push(receipt);
                }
            }
            if missed.is_empty() || lookups == MAX_LOOKUPS {
                break;
            }
            // The earlier rounds have outcomes, and the sender must get these outcomes even if this
            // look-up fails.
            let Ok(now) = self.locate(uid).await else {
                break;
            };
            current = now;
        }
        receipts.extend(missed.into_iter().map(|location| Receipt {
            location,
            delivery: Delivery::Missed,
        }));
        receipts
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

fn newest_first(sessions: &mut [Location]) {
    sessions.sort_by_key(|location| Reverse(location.r#gen));
}

/// Counts a delivery to a session that is not current, and returns the answer.
fn refuse_stale_delivery() -> DeliverResult {
    metrics::counter!("distlock_stale_delivery_refused_total").increment(1);
    DeliverResult::NotCurrent
}
