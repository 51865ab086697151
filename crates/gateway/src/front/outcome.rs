//! The outcome of a message, in the form that clients and servers get.

use distlock_kickout::{Class, Device};
use serde::Serialize;

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
