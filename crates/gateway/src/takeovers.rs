//! The report of a node for the pages of all nodes: its numbers, and the takeovers that it saw.
//!
//! Takeovers are collected from this node's events. A takeover is either a login on this node that
//! ended a session, or the end of a session on this node by a login on another node.
//!
//! This module keeps a bounded number of takeovers. This module must never follow the events of a
//! node whose page nobody opens.

use std::{collections::VecDeque, sync::Arc};

use distlock_core::sync::Mutex;
use distlock_kickout::{Device, Event, KickOut, NodeId, SessionId, Transition, Uid};
use serde::Serialize;
use tokio::sync::broadcast::{Receiver, error::TryRecvError};
use uuid::Uuid;

/// Highest number of remembered takeovers in progress. Without this limit, a login that is never
/// confirmed would stay in memory for ever.
const MAX_PENDING: usize = 1024;
/// Highest number of takeovers on the page.
const MAX_SHOWN: usize = 30;

/// One takeover, as a node saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Takeover {
    /// Id of the kick that ended the old session. Both nodes see the same id.
    pub(crate) kick_id: Uuid,
    /// The wall clock of the node that saw the takeover, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) seen_by: NodeId,
    pub(crate) uid: Uid,
    pub(crate) from_node: NodeId,
    pub(crate) to_node: NodeId,
    pub(crate) from_device: Option<Device>,
    pub(crate) to_device: Option<Device>,
    /// Time from the write that decided the takeover until the new session was confirmed. On the
    /// old session's node, the time ends when that session got its notice.
    pub(crate) took_us: Option<u64>,
}

/// The report of a node about itself, for the pages of all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeReport {
    /// The newest takeovers that the node saw, oldest first.
    pub(crate) takeovers: Vec<Takeover>,
    pub(crate) sessions: u64,
    /// The version of the node's program.
    pub(crate) version: String,
}

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The newest takeovers that this node saw. The events are read only when somebody requests the
/// takeovers. So a node costs nothing while its page is closed.
#[derive(Clone)]
pub(crate) struct RecentTakeovers {
    kick: KickOut,
    state: Arc<Mutex<RecentState>>,
}

#[derive(Default)]
struct RecentState {
    events: Option<Receiver<Event>>,
    takeovers: TakeoverTracker,
    recent: VecDeque<Takeover>,
}

impl RecentTakeovers {
    pub(crate) fn new(kick: KickOut) -> Self {
        Self {
            kick,
            state: Arc::default(),
        }
    }

    /// The report of this node, with the takeovers since the first call.
    pub(crate) fn report(&self) -> NodeReport {
        NodeReport {
            takeovers: self.read_newest(),
            sessions: u64::try_from(self.kick.sessions()).unwrap_or(u64::MAX),
            version: VERSION.to_owned(),
        }
    }

