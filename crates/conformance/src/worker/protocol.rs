//! The messages between the suite and its workers. A moment is the time since boot, so a moment
//! means the same in all processes of the machine.
//!
//! Invariant: the JSON of these types is the wire format between two programs; a changed field
//! breaks workers of another version.

use std::time::Duration;

use distlock_core::LossReason;
use serde::{Deserialize, Serialize};

use crate::history::Hold;

/// A command to a worker. Each command has one [`Reply`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Command {
    /// Open the store. This command must come first, and only once.
    Open {
        /// The URL of the store.
        url: String,
    },
    /// Take a lock and keep it.
    Acquire(Ask),
    /// Take, hold and release a lock a number of times.
    Cycles {
        /// The lock to take.
        ask: Ask,
        /// The time to hold the lock in each cycle.
        hold: Duration,
        /// The number of cycles.
        count: u32,
    },
    /// Take, hold and release a shared lock a number of times.
    SharedCycles {
        /// The shared lock to take. It is renewed always.
        ask: Ask,
        /// What is wanted of it.
        wish: SharedWish,
        /// The time to hold the lock in each cycle.
        hold: Duration,
        /// The number of cycles.
        count: u32,
    },
    /// Extend the lock that is kept.
    Extend {
        /// The new TTL.
        ttl: Duration,
    },
    /// Report the state of the kept lock, without waiting.
    State,
    /// Release the lock that is kept.
    Release,
    /// Turn the lock that is kept into a ticket.
    IntoTicket,
    /// Resume a ticket and keep the lock.
    Resume {
        /// The ticket.
        ticket: String,
    },
    /// Block the only thread of the worker's runtime.
    Block {
        /// The time to block.
        time: Duration,
    },
}

/// A request for a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// The lock name.
    pub name: String,
    /// The TTL.
    pub ttl: Duration,
    /// The time to wait for the lock.
    pub wait: Duration,
    /// Whether the lock is renewed automatically.
    pub renew: bool,
    /// Whether the lock is taken in the order of arrival.
    pub fair: bool,
    /// The earliest moment to start.
    pub not_before: Duration,
}

/// What a worker wants of a shared lock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SharedWish {
    /// To be one of its readers.
    Read,
    /// To be its only writer.
    Write,
    /// Some of its permits.
    Permits {
        /// How many.
        count: u32,
        /// How many there are.
        of: u32,
    },
}

/// The reply of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reply {
    /// The store is open, or the command is done.
    Done,
    /// The worker holds the lock. A moment is the time from boot to that moment.
    Acquired {
        /// The fencing token of the lock.
        token: u64,
        /// The moment before the request.
        asked: Duration,
        /// The moment after the grant.
        granted: Duration,
        /// The end of the guard's validity, unless the lease is renewed.
        deadline: Duration,
    },
    /// All cycles have ended.
    Cycles {
        /// The cycles that got the lock. Each permit counts as a lock of its own: `NAME#0`.
        holds: Vec<Hold>,
        /// The releases of these cycles.
        releases: Vec<ReleaseReport>,
        /// The cycles that did not get the lock.
        refused: Vec<Refused>,
    },
    /// The state of the lock.
    State {
        /// Whether the guard says that it is valid.
        valid: bool,
        /// The reason of the loss, if the loss future was ready at its first poll.
        lost: Option<LossReason>,
        /// The time for which the guard is still valid.
        remaining: Duration,
        /// The moment of this report.
        at: Duration,
    },
    /// The lock was released.
    Released {
        /// The result of the release.
        report: ReleaseReport,
        /// The moment before the request.
        asked: Duration,
    },
    /// The lock is now a ticket.
    Ticket {
        /// The ticket.
        ticket: String,
    },
    /// The command failed.
    Refused(Refused),
}

/// The result of a release, in the form that is sent to the suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReleaseReport {
    /// The worker held the lock until the release.
    Clean,
    /// The lock was lost before the release.
    AlreadyLost(LossReason),
    /// The store did not answer.
    Unconfirmed(String),
}

/// An operation that ended with an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// The name of the error's kind, as `Debug` prints it.
    pub kind: String,
    /// The text of the error.
    pub message: String,
    /// The moment before the operation started.
    pub asked: Duration,
    /// The moment after the operation failed.
    pub answered: Duration,
}
