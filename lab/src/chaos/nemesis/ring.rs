//! Changes the members of a ring, also while a client keeps the view of before.

use std::time::Duration;

use anyhow::Result;
use distlock_harness::Signal;

use super::{
    actions::{Injection, Remedy, as_micros, break_connections},
    inject::Nemesis,
    kinds::FaultKind,
};
use crate::chaos::{
    history::{Event, InjectedFault, now},
    stores::RunningStore,
    worker_group::WorkerGroup,
};

/// The server with the view.
const RING_STORE: usize = 0;

/// Time for which a client keeps an old view, beside the drawn time: longer than the quarantine, so
/// that others get the names that have moved.
const AFTER_QUARANTINE: Duration = Duration::from_millis(1_500);

/// The ways to keep a worker from the ring store. Its connections to the members stay good.
const CUTS: [FaultKind; 4] = [
    FaultKind::CutConnections,
    FaultKind::BlackHole,
    FaultKind::StopReplies,
    FaultKind::SlowConnections,
];

/// Changes the members once. `None` means that nothing could be changed.
pub(super) async fn change_members(
    mut fault: InjectedFault,
    pick: usize,
    running_store: &RunningStore,
) -> Option<Injection> {
    fault.target = running_store.change_ring(pick).await?;
    fault.to = now();
    Some((fault, None))
}

impl Nemesis {
    /// Stops a worker, or cuts it off from the ring store, and changes the members meanwhile.
    pub(super) async fn keep_old_view(
        &self,
        mut fault: InjectedFault,
        (member, pick): (usize, usize),
        worker_group: &WorkerGroup,
        running_store: &RunningStore,
    ) -> Result<Option<Injection>> {
        if self.is_worker_faulty(member) {
            return Ok(None);
        }
        let process = &worker_group.members[member];
        let (worker, lasts) = (process.worker, fault.to - fault.from);
        let from = now();
        let (how, remedy) = if pick.is_multiple_of(2) {
            process.signal(Signal::STOP)?;
            ("is stopped", Remedy::ResumeWorker { member, worker })
        } else {
            let cut = CUTS[pick / 2 % CUTS.len()];
            let delay = Duration::from_micros(lasts);
            break_connections(cut, &process.proxies[RING_STORE], delay, pick);
            let remedy = Remedy::RestoreConnections { member, worker };
            ("does not reach the ring store", remedy)
        };
        let Some(changed) = running_store.change_ring(pick / 2).await else {
            if let Remedy::ResumeWorker { .. } = remedy {
                process.signal(Signal::CONT)?;
                let stalled = Event::Stalled { from, to: now() };
                worker_group.referee.record(worker, stalled);
            } else {
                process.proxies[RING_STORE].pass();
            }
            return Ok(None);
        };
        fault.target = format!("{changed}, while worker {worker} {how}");
        fault.to = now() + lasts + as_micros(AFTER_QUARANTINE);
        Ok(Some((fault, Some(remedy))))
    }
}
