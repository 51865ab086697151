//! The frames of clients: one JSON object each, the same on every front.
//!
//! This module owns the names, numbers and members of the frames, which are part of the protocol in
//! proto/README.md. This module must never show a login token in a log.

use distlock_kickout::{
    Class, ClientVersion, Code, ConfirmedBy, Device, Generation, Intent, Message, NodeId, Offline,
    SessionId, SlotEntry, Uid,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{DeviceOutcome, Outcome};

/// A frame of a client.
#[derive(Debug)]
pub(crate) enum Inbound {
    Login(LoginFrame),
    Send(SendFrame),
    Ack(AckFrame),
    Saved,
    Ping,
    Bye,
    Logout,
}

/// The message ids of the raw TCP front, by the names of the frames. The ids are part of the
/// protocol: see proto/README.md.
const FRAME_IDS: &[(&str, u16)] = &[
    ("login", 1),
    ("send", 2),
    ("ping", 3),
    ("bye", 4),
    ("logout", 5),
    ("ack", 6),
    ("saved", 7),
    ("login_ok", 101),
    ("busy", 102),
    ("denied", 103),
    ("superseded", 104),
    ("offline", 105),
    ("message", 106),
    ("sent", 107),
    ("pong", 108),
    ("error", 109),
];

/// A frame to a client.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) id: u16,
    pub(crate) json: String,
}

impl Frame {
    pub(crate) fn is_offline(&self) -> bool {
        Some(self.id) == frame_id("offline")
    }
}

/// The version of this protocol. A client may name it in its login.
pub(crate) const VERSION: u64 = 1;

#[derive(Deserialize)]
pub(crate) struct LoginFrame {
    /// The version of this protocol that the client speaks.
    v: Option<u64>,
    /// Whether the client acknowledges messages.
    #[serde(default)]
    pub(crate) acks: bool,
    /// Whether the client says when it has saved.
    #[serde(default)]
    pub(crate) saves: bool,
    pub(crate) token: String,
    pub(crate) device: Device,
    #[serde(default = "Class::none")]
    pub(crate) class: Class,
    #[serde(default)]
    pub(crate) intent: Intent,
    #[serde(default)]
    pub(crate) resume: Option<String>,
    /// The number of this attempt to resume.
    #[serde(default)]
    pub(crate) attempt: u64,
    /// The handles of sessions that end with this login.
    #[serde(default)]
    pub(crate) end: Vec<SessionId>,
    /// The version of the client's program, for administrators.
    pub(crate) version: Option<ClientVersion>,
}

impl LoginFrame {
    /// Refuses a version of the protocol that this node does not speak.
    ///
    /// # Errors
    /// The text names both versions.
    pub(crate) fn check_version(&self) -> Result<(), String> {
        match self.v {
            None | Some(VERSION) => Ok(()),
            Some(other) => Err(format!(
                "v is {other}: this node speaks version {VERSION} of the protocol"
            )),
        }
    }
}

/// Says that every message up to this one has arrived.
#[derive(Debug, Deserialize)]
pub(crate) struct AckFrame {
    pub(crate) seq: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct SendFrame {
    pub(crate) to: Uid,
    #[serde(default)]
    pub(crate) to_device: Option<Device>,
    #[serde(default)]
    pub(crate) to_class: Option<Class>,
    /// The body as the client wrote it, so that its numbers and the order of its members arrive
    /// unchanged.
    pub(crate) body: Box<RawValue>,
    pub(crate) id: String,
}

/// A session of the account, as its own client sees it. Nothing here says where it is from.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OwnSession<'a> {
    /// The name of the session for `end` in the next login.
    handle: SessionId,
    device: &'a Device,
    class: &'a Class,
    since_ms: u64,
}

impl<'a> From<&'a SlotEntry> for OwnSession<'a> {
    fn from(entry: &'a SlotEntry) -> Self {
        Self {
            handle: entry.key.session,
            device: &entry.device,
            class: &entry.class,
            since_ms: entry.since_ms,
        }
    }
}

