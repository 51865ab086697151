//! Routing: where an account's session lives, and handing it a message.

use std::fmt;

use distlock_core::{Guard, Result};
use serde::{Deserialize, Serialize};

use crate::{
    config::RouteMode,
    event::Transition,
    flow::{Inner, KickOut},
    handout::Handout,
    ident::{Device, Generation, SessionKey, Uid},
    live::Phase,
    nodes::Standing,
    peers::{DeliverRequest, DeliverResult, Message, NodeAddress, PeerError},
};

/// How often a message is sent on after it met a session that was not current any more.
const LOOKUPS: u32 = 3;

/// Where an account's session lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Location {
    /// The session.
    #[serde(flatten)]
    pub key: SessionKey,
    /// The generation of its login.
    pub r#gen: Generation,
    /// Its device.
    pub device: Device,
    /// Its node's address, as that advertised it.
    pub addr: String,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// It was written to this session's connection.
    Delivered(Location),
    /// Nobody is logged in, or nobody could be reached: it was certainly delivered to nobody.
    Offline,
    /// Whether it was delivered is not known, or its receiver cannot keep up.
    Failed(String),
}

impl fmt::Display for Delivery {
    /// One line for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivered(location) => write!(f, "delivered to device {}", location.device),
            Self::Offline => f.write_str("not delivered: nobody is logged in"),
            Self::Failed(why) => write!(f, "not known to be delivered: {why}"),
        }
    }
}

impl KickOut {
    /// Where the account's session lives, by a linearizable read; `None` when nobody is logged in. Sessions of dead nodes do
    /// not count.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn route(&self, uid: &Uid) -> Result<Option<Location>> {
        self.inner.locate(uid).await
    }

    /// Delivers a message to the account's session, wherever it lives: to exactly one, or it says that it did not.
    ///
    /// # Errors
    /// Failures of the store before anything was delivered; [`ErrorKind::Timeout`](distlock_core::ErrorKind::Timeout) when the locked mode did not get the lock.
    ///
    /// # Cancel safety
    /// Dropping it leaves the outcome unknown.
    pub async fn deliver(&self, uid: &Uid, message: Message) -> Result<Delivery> {
        let id = message.id.clone();
        let delivery = self.inner.deliver(uid, message).await?;
        let transition = match &delivery {
            Delivery::Delivered(_) => Transition::Delivered,
            Delivery::Offline | Delivery::Failed(_) => Transition::Undelivered,
        };
        self.inner.events.emit(transition, |event| {
            event.uid = Some(uid.clone());
            event.message = Some(id.clone());
            if let Delivery::Delivered(location) = &delivery {
                event.about(&location.key);
                event.r#gen = Some(location.r#gen);
                event.peer = Some(location.key.node.clone());
                event.device = Some(location.device.clone());
            }
            event.result = Some(match &delivery {
                Delivery::Delivered(_) => format!("message {id} delivered"),
                Delivery::Offline => format!("message {id} reached nobody"),
                Delivery::Failed(why) => format!("message {id} failed: {why}"),
            });
        });
        Ok(delivery)
    }

    /// Puts on record that a message which reached nobody was kept until its account logs in.
    pub fn stored(&self, uid: &Uid, message: &str) {
        self.inner.events.emit(Transition::Stored, |event| {
            event.uid = Some(uid.clone());
            event.message = Some(message.to_owned());
        });
    }

    /// A delivery from another node: accepted only for the session that is active here, exactly, and within the node's lease.
    /// Ends when the session's connection took the message, or after `request.within` at the latest.
    ///
    /// # Cancel safety
    /// Dropping it leaves the outcome unknown.
    pub async fn handle_deliver(&self, request: DeliverRequest) -> DeliverResult {
        self.inner.deliver_here(request).await
    }
}

