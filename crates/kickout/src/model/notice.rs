//! Why a session ends, and what its client should do next.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{
    ident::{Device, Generation},
    intent::Intent,
};

/// Why a session ends. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[non_exhaustive]
pub enum Code {
    /// Another device logged in.
    Superseded = 1,
    /// The same device logged in again on another connection.
    Replaced = 2,
    /// An administrator ended it.
    AdminKick = 3,
    /// The policy allows no further session.
    Denied = 4,
    /// The account is banned or its token was revoked.
    Banned = 5,
    /// The node is about to stop.
    Draining = 6,
    /// The client was silent for too long.
    HeartbeatLost = 7,
    /// The node lost its lease and may not serve.
    NodeFenced = 8,
    /// Too much at once.
    Busy = 9,
}

/// Whether a client should come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// Not by itself: two devices that both did would throw each other out for ever.
    Never,
    /// After the given time, or when the user asks.
    Later,
    /// At once; another node if it can.
    Now,
}

impl Code {
    pub(crate) const ALL: [Self; 9] = [
        Self::Superseded,
        Self::Replaced,
        Self::AdminKick,
        Self::Denied,
        Self::Banned,
        Self::Draining,
        Self::HeartbeatLost,
        Self::NodeFenced,
        Self::Busy,
    ];

    /// The number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// What the client should do.
    #[must_use]
    pub const fn retry(self) -> Retry {
        match self {
            Self::Superseded | Self::Replaced | Self::AdminKick | Self::Banned => Retry::Never,
            Self::Denied | Self::Busy => Retry::Later,
            Self::Draining | Self::HeartbeatLost | Self::NodeFenced => Retry::Now,
        }
    }

    /// The intent of a login that comes back. A client that comes back by itself resumes: if another
    /// device has logged in meanwhile, it is denied instead of ending that session.
    #[must_use]
    pub const fn intent(self) -> Intent {
        match self {
            Self::Draining | Self::HeartbeatLost | Self::NodeFenced | Self::Busy => Intent::Resume,
            Self::Superseded | Self::Replaced | Self::AdminKick | Self::Denied | Self::Banned => {
                Intent::Login
            }
        }
    }

    /// The WebSocket close code: 4000 to 4499 invites a reconnect, 4500 and above does not.
    #[must_use]
    pub const fn websocket(self) -> u16 {
        match self {
            Self::Superseded => 4501,
            Self::Replaced => 4502,
            Self::AdminKick => 4503,
            Self::Denied => 4504,
            Self::Banned => 4505,
            Self::Draining => 4001,
            Self::HeartbeatLost => 4002,
            Self::NodeFenced => 4003,
            Self::Busy => 4004,
        }
    }

    /// One line for people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Superseded => "another device logged in",
            Self::Replaced => "this device logged in again",
            Self::AdminKick => "ended by an administrator",
            Self::Denied => "no further session is allowed",
            Self::Banned => "the account is banned",
            Self::Draining => "the node is about to stop",
            Self::HeartbeatLost => "nothing was heard for too long",
            Self::NodeFenced => "the node lost its lease",
            Self::Busy => "too much at once",
        }
    }
}

impl From<Code> for u8 {
    fn from(code: Code) -> Self {
        code.number()
    }
}

impl TryFrom<u8> for Code {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        Ok(match number {
            1 => Self::Superseded,
            2 => Self::Replaced,
            3 => Self::AdminKick,
            4 => Self::Denied,
            5 => Self::Banned,
            6 => Self::Draining,
            7 => Self::HeartbeatLost,
            8 => Self::NodeFenced,
            9 => Self::Busy,
            _ => return Err(format!("{number} is no offline code")),
        })
    }
}

/// What a client is told when its session ends. The fields are those of the `offline` frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Offline {
    /// Why.
    pub code: Code,
    /// Why, for people.
    pub reason: String,
    /// Whether to come back.
    pub retry: Retry,
    /// When to come back, where that applies.
    pub retry_after_ms: u64,
    /// The intent of a login that comes back.
    #[serde(default)]
    pub intent: Intent,
    /// The device that took over.
    pub by_device: Option<Device>,
    /// The generation that took over.
    pub r#gen: Option<Generation>,
    /// How long the client has to leave before it is cut off.
    pub grace_ms: u64,
}

impl Offline {
    /// The notice for a code. The grace is filled in by the node.
    #[must_use]
    pub fn new(code: Code) -> Self {
        Self {
            code,
            reason: code.text().into(),
            retry: code.retry(),
            retry_after_ms: 0,
            intent: code.intent(),
            by_device: None,
            r#gen: None,
            grace_ms: 0,
        }
    }

    /// Why, for people, where somebody gave a text.
    pub(crate) fn reason(mut self, reason: Option<String>) -> Self {
        if let Some(reason) = reason {
            self.reason = reason;
        }
        self
    }

    pub(crate) fn by(mut self, device: Option<Device>, r#gen: Option<Generation>) -> Self {
        self.by_device = device;
        self.r#gen = r#gen;
        self
    }

    pub(crate) fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after_ms = millis(time);
        self
    }

    pub(crate) fn grace(mut self, time: Duration) -> Self {
        self.grace_ms = millis(time);
        self
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round_and_close_codes_agree_with_the_advice() {
        for number in 1..=9 {
            let code = Code::try_from(number).unwrap();
            assert_eq!(code.number(), number);
            assert_eq!(
                code.websocket() >= 4500,
                code.retry() == Retry::Never || code == Code::Denied
            );
            // Whoever comes back by itself must not throw anybody out.
            let resumes = code.intent() == Intent::Resume;
            assert_eq!(resumes, code.websocket() < 4500, "{code:?}");
        }
        assert!(Code::try_from(0).is_err() && Code::try_from(10).is_err());
    }
}
