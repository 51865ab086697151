//! The notice for a client whose session ends: the reason, and the advice whether to reconnect.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{
    ident::{Device, Generation},
    login::Intent,
};

/// The reason why a session ends. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
#[non_exhaustive]
pub enum Code {
    /// Another device logged in.
    Superseded = 1,
    /// The same device logged in again on another connection.
    Replaced = 2,
    /// An administrator ended the session.
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
    /// The server is overloaded.
    Busy = 9,
}

/// Whether a client should reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// The client must not reconnect by itself. If two devices both reconnected, each would end the
    /// other's session again and again.
    Never,
    /// The client reconnects after the given time, or when the user asks.
    Later,
    /// The client reconnects at once, to another node if it can.
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

    /// The advice for the client.
    #[must_use]
    pub const fn retry(self) -> Retry {
        match self {
            Self::Superseded | Self::Replaced | Self::AdminKick | Self::Banned => Retry::Never,
            Self::Denied | Self::Busy => Retry::Later,
            Self::Draining | Self::HeartbeatLost | Self::NodeFenced => Retry::Now,
        }
    }

    /// The intent of the client's next login. A client that reconnects by itself resumes: if
    /// another device has logged in meanwhile, the client is denied instead of ending that session.
    #[must_use]
    pub const fn intent(self) -> Intent {
        match self {
            Self::Draining | Self::HeartbeatLost | Self::NodeFenced | Self::Busy => Intent::Resume,
            Self::Superseded | Self::Replaced | Self::AdminKick | Self::Denied | Self::Banned => {
                Intent::Login
            }
        }
    }

    /// The WebSocket close code. A client may reconnect after 4000 to 4499, and not after 4500 and
    /// above.
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

/// The notice that a client gets when its session ends. The fields are those of the `offline`
/// frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Offline {
    /// The reason.
    pub code: Code,
    /// The reason, for people.
    pub reason: String,
    /// The advice whether to reconnect.
    pub retry: Retry,
    /// Delay in milliseconds before the client reconnects, if the client should reconnect.
    pub retry_after_ms: u64,
    /// The intent of the client's next login.
    pub intent: Intent,
    /// The device that took over.
    pub by_device: Option<Device>,
    /// The generation that took over.
    pub r#gen: Option<Generation>,
    /// Time in milliseconds for the client to leave before its connection is cut.
    pub grace_ms: u64,
}

impl Offline {
    /// The notice for a code. The node fills in the grace period.
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

    /// Replaces the reason for people, if there is a text.
    pub(crate) fn with_reason(mut self, reason: Option<String>) -> Self {
        if let Some(reason) = reason {
            self.reason = reason;
        }
        self
    }

    /// Sets the device and the generation of the login that took over.
    pub(crate) fn superseded_by(
        mut self,
        device: Option<Device>,
        r#gen: Option<Generation>,
    ) -> Self {
        self.by_device = device;
        self.r#gen = r#gen;
        self
    }

    /// Sets the delay before the client comes back.
    pub(crate) fn with_retry_after(mut self, time: Duration) -> Self {
        self.retry_after_ms = millis(time);
        self
    }

    /// Sets the time for the client to leave before its connection is cut.
    pub(crate) fn with_grace(mut self, time: Duration) -> Self {
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
    fn code_numbers_round_trip_and_close_codes_agree_with_the_advice() {
        for number in 1..=9 {
            let code = Code::try_from(number).unwrap();
            assert_eq!(code.number(), number);
            assert_eq!(
                code.websocket() >= 4500,
                code.retry() == Retry::Never || code == Code::Denied
            );
            // A client that reconnects by itself must not end another session.
            let resumes = code.intent() == Intent::Resume;
            assert_eq!(resumes, code.websocket() < 4500, "{code:?}");
        }
        assert!(Code::try_from(0).is_err() && Code::try_from(10).is_err());
    }
}
