//! The single actions that break connections, a store or a lock.
//!
//! Faults that are not healed yet, with the time of each fault and the step that ends the fault.

use std::time::Duration;

use anyhow::{Result, ensure};
use distlock::{Forced, Store};
use distlock_harness::{Direction, FaultProxy};
use tokio::task::{JoinHandle, block_in_place};

use super::{kinds::FaultKind, members::Away};
use crate::chaos::{
    history::{Excuse, InjectedFault, Micros, now},
    stores::{FormerLeader, PausedServer, RunningStore},
};

/// Number of pauses that a request of usual length takes when it arrives in small parts.
const TRICKLE_PAUSES: u32 = 40;

/// Breaks the connections of one proxy. `pick` chooses the direction of a half-close.
pub(super) fn break_connections(kind: FaultKind, proxy: &FaultProxy, delay: Duration, pick: usize) {
    match kind {
        FaultKind::CutConnections => proxy.refuse(),
        FaultKind::ForsakeWorker => proxy.forsake_clients(),
        FaultKind::SlowConnections => proxy.delay(delay),
        FaultKind::StopRequests => proxy.stop(Direction::ToServer),
        FaultKind::StopReplies => proxy.stop(Direction::ToClient),
        FaultKind::BlackHole => proxy.black_hole(),
        FaultKind::Trickle => proxy.trickle(delay / TRICKLE_PAUSES),
        FaultKind::HalfClose if pick.is_multiple_of(2) => {
            proxy.half_close(Direction::ToServer);
        }
        FaultKind::HalfClose => proxy.half_close(Direction::ToClient),
        FaultKind::DuplicateConnect => {
            proxy.connect_twice();
            proxy.reset();
        }
        _ => proxy.swallow_one_reply(),
    }
}

/// Breaks one server or the data of a store. `pick` chooses the server.
pub(super) fn break_store(
    kind: FaultKind,
    mut fault: InjectedFault,
    running_store: &mut RunningStore,
    pick: usize,
) -> Result<Injection> {
    let remedy = match kind {
        FaultKind::StopServer => {
            fault.excuse =
                failover_excuse(block_in_place(|| running_store.would_hit_primary(pick)));
            Some(Remedy::ResumeServer(running_store.pause(pick)?))
        }
        FaultKind::KillServer => {
            fault.excuse =
                failover_excuse(block_in_place(|| running_store.would_hit_primary(pick)));
            Some(Remedy::RestartServer(running_store.kill(pick)))
        }
        FaultKind::RestartServer => {
            block_in_place(|| running_store.restart_in_order(pick))?;
            fault.to = now();
            None
        }
        FaultKind::CrashServer => {
            let at = running_store.kill(pick);
            block_in_place(|| running_store.restart_server(at))?;
            fault.to = now();
            None
        }
        FaultKind::RollBackState => {
            block_in_place(|| running_store.roll_back(pick))?;
            fault.to = now();
            None
        }
        FaultKind::WipeServer => {
            fault.excuse = block_in_place(|| running_store.wipe(pick))?;
            fault.to = now();
            None
        }
        FaultKind::EndConnections => {
            // A server may still be recovering although no fault is active. Then all connections
            // have ended already.
            if let Err(error) = block_in_place(|| running_store.end_connections()) {
                fault.target = format!("{}, perhaps: {error:#}", fault.target);
            }
            fault.to = now();
            None
        }
        FaultKind::ForgetScripts => {
            block_in_place(|| running_store.forget_scripts())?;
            fault.to = now();
            None
        }
        _ => {
            fault.excuse = block_in_place(|| running_store.delete_all_data(pick))?;
            fault.to = now();
            None
        }
    };
    Ok((fault, remedy))
}

/// Force-releases a lock. `false` means that nobody holds the lock, or that no request could be
/// sent.
pub(super) async fn force_release(admin: Option<&Store>, name: &str) -> bool {
    let Some(locker) = admin.map(Store::locker) else {
        return false;
    };
    let freeing = async {
        let held = locker.inspect(name).await.ok()?.held?;
        Some(locker.force_release(name, held.token?).await)
    };
    // A failed request may have happened, so an error counts as a release.
    matches!(freeing.await, Some(Ok(Forced::Released) | Err(_)))
}

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
    BringBack(Vec<(usize, Away)>),
    /// Puts the clock of a server back.
    RepairClock(Duration),
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
