//! Conversions between the flow's types and the types of the protocol, and the constants of both
//! ends.
//!
//! Invariant of this module: every value from another node is checked here. An unknown answer must
//! never count as a final answer.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result, micros};
use distlock_kickout::{
    Boot, Code, DeliverRequest, DeliverResult, Device, Generation, KickRequest, KickResult,
    Message, NodeId, SessionKey, Uid,
};
use tonic::Status;
use uuid::Uuid;

use super::v1::{self, takeovers_response};
use crate::takeovers::{NodeReport, Takeover};

/// Period of HTTP/2 pings on an idle connection. The pings detect a peer that vanished silently.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(10);
pub(super) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest message that is sent; a client's frame always fits.
pub(super) const MAX_MESSAGE: usize = 256 * 1024;
/// The header in which a node names the version of the call tokens that it reads. With this header
/// a caller learns that its tokens have another version.
pub(super) const CALLS_HEADER: &str = "distlock-calls";
pub(super) const CALLS_VERSION: &str = "1";

/// The version of `Deliver` that nodes speak: see the protocol definition.
const DELIVER_VERSION: u32 = 1;

pub(super) fn kick_to_wire(request: KickRequest) -> v1::KickRequest {
    v1::KickRequest {
        uid: request.uid.into(),
        key: Some(key_to_wire(request.key)),
        gen_max: request.gen_max.get(),
        code: request.code.number().into(),
        reason: request.reason,
        by_device: request.by_device.map(Into::into),
        by_gen: request.by_gen.map(Generation::get),
        kick_id: request.kick_id.to_string(),
        from: request.from.into(),
        after_us: request.after.map(micros),
    }
}

pub(super) fn kick_from_wire(request: v1::KickRequest) -> Result<KickRequest> {
    let code = u8::try_from(request.code)
        .ok()
        .and_then(|number| Code::try_from(number).ok())
        .ok_or_else(|| bad_value_error("code is no offline code"))?;
    let mut kick = KickRequest::new(
        Uid::new(request.uid)?,
        key_from_wire(request.key)?,
        Generation::new(request.gen_max),
        code,
        Uuid::parse_str(&request.kick_id).map_err(|_| bad_value_error("kick_id is not a UUID"))?,
        NodeId::new(request.from)?,
    );
    kick.reason = request.reason;
    kick.by_device = request.by_device.map(Device::new).transpose()?;
    kick.by_gen = request.by_gen.map(Generation::new);
    kick.after = request.after_us.map(Duration::from_micros);
    Ok(kick)
}

pub(super) fn kicked_to_wire(result: KickResult) -> v1::KickResponse {
    use v1::kick_response::Result as Wire;
    let (result, newer_gen) = match result {
        KickResult::Kicked => (Wire::Kicked, 0),
        KickResult::BootMismatch => (Wire::BootMismatch, 0),
        KickResult::Newer(newer) => (Wire::Newer, newer.get()),
        KickResult::Saving => (Wire::Saving, 0),
        KickResult::Saved => (Wire::Saved, 0),
        // A result of a later version is as final as `AlreadyGone`.
        _ => (Wire::AlreadyGone, 0),
    };
    v1::KickResponse {
        result: result.into(),
        newer_gen,
    }
}

/// Returns `None` for an answer that this version does not know. Such an answer must not count as
/// final.
pub(super) fn kicked_from_wire(response: v1::KickResponse) -> Option<KickResult> {
    use v1::kick_response::Result as Wire;
    Some(match response.result() {
        Wire::Unspecified => return None,
        Wire::Kicked => KickResult::Kicked,
        Wire::AlreadyGone => KickResult::AlreadyGone,
        Wire::BootMismatch => KickResult::BootMismatch,
        Wire::Newer => KickResult::Newer(Generation::new(response.newer_gen)),
        Wire::Saving => KickResult::Saving,
        Wire::Saved => KickResult::Saved,
    })
}

pub(super) fn delivery_to_wire(request: DeliverRequest) -> v1::DeliverRequest {
    v1::DeliverRequest {
        uid: request.uid.into(),
        key: Some(key_to_wire(request.key)),
        from: request.message.from.into(),
        id: request.message.id,
        body: request.message.body,
        within_ms: u64::try_from(request.within.as_millis()).unwrap_or(u64::MAX),
        version: DELIVER_VERSION,
    }
}

/// Refuses a version that this node does not know; the error names the version.
pub(super) fn check_version(request: &v1::DeliverRequest) -> std::result::Result<(), String> {
    match request.version {
        DELIVER_VERSION => Ok(()),
        unknown => Err(format!(
            "version {unknown} of Deliver is not known here, only version {DELIVER_VERSION}"
        )),
    }
}