impl Inner {
    pub(crate) async fn locate(&self, uid: &Uid) -> Result<Option<Location>> {
        let record = self.directory.read(uid).await?.record;
        let mut entries: Vec<_> = record.slots.into_values().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.r#gen));
        for entry in entries {
            match self.standing(&entry.key.node, entry.key.boot).await? {
                Standing::Dead => {}
                Standing::Up(NodeAddress { addr, .. }) => {
                    return Ok(Some(Location {
                        key: entry.key,
                        r#gen: entry.r#gen,
                        device: entry.device,
                        addr,
                    }));
                }
            }
        }
        Ok(None)
    }

    async fn deliver(&self, uid: &Uid, message: Message) -> Result<Delivery> {
        let guard = match self.route {
            RouteMode::Fenced => None,
            RouteMode::Locked => Some(self.lock_to_route(uid).await?),
        };
        let delivery = self.look_up_and_deliver(uid, message).await;
        if let Some(guard) = guard {
            // The target compared the session by itself.
            let _ = guard.release().await;
        }
        delivery
    }

    async fn lock_to_route(&self, uid: &Uid) -> Result<Guard> {
        self.locker
            .lock_named(&uid.lock()?)
            .ttl(self.timers.lock_ttl)
            .wait(self.timers.lock_wait)
            .give_up_when_unreachable()
            .holder(self.node.as_str())
            .acquire()
            .await
    }

    async fn look_up_and_deliver(&self, uid: &Uid, message: Message) -> Result<Delivery> {
        for _ in 0..LOOKUPS {
            let Some(location) = self.locate(uid).await? else {
                return Ok(Delivery::Offline);
            };
            let request = DeliverRequest::new(
                uid.clone(),
                location.key.clone(),
                message.clone(),
                self.timers.peer_deadline,
            );
            let answer = if location.key.node == self.node {
                Ok(self.deliver_here(request).await)
            } else {
                let to = NodeAddress {
                    node: location.key.node.clone(),
                    boot: location.key.boot,
                    addr: location.addr.clone(),
                };
                // The target answers within its own limit, twice at most; the rest is for the way.
                let deadline = self.timers.peer_deadline * 3;
                self.caller.deliver(&to, request, deadline).await
            };
            match answer {
                Ok(DeliverResult::Delivered) => return Ok(Delivery::Delivered(location)),
                Ok(DeliverResult::NotCurrent) | Err(PeerError::NotSent(_)) => {
                    self.nodes.doubt(&location.key.node);
                }
                Ok(DeliverResult::Full) => {
                    return Ok(Delivery::Failed("the receiver's queue is full".into()));
                }
                Ok(DeliverResult::Unknown) => {
                    return Ok(Delivery::Failed(
                        "the receiver's connection did not take it in time".into(),
                    ));
                }
                Err(PeerError::Unknown(why)) => {
                    self.nodes.doubt(&location.key.node);
                    return Ok(Delivery::Failed(why));
                }
            }
        }
        Ok(Delivery::Offline)
    }

    async fn deliver_here(&self, request: DeliverRequest) -> DeliverResult {
        let live = self
            .registry
            .get(&request.uid, &request.key)
            .filter(|live| live.phase() == Phase::Active && live.check().is_ok());
        let Some(live) = live else {
            return not_current();
        };
        let (handout, pickup) = Handout::new(request.message);
        match live.queue(handout) {
            Ok(()) => {}
            Err(tokio::sync::mpsc::error::TrySendError::Full(_)) => return DeliverResult::Full,
            Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => return not_current(),
        }
        let ended = async {
            live.superseded().await;
        };
        let outcome = pickup.outcome(&*self.clock, request.within, ended).await;
        // A client that reads too slowly is current all the same.
        if outcome == DeliverResult::NotCurrent && live.check().is_err() {
            return not_current();
        }
        outcome
    }
}

fn not_current() -> DeliverResult {
    metrics::counter!("distlock_stale_delivery_refused_total").increment(1);
    DeliverResult::NotCurrent
}
