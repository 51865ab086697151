//! What the suite and its workers say to each other. Times are counted from boot, so that all processes of the machine agree.

use std::time::Duration;

use distlock_core::LossReason;
use serde::{Deserialize, Serialize};

use crate::history::Hold;

/// What a worker is told to do. One at a time, each with one [`Reply`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Command {
    /// Open the store; always the first.
    Open {
        /// Which store.
        url: String,
        /// Whether to lock through its records.
        over_records: bool,
    },
    /// Take a lock and keep it.
    Acquire(Ask),
    /// Take, hold and release a lock a number of times.
    Cycles {
        /// What to take.
        ask: Ask,
        /// How long to hold it each time.
        hold: Duration,
        /// How many times.
        count: u32,
    },
    /// Extend the lock that is kept.
    Extend {
        /// The new time to live.
        ttl: Duration,
    },
    /// Tell about the lock that is kept, without waiting for anything.
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
        /// For how long.
        time: Duration,
    },
}

/// How to ask for a lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// Which.
    pub name: String,
    /// For how long.
    pub ttl: Duration,
    /// How long to wait for it.
    pub wait: Duration,
    /// Whether it is renewed by itself.
    pub renew: bool,
    /// Do not start before this time.
    pub not_before: Duration,
}

/// What a worker answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reply {
    /// The store is open, or what was told is done.
    Done,
    /// The lock is ours.
    Acquired {
        /// Its fencing token.
        token: u64,
        /// Before it was asked for.
        asked: Duration,
        /// After it was granted.
        granted: Duration,
        /// Until when the guard is valid, unless renewed.
        deadline: Duration,
    },
    /// All cycles are over.
    Cycles {
        /// Those that got the lock.
        holds: Vec<Hold>,
        /// How each of these was released.
        releases: Vec<ReleaseReport>,
        /// Those that did not.
        refused: Vec<Refused>,
    },
    /// How the lock stands.
    State {
        /// What the guard says.
        valid: bool,
        /// What the future of the loss answered when it was polled for the first time.
        lost: Option<LossReason>,
        /// For how long the guard is still valid.
        remaining: Duration,
        /// When this was asked.
        at: Duration,
    },
    /// The lock was released.
    Released {
        /// How.
        report: ReleaseReport,
        /// Before it was asked for.
        asked: Duration,
    },
    /// The lock is a ticket now.
    Ticket {
        /// The ticket.
        ticket: String,
    },
    /// It did not work.
    Refused(Refused),
}

/// How a release ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReleaseReport {
    /// It was ours until then.
    Clean,
    /// It was lost before.
    AlreadyLost(LossReason),
    /// The store did not answer.
    Unconfirmed(String),
}

/// An operation that ended with an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// The kind's name, as its `Debug` prints it.
    pub kind: String,
    /// The text.
    pub message: String,
    /// Before the operation was asked for.
    pub asked: Duration,
    /// After it was refused.
    pub answered: Duration,
}