pub(super) fn delivery_from_wire(request: v1::DeliverRequest) -> Result<DeliverRequest> {
    Ok(DeliverRequest::new(
        Uid::new(request.uid)?,
        key_from_wire(request.key)?,
        Message {
            id: request.id,
            ..Message::new(Uid::new(request.from)?, request.body)
        },
        // A peer cannot make this node wait for longer than a minute.
        Duration::from_millis(request.within_ms.min(60_000)),
    ))
}

pub(super) fn delivered_to_wire(result: DeliverResult) -> v1::DeliverResponse {
    use v1::deliver_response::Result as Wire;
    let result = match result {
        DeliverResult::Delivered => Wire::Delivered,
        DeliverResult::Written => Wire::Written,
        DeliverResult::Unacknowledged => Wire::Unacknowledged,
        DeliverResult::NotCurrent => Wire::NotCurrent,
        DeliverResult::Full => Wire::Full,
        _ => Wire::Unknown,
    };
    v1::DeliverResponse {
        result: result.into(),
    }
}

pub(super) fn delivered_from_wire(response: v1::DeliverResponse) -> DeliverResult {
    use v1::deliver_response::Result as Wire;
    match response.result() {
        Wire::Delivered => DeliverResult::Delivered,
        Wire::Written => DeliverResult::Written,
        Wire::Unacknowledged => DeliverResult::Unacknowledged,
        Wire::NotCurrent => DeliverResult::NotCurrent,
        Wire::Full => DeliverResult::Full,
        Wire::Unknown | Wire::Unspecified => DeliverResult::Unknown,
    }
}

pub(super) fn idle_to_wire(idle: Vec<(SessionKey, Duration)>) -> v1::IdleResponse {
    v1::IdleResponse {
        sessions: idle
            .into_iter()
            .map(|(key, time)| v1::idle_response::Session {
                key: Some(key_to_wire(key)),
                idle_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            })
            .collect(),
    }
}

pub(super) fn idle_from_wire(response: v1::IdleResponse) -> Result<Vec<(SessionKey, Duration)>> {
    response
        .sessions
        .into_iter()
        .map(|it| Ok((key_from_wire(it.key)?, Duration::from_millis(it.idle_ms))))
        .collect()
}

pub(super) fn report_to_wire(report: NodeReport) -> v1::TakeoversResponse {
    let takeovers = report
        .takeovers
        .into_iter()
        .map(|it| takeovers_response::Takeover {
            kick_id: it.kick_id.to_string(),
            at_ms: it.at_ms,
            uid: it.uid.into(),
            from_node: it.from_node.into(),
            to_node: it.to_node.into(),
            from_device: it.from_device.map(Into::into),
            to_device: it.to_device.map(Into::into),
            took_us: it.took_us,
        });
    v1::TakeoversResponse {
        takeovers: takeovers.collect(),
        sessions: report.sessions,
        version: report.version,
    }
}

pub(super) fn report_from_wire(
    seen_by: &NodeId,
    response: v1::TakeoversResponse,
) -> Result<NodeReport> {
    let takeover = |it: takeovers_response::Takeover| {
        Ok(Takeover {
            kick_id: Uuid::parse_str(&it.kick_id)
                .map_err(|_| bad_value_error("kick_id is not a UUID"))?,
            at_ms: it.at_ms,
            seen_by: seen_by.clone(),
            uid: Uid::new(it.uid)?,
            from_node: NodeId::new(it.from_node)?,
            to_node: NodeId::new(it.to_node)?,
            from_device: it.from_device.map(Device::new).transpose()?,
            to_device: it.to_device.map(Device::new).transpose()?,
            took_us: it.took_us,
        })
    };
    let takeovers = response.takeovers.into_iter().map(takeover);
    Ok(NodeReport {
        takeovers: takeovers.collect::<Result<_>>()?,
        sessions: response.sessions,
        version: response.version,
    })
}

fn key_to_wire(key: SessionKey) -> v1::SessionKey {
    v1::SessionKey {
        node: key.node.into(),
        boot: key.boot.get(),
        session: key.session.to_string(),
    }
}

