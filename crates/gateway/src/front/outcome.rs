//! What became of a message.

use distlock_kickout::{Class, Device};
use serde::Serialize;

/// What became of a message. Of several devices, the one that is worst off speaks for all: they are
/// in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The client acknowledged it.
    Delivered,
    /// It was written to the connection of a client that does not acknowledge.
    Written,
    /// It is kept until it was handed out.
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

/// What became of a message for one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceOutcome {
    pub(crate) device: Device,
    pub(crate) class: Class,
    pub(crate) outcome: Outcome,
}
