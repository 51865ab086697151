//! Puts takeovers together from this node's events: the logins here that took an account over, and the sessions here that
//! another node's login ended.

use std::collections::VecDeque;

use distlock_kickout::{Device, Event, NodeId, SessionId, Transition, Uid};
use serde::Serialize;

/// Takeovers under way that are remembered; a login that never gets confirmed would stay for ever.
const MOST: usize = 1024;

/// One takeover, as the page shows it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Takeover {
    at_ms: u64,
    uid: Uid,
    from_node: NodeId,
    to_node: NodeId,
    from_device: Option<Device>,
    to_device: Option<Device>,
    /// From the write that decided it until the newcomer was let in; for another node's login, until that node told this one.
    took_us: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Takeovers(VecDeque<Pending>);

#[derive(Debug)]
struct Pending {
    uid: Uid,
    newcomer: SessionId,
    granted_us: u64,
    from_node: Option<NodeId>,
    from_device: Option<Device>,
}

impl Takeovers {
    pub(super) fn follow(&mut self, event: &Event) -> Option<Takeover> {
        let uid = event.uid.as_ref()?;
        match event.event {
            Transition::Granted => {
                if self.0.len() == MOST {
                    self.0.pop_front();
                }
                self.0.push_back(Pending {
                    uid: uid.clone(),
                    newcomer: event.session?,
                    granted_us: event.boot_us,
                    from_node: None,
                    from_device: None,
                });
                None
            }
            // Follows the grant that did it.
            Transition::Revoked => {
                let pending = self.0.iter_mut().rev().find(|it| it.uid == *uid)?;
                pending.from_node.clone_from(&event.session_node);
                None
            }
            Transition::Superseded => {
                if let Some(pending) = self.0.iter_mut().rev().find(|it| it.uid == *uid) {
                    pending.from_device.clone_from(&event.device);
                }
                None
            }
            Transition::KickReceived => {
                // Its session was told just before, and another node's login was the reason.
                event.code.filter(|code| code.number() <= 2)?;
                Some(Takeover {
                    at_ms: event.at_ms,
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
                Some(Takeover {
                    at_ms: event.at_ms,
                    uid: pending.uid,
                    from_node: pending.from_node?,
                    to_node: event.node.clone(),
                    from_device: pending.from_device,
                    to_device: event.device.clone(),
                    took_us: Some(event.boot_us.saturating_sub(pending.granted_us)),
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

    fn event(kind: &str, at: u64, more: Value) -> Event {
        let mut event = json!({"seq": 1, "at_ms": at, "boot_us": at, "node": "n1", "boot": 1, "event": kind, "uid": "anna"});
        if let (Value::Object(event), Value::Object(more)) = (&mut event, more) {
            event.extend(more);
        }
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn a_login_that_found_somebody_is_a_takeover_and_another_is_not() {
        let mut takeovers = Takeovers::default();
        let (old, new) = (
            "00000000-0000-4000-8000-000000000001",
            "00000000-0000-4000-8000-000000000002",
        );
        assert_eq!(
            takeovers.follow(&event("granted", 1, json!({"session": old}))),
            None
        );
        let first = event("admitted", 5, json!({"session": old, "device": "phone"}));
        assert_eq!(takeovers.follow(&first), None, "there was nobody");
        takeovers.follow(&event("granted", 10, json!({"session": new})));
        takeovers.follow(&event(
            "revoked",
            11,
            json!({"session": old, "session_node": "n2"}),
        ));
        let admitted = event("admitted", 30, json!({"session": new, "device": "pc"}));
        let takeover = takeovers.follow(&admitted).unwrap();
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
    fn a_kick_that_ended_a_session_here_is_a_takeover_by_its_sender() {
        let mut takeovers = Takeovers::default();
        let kick = |result: &str, code: u8| {
            event(
                "kick_received",
                1,
                json!({"peer": "n3", "result": result, "code": code, "device": "phone", "by_device": "pc", "took_us": 700}),
            )
        };
        let takeover = takeovers.follow(&kick("Kicked", 1)).unwrap();
        assert_eq!(
            (takeover.from_node.as_str(), takeover.to_node.as_str()),
            ("n1", "n3")
        );
        assert_eq!(takeover.from_device, Some(Device::new("phone").unwrap()));
        assert_eq!(takeover.to_device, Some(Device::new("pc").unwrap()));
        assert_eq!(takeover.took_us, Some(700));
        assert_eq!(takeovers.follow(&kick("AlreadyGone", 1)), None);
        assert_eq!(
            takeovers.follow(&kick("Kicked", 3)),
            None,
            "by an administrator"
        );
    }
}