fn key_from_wire(key: Option<v1::SessionKey>) -> Result<SessionKey> {
    let key = key.ok_or_else(|| bad_value_error("the session is missing"))?;
    Ok(SessionKey {
        node: NodeId::new(key.node)?,
        boot: Boot::new(key.boot),
        session: key.session.parse()?,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "shaped for map_err")]
pub(super) fn invalid_status(error: Error) -> Status {
    Status::invalid_argument(error.message().to_owned())
}

fn bad_value_error(what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

/// Functions of this module for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use prost::Message as _;

    use super::{
        delivery_from_wire, delivery_to_wire, idle_from_wire, idle_to_wire, kick_from_wire,
        kick_to_wire, v1,
    };

    /// A request of a node, first as it was read, and then as it is read after it was written
    /// again. `None` means that the request was refused. The first byte selects the message.
    pub(crate) fn round_trip(bytes: &[u8]) -> Option<(String, String)> {
        let (which, bytes) = bytes.split_first()?;
        match which % 3 {
            0 => {
                let read = |wire| kick_from_wire(wire).ok();
                let first = read(v1::KickRequest::decode(bytes).ok()?)?;
                let again = kick_to_wire(first.clone()).encode_to_vec();
                let again = v1::KickRequest::decode(&*again).ok().and_then(read);
                Some((
                    format!("{first:?}"),
                    again.map_or_else(String::new, |again| format!("{again:?}")),
                ))
            }
            1 => {
                let read = |wire| delivery_from_wire(wire).ok();
                let first = read(v1::DeliverRequest::decode(bytes).ok()?)?;
                let again = delivery_to_wire(first.clone()).encode_to_vec();
                let again = v1::DeliverRequest::decode(&*again).ok().and_then(read);
                Some((
                    format!("{first:?}"),
                    again.map_or_else(String::new, |again| format!("{again:?}")),
                ))
            }
            _ => {
                let read = |wire| idle_from_wire(wire).ok();
                let first = read(v1::IdleResponse::decode(bytes).ok()?)?;
                let again = idle_to_wire(first.clone()).encode_to_vec();
                let again = v1::IdleResponse::decode(&*again).ok().and_then(read);
                Some((
                    format!("{first:?}"),
                    again.map_or_else(String::new, |again| format!("{again:?}")),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SessionKey {
        SessionKey {
            node: NodeId::new("n1").unwrap(),
            boot: Boot::new(7),
            session: "0193e0a4-7e2b-7c1d-8f00-000000000001".parse().unwrap(),
        }
    }

    #[test]
    fn requests_and_answers_are_equal_after_a_round_trip() {
        let mut kick = KickRequest::new(
            Uid::new("anna").unwrap(),
            key(),
            Generation::new(9),
            Code::Superseded,
            Uuid::new_v4(),
            NodeId::new("n2").unwrap(),
        );
        assert_eq!(kick_from_wire(kick_to_wire(kick.clone())).unwrap(), kick);
        kick.reason = Some("spam".into());
        kick.by_device = Some(Device::new("pc").unwrap());
        kick.by_gen = Some(Generation::new(10));
        kick.after = Some(Duration::from_micros(700));
        assert_eq!(kick_from_wire(kick_to_wire(kick.clone())).unwrap(), kick);
        for result in [
            KickResult::Kicked,
            KickResult::AlreadyGone,
            KickResult::BootMismatch,
            KickResult::Newer(Generation::new(3)),
            KickResult::Saving,
            KickResult::Saved,
        ] {
            assert_eq!(kicked_from_wire(kicked_to_wire(result)), Some(result));
        }
        for result in [
            DeliverResult::Delivered,
            DeliverResult::Written,
            DeliverResult::Unacknowledged,
            DeliverResult::NotCurrent,
            DeliverResult::Full,
            DeliverResult::Unknown,
        ] {
            assert_eq!(delivered_from_wire(delivered_to_wire(result)), result);
        }
        let idle = vec![(key(), Duration::from_millis(1500))];
        assert_eq!(idle_from_wire(idle_to_wire(idle.clone())).unwrap(), idle);
    }

    #[test]
    fn wrong_values_from_another_node_are_refused() {
        assert!(kick_from_wire(v1::KickRequest::default()).is_err());
        assert!(delivery_from_wire(v1::DeliverRequest::default()).is_err());
        assert_eq!(kicked_from_wire(v1::KickResponse::default()), None);
        let later = v1::DeliverResponse { result: 99 };
        assert_eq!(delivered_from_wire(later), DeliverResult::Unknown);
        for version in [0, 7] {
            let other = v1::DeliverRequest {
                version,
                ..v1::DeliverRequest::default()
            };
            let refused = check_version(&other).unwrap_err();
            let says = format!("version {version} of Deliver");
            assert!(refused.contains(&says), "{refused}");
        }
    }
}
