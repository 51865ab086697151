//! The outcome of a message, as clients and servers hear it.

use distlock_kickout::{Class, Device};
use serde::Serialize;

/// The outcome of a message. The variants go from best to worst: of several devices, the worst
/// outcome stands for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The client acknowledged it.
    Delivered,
    /// It was written to the connection of a client that does not acknowledge.
    Written,
    /// It is kept until a session has received it.
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