/// A frame to a client, by its members.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Outbound<'a> {
    LoginOk {
        uid: &'a Uid,
        session: SessionId,
        node: &'a NodeId,
        r#gen: Generation,
        resume: String,
        old_confirmed: ConfirmedBy,
        v: u64,
        acks: bool,
        /// Whether the node waits for the client's `saved` when the session ends.
        saves: bool,
        /// The longest silence of the client, which the client keeps shorter with pings.
        heartbeat_ms: u64,
    },
    Busy {
        retry_after_ms: u64,
    },
    Denied {
        code: Code,
        reason: &'a str,
        by_device: Option<&'a Device>,
        /// The account's sessions, if the policy allows no further one.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        sessions: Vec<OwnSession<'a>>,
    },
    Superseded {
        by_device: Option<&'a Device>,
        r#gen: Option<Generation>,
    },
    Offline(&'a Offline),
    Message {
        from: &'a Uid,
        body: &'a RawValue,
        id: &'a str,
        /// The number of the message, for a client that acknowledges.
        #[serde(skip_serializing_if = "Option::is_none")]
        seq: Option<u64>,
    },
    Sent {
        id: &'a str,
        outcome: Outcome,
        devices: &'a [DeviceOutcome],
    },
    Pong,
    Error {
        code: ErrorCode,
        reason: &'a str,
        /// The id of the `send` that this frame answers.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
        /// Time after which the client may try again.
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
}

/// A mistake of a client, or a failure of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ErrorCode {
    /// The bytes are no frame of this protocol.
    BadFrame,
    /// The frame is over the limit.
    TooLong,
    /// A value in the frame breaks a rule.
    BadValue,
    /// The first frame must be a login.
    NotLoggedIn,
    /// The connection has logged in already.
    LoggedIn,
    /// No login came within the time.
    TooSlow,
    /// The session may not send any more.
    Superseded,
    /// The store cannot be reached.
    Unavailable,
    /// The client sent too many messages.
    Throttled,
    /// The check of messages refused the message.
    NotAllowed,
}

/// The reason why a frame was refused.
#[derive(Debug)]
pub(crate) enum FrameError {
    /// The bytes are no frame of this protocol.
    Garbage,
    /// The bytes are a frame, but a value in it breaks a rule.
    Value {
        /// The rule, in at most 200 characters.
        why: String,
        /// The id of the frame, if it is a `send`.
        id: Option<String>,
    },
}

impl Inbound {
    /// Reads a frame. `id` is the message id before the text, if the front has message ids.
    pub(crate) fn parse(text: &str, id: Option<u16>) -> Result<Self, FrameError> {
        // The whole text is parsed once. A body that is passed on unchanged must be JSON, and its
        // depth must be bounded.
        let value: Value = serde_json::from_str(text).map_err(|_| FrameError::Garbage)?;
        let name = value.get("type").and_then(Value::as_str);
        let name = name.ok_or(FrameError::Garbage)?;
        if id.is_some_and(|id| frame_id(name) != Some(id)) {
            return Err(FrameError::Garbage);
        }
        let sent = value.get("id").filter(|_| name == "send");
        let sent = sent.and_then(Value::as_str).map(str::to_owned);
        let frame = match name {
            "login" => serde_json::from_value(value).map(Self::Login),
            "send" => serde_json::from_str(text).map(Self::Send),
            "ack" => serde_json::from_value(value).map(Self::Ack),
            "saved" => Ok(Self::Saved),
            "ping" => Ok(Self::Ping),
            "bye" => Ok(Self::Bye),
            "logout" => Ok(Self::Logout),
            _ => return Err(FrameError::Garbage),
        };
        frame.map_err(|error| FrameError::Value {
            why: error.to_string().chars().take(200).collect(),
            id: sent,
        })
    }
}

impl Outbound<'_> {
    pub(crate) fn to_frame(&self) -> Frame {
        let name = match self {
            Self::LoginOk { .. } => "login_ok",
            Self::Busy { .. } => "busy",
            Self::Denied { .. } => "denied",
            Self::Superseded { .. } => "superseded",
            Self::Offline(_) => "offline",
            Self::Message { .. } => "message",
            Self::Sent { .. } => "sent",
            Self::Pong => "pong",
            Self::Error { .. } => "error",
        };
        Frame {
            id: frame_id(name).unwrap_or_default(),
            // Strings, numbers and parsed JSON always serialise.
            json: serde_json::to_string(self).unwrap_or_default(),
        }
    }
}

fn frame_id(name: &str) -> Option<u16> {
    FRAME_IDS
        .iter()
        .find_map(|(known, id)| (*known == name).then_some(*id))
}

impl std::fmt::Debug for LoginFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginFrame")
            .field("device", &self.device)
            .field("intent", &self.intent)
            .finish_non_exhaustive()
    }
}