    /// The newest takeovers since the first call, oldest first.
    fn read_newest(&self) -> Vec<Takeover> {
        let mut state = self.state.lock();
        let RecentState {
            events,
            takeovers,
            recent,
        } = &mut *state;
        let events = events.get_or_insert_with(|| self.kick.events());
        loop {
            match events.try_recv() {
                Ok(event) => recent.extend(takeovers.observe(&event)),
                // More events happened since the last call than the channel keeps. The older events
                // are not shown.
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
            if recent.len() > MAX_SHOWN {
                recent.pop_front();
            }
        }
        recent.iter().cloned().collect()
    }
}

/// The newest takeovers of all nodes, newest first, from the lists of the nodes. If both nodes saw
/// a takeover, time and duration come from the new session's node, and the old device comes from
/// the old session's node.
pub(crate) fn merge_takeovers(seen: Vec<Takeover>) -> Vec<Takeover> {
    let mut merged = Vec::<Takeover>::new();
    for takeover in seen {
        let Some(there) = merged.iter_mut().find(|it| it.kick_id == takeover.kick_id) else {
            merged.push(takeover);
            continue;
        };
        let (mut main, other) = if takeover.seen_by == takeover.to_node {
            (takeover, there.clone())
        } else {
            (there.clone(), takeover)
        };
        main.from_device = main.from_device.or(other.from_device);
        main.to_device = main.to_device.or(other.to_device);
        *there = main;
    }
    merged.sort_by_key(|it| std::cmp::Reverse(it.at_ms));
    merged.truncate(MAX_SHOWN);
    merged
}

#[derive(Debug, Default)]
struct TakeoverTracker(VecDeque<PendingTakeover>);

#[derive(Debug)]
struct PendingTakeover {
    uid: Uid,
    newcomer: SessionId,
    granted_us: u64,
    from: Option<(NodeId, Uuid)>,
    from_device: Option<Device>,
}

impl TakeoverTracker {
    fn observe(&mut self, event: &Event) -> Option<Takeover> {
        let uid = event.uid.as_ref()?;
        match event.event {
            Transition::Granted => {
                if self.0.len() == MAX_PENDING {
                    self.0.pop_front();
                }
                self.0.push_back(PendingTakeover {
                    uid: uid.clone(),
                    newcomer: event.session?,
                    granted_us: event.clock_us,
                    from: None,
                    from_device: None,
                });
                None
            }
            // A revocation follows the grant that caused it.
            Transition::Revoked => {
                let pending = self.0.iter_mut().rev().find(|it| it.uid == *uid)?;
                pending.from = event.session_node.clone().zip(event.kick_id);
                None
            }
            Transition::Superseded => {
                if let Some(pending) = self.0.iter_mut().rev().find(|it| it.uid == *uid) {
                    pending.from_device.clone_from(&event.device);
                }
                None
            }
            Transition::KickReceived => {
                // The session got its notice just before. The codes 1 and 2 mean that another login
                // was the reason.
                event.code.filter(|code| code.number() <= 2)?;
                Some(Takeover {
                    kick_id: event.kick_id?,
                    at_ms: event.at_ms,
                    seen_by: event.node.clone(),
                    uid: uid.clone(),
                    from_node: event.node.clone(),
                    to_node: event.peer.clone()?,
                    from_device: event.device.clone(),
                    to_device: event.by_device.clone(),
                    took_us: event.took_us,
                })
                .filter(|_| event.result.as_deref() == Some("Kicked"))
            }
            Transition::Admitted => {
                let at = self
                    .0
                    .iter()
                    .position(|it| Some(it.newcomer) == event.session)?;
                let pending = self.0.remove(at)?;
                let (from_node, kick_id) = pending.from?;
                Some(Takeover {
                    kick_id,
                    at_ms: event.at_ms,
                    seen_by: event.node.clone(),
                    uid: pending.uid,
                    from_node,
                    to_node: event.node.clone(),
                    from_device: pending.from_device,
                    to_device: event.device.clone(),
                    took_us: Some(event.clock_us.saturating_sub(pending.granted_us)),
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const KICK: &str = "00000000-0000-4000-8000-000000000009";

    fn event(kind: &str, at: u64, more: Value) -> Event {
        let mut event = json!({
            "seq": 1, "at_ms": at, "clock_us": at, "node": "n1", "boot": 1, "event": kind,
            "uid": "anna",
        });
        if let (Value::Object(event), Value::Object(more)) = (&mut event, more) {
            event.extend(more);
        }
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn only_a_login_that_ends_a_session_is_a_takeover() {
        let mut takeovers = TakeoverTracker::default();
        let (old, new) = (
            "00000000-0000-4000-8000-000000000001",
            "00000000-0000-4000-8000-000000000002",
        );
        assert_eq!(
            takeovers.observe(&event("granted", 1, json!({"session": old}))),
            None
        );
        let first = event("admitted", 5, json!({"session": old, "device": "phone"}));
        assert_eq!(takeovers.observe(&first), None, "there was nobody");
        takeovers.observe(&event("granted", 10, json!({"session": new})));
        takeovers.observe(&event(
            "revoked",
            11,
            json!({"session": old, "session_node": "n2", "kick_id": KICK}),
        ));
        let admitted = event("admitted", 30, json!({"session": new, "device": "pc"}));
        let takeover = takeovers.observe(&admitted).unwrap();
        assert_eq!(
            (
                takeover.from_node.as_str(),
                takeover.to_node.as_str(),
                takeover.took_us
            ),
            ("n2", "n1", Some(20))
        );
    }

    #[test]
    fn views_of_both_nodes_merge_into_one_takeover() {
        let id = |text: &str| text.parse::<Uuid>().unwrap();
        let seen_by = |node: &str, at_ms, from_device: Option<&str>| Takeover {
            kick_id: id(KICK),
            at_ms,
            seen_by: NodeId::new(node).unwrap(),
            uid: Uid::new("anna").unwrap(),
            from_node: NodeId::new("n1").unwrap(),
            to_node: NodeId::new("n2").unwrap(),
            from_device: from_device.map(|device| Device::new(device).unwrap()),
            to_device: Some(Device::new("pc").unwrap()),
            took_us: Some(at_ms * 10),
        };
        let (old, new) = (seen_by("n1", 50, Some("phone")), seen_by("n2", 70, None));
        let later = Takeover {
            kick_id: id("00000000-0000-4000-8000-000000000008"),
            at_ms: 60,
            ..old.clone()
        };
        for seen in [
            vec![old.clone(), later.clone(), new.clone()],
            vec![new.clone(), old.clone(), later.clone()],
        ] {
            let whole = Takeover {
                from_device: old.from_device.clone(),
                ..new.clone()
            };
            assert_eq!(merge_takeovers(seen), [whole, later.clone()]);
        }
        let many = (0..100).map(|number| Takeover {
            kick_id: Uuid::new_v4(),
            at_ms: number,
            ..old.clone()
        });
        let newest = merge_takeovers(many.collect());
        assert_eq!((newest.len(), newest[0].at_ms), (MAX_SHOWN, 99));
    }

    #[test]
    fn a_kick_that_ended_a_session_here_is_a_takeover_by_its_sender() {
        let mut takeovers = TakeoverTracker::default();
        let kick = |result: &str, code: u8| {
            event(
                "kick_received",
                1,
                json!({
                    "peer": "n3", "result": result, "code": code, "device": "phone",
                    "by_device": "pc", "took_us": 700, "kick_id": KICK,
                }),
            )
        };
        let takeover = takeovers.observe(&kick("Kicked", 1)).unwrap();
        assert_eq!(
            (takeover.from_node.as_str(), takeover.to_node.as_str()),
            ("n1", "n3")
        );
        assert_eq!(takeover.from_device, Some(Device::new("phone").unwrap()));
        assert_eq!(takeover.to_device, Some(Device::new("pc").unwrap()));
        assert_eq!(takeover.took_us, Some(700));
        assert_eq!(takeovers.observe(&kick("AlreadyGone", 1)), None);
        assert_eq!(
            takeovers.observe(&kick("Kicked", 3)),
            None,
            "by an administrator"
        );
    }
}
