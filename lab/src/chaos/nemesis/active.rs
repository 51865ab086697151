//! Faults that go on: what is broken, until when, and how it is healed.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinHandle;

use crate::chaos::{
    history::{Excuse, InjectedFault, Micros, now},
    stores::{FormerLeader, PausedServer},
};

/// Something that is broken, until when.
pub(super) struct ActiveFault {
    pub(super) fault: InjectedFault,
    pub(super) remedy: Remedy,
}

pub(super) enum Remedy {
    ResumeWorker {
        member: usize,
        worker: u32,
    },
    RestoreConnections {
        member: usize,
        worker: u32,
    },
    ResumeServer(PausedServer),
    RestartServer(usize),
    UnlockFile(JoinHandle<Result<()>>),
    /// Servers that have no memory left.
    FreeMemory,
    /// A leader that loses its place. Whether another one has taken it, and the fault was noted.
    ReadmitLeader {
        former: FormerLeader,
        noted: bool,
    },
    /// Servers that are healed, until they agree. Whether the fault was noted before.
    AwaitAgreement {
        noted: bool,
        /// The server that was away, if it may lead again.
        led: Option<usize>,
    },
}

/// A leader that was not replaced by then will not be.
pub(super) const REPLACED: Duration = Duration::from_secs(40);
/// Servers that do not agree by then never will.
pub(super) const SETTLED: Duration = Duration::from_secs(120);

/// Refuses to wait any longer for servers that do not agree.
pub(super) fn check_agreement_time(fault: &InjectedFault) -> Result<()> {
    ensure!(
        now() < fault.from + as_micros(SETTLED + REPLACED),
        "the servers did not agree again after {} of {}",
        fault.kind,
        fault.target
    );
    Ok(())
}

/// The exception that the documentation allows when a server is replaced by one that may lack what
/// it had acknowledged.
pub(super) fn lost_by_failover(may_lose: bool) -> Option<Excuse> {
    may_lose.then_some(Excuse::FailedOver)
}

pub(super) fn as_micros(time: Duration) -> Micros {
    u64::try_from(time.as_micros()).unwrap_or(Micros::MAX)
}