/// The frame that carries a message; `seq` is set for a client that acknowledges.
pub(crate) fn message_frame(message: &Message, seq: Option<u64>) -> Frame {
    let text;
    let body = match serde_json::from_str(&message.body) {
        Ok(body) => body,
        // A program that embeds the flow may send a text that is not JSON.
        Err(_) => {
            text = serde_json::value::to_raw_value(&message.body).unwrap_or_default();
            &*text
        }
    };
    Outbound::Message {
        from: &message.from,
        body,
        id: &message.id,
        seq,
    }
    .to_frame()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_names_and_numbers_of_the_protocol() {
        let uid = Uid::new("u").unwrap();
        for (frame, json, id) in [
            (Outbound::Pong, r#"{"type":"pong"}"#, 108),
            (
                Outbound::Busy { retry_after_ms: 5 },
                r#"{"type":"busy","retry_after_ms":5}"#,
                102,
            ),
            (
                Outbound::Sent {
                    id: "m1",
                    outcome: Outcome::Stored,
                    devices: &[],
                },
                r#"{"type":"sent","id":"m1","outcome":"stored","devices":[]}"#,
                107,
            ),
            (
                Outbound::Message {
                    from: &uid,
                    body: &RawValue::from_string(r#"{"a":1}"#.into()).unwrap(),
                    id: "m1",
                    seq: None,
                },
                r#"{"type":"message","from":"u","body":{"a":1},"id":"m1"}"#,
                106,
            ),
            (
                Outbound::Offline(&Offline::new(Code::Superseded)),
                concat!(
                    r#"{"type":"offline","code":1,"reason":"another device logged in","#,
                    r#""retry":"never","retry_after_ms":0,"intent":"login","#,
                    r#""by_device":null,"gen":null,"grace_ms":0}"#
                ),
                105,
            ),
        ] {
            let frame = frame.to_frame();
            assert_eq!((frame.json.as_str(), frame.id), (json, id));
        }
    }

    #[test]
    fn garbage_and_a_wrong_value_are_different_errors() {
        let parse = |text| Inbound::parse(text, None);
        for garbage in [
            "",
            "x",
            "[]",
            "1",
            "{}",
            r#"{"type":"nonsense"}"#,
            r#"{"type":"login_ok"}"#,
            r#"{"type":7}"#,
        ] {
            assert!(
                matches!(parse(garbage), Err(FrameError::Garbage)),
                "{garbage}"
            );
        }
        for wrong in [
            r#"{"type":"login"}"#,
            r#"{"type":"login","token":"t","device":""}"#,
            r#"{"type":"login","token":"t","device":"d","version":""}"#,
            r#"{"type":"login","token":"t","device":"d","version":"1\u000a"}"#,
            r#"{"type":"login","token":"t","device":"d","version":2}"#,
            r#"{"type":"send","to":"","body":1,"id":"x"}"#,
        ] {
            let Err(FrameError::Value { id, .. }) = parse(wrong) else {
                panic!("{wrong}")
            };
            assert_eq!(id.is_some(), wrong.contains("send"), "{wrong}");
        }
        assert!(matches!(parse(r#"{"type":"ping"}"#), Ok(Inbound::Ping)));
        assert!(matches!(
            Inbound::parse(r#"{"type":"ping"}"#, Some(4)),
            Err(FrameError::Garbage)
        ));
    }

    #[test]
    fn a_body_arrives_as_it_was_sent() {
        let uid = Uid::new("u").unwrap();
        for body in [
            r#"{"b":1,"a":2,"a":3}"#,
            "123456789012345678901234567890",
            "1.10",
            r#""\u00e9""#,
            "[1, 2]",
            "null",
        ] {
            let sent = format!(r#"{{"type":"send","to":"u","body":{body},"id":"m1"}}"#);
            let Ok(Inbound::Send(frame)) = Inbound::parse(&sent, Some(2)) else {
                panic!("{body} is a body")
            };
            let mut message = Message::new(uid.clone(), frame.body.get());
            message.id = "m1".into();
            let frame = message_frame(&message, None);
            let wanted = format!(r#"{{"type":"message","from":"u","body":{body},"id":"m1"}}"#);
            assert_eq!(frame.json, wanted);
            message.body = "no JSON".into();
            let wanted = r#"{"type":"message","from":"u","body":"no JSON","id":"m1"}"#;
            assert_eq!(message_frame(&message, None).json, wanted);
        }
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let sent = format!(r#"{{"type":"send","to":"u","body":{deep},"id":"m1"}}"#);
        assert!(matches!(
            Inbound::parse(&sent, None),
            Err(FrameError::Garbage)
        ));
    }

    #[test]
    fn a_token_is_hidden_in_the_debug_form() {
        let frame = Inbound::parse(
            r#"{"type":"login","token":"sesame","device":"pc"}"#,
            Some(1),
        );
        assert!(!format!("{frame:?}").contains("sesame"));
    }
}
