//! The single actions that break connections, a store or a lock.

use std::time::Duration;

use anyhow::Result;
use distlock::{Forced, Locker};
use distlock_harness::{Direction, FaultProxy};
use tokio::task::block_in_place;

use super::{
    active::{Injection, Remedy, failover_excuse},
    kinds::FaultKind,
};
use crate::chaos::{
    history::{InjectedFault, now},
    stores::RunningStore,
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
        FaultKind::WipeServer => {
            fault.excuse = Some(block_in_place(|| running_store.wipe())?);
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
            fault.excuse = Some(block_in_place(|| running_store.delete_all_data())?);
            fault.to = now();
            None
        }
    };
    Ok((fault, remedy))
}

/// Force-releases a lock. `false` means that nobody holds the lock, or that no request could be
/// sent.
pub(super) async fn force_release(admin: Option<&Locker>, name: &str) -> bool {
    let Some(locker) = admin else { return false };
    let freeing = async {
        let held = locker.inspect(name).await.ok()?.held?;
        Some(locker.force_release(name, held.token?).await)
    };
    // A failed request may have happened, so an error counts as a release.
    matches!(freeing.await, Some(Ok(Forced::Released) | Err(_)))
}
