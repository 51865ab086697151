//! Faults that are not healed yet, with the time of each fault and the step that ends the fault.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinHandle;

use crate::chaos::{
    history::{Excuse, InjectedFault, Micros, now},
    stores::{FormerLeader, PausedServer},
};

/// A fault that is not healed yet, and the step that ends it.
pub(super) struct ActiveFault {
    pub(super) fault: InjectedFault,
    pub(super) remedy: Remedy,
}

/// A fault that was injected, and the step that ends it. A fault that ends by itself at once has no
/// such step.
pub(super) type Injection = (InjectedFault, Option<Remedy>);

/// The step that ends a fault. `member` is the index of a worker, and `worker` its number.
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
    /// Gives the servers memory again.
    FreeMemory,
    /// Lets a former leader take part again. `recorded` tells whether another server leads and the
    /// fault is in the history.
    ReadmitLeader {
        former: FormerLeader,
        recorded: bool,
    },
    /// Waits until healed servers agree. `recorded` tells whether the fault is in the history
    /// already.
    AwaitAgreement {
        recorded: bool,
        /// The server that was down, if it may lead again.
        restarted: Option<usize>,
    },
}

/// Time-out for another server to replace a removed leader.
pub(super) const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(40);
/// Time-out for healed servers to agree, in addition to the time-out for a replacement.
pub(super) const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(120);

/// Fails if healed servers have not agreed for too long.
pub(super) fn fail_if_agreement_is_overdue(fault: &InjectedFault) -> Result<()> {
    ensure!(
        now() < fault.from + as_micros(AGREEMENT_TIMEOUT + REPLACEMENT_TIMEOUT),
        "the servers did not agree again after {} of {}",
        fault.kind,
        fault.target
    );
    Ok(())
}

/// Returns the exception that the documentation allows after a failover to a server that may lack
/// acknowledged writes.
pub(super) fn failover_excuse(may_lose: bool) -> Option<Excuse> {
    may_lose.then_some(Excuse::FailedOver)
}

/// Converts a duration to microseconds.
pub(super) fn as_micros(time: Duration) -> Micros {
    u64::try_from(time.as_micros()).unwrap_or(Micros::MAX)
}
