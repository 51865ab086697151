//! Heals faults, and records each fault in the history when the fault has ended.

use anyhow::Result;
use distlock_harness::Signal;
use tokio::task::block_in_place;

use super::{
    actions::{ActiveFault, Remedy, fail_if_agreement_is_overdue},
    inject::{AGREEMENT_PAUSE, Nemesis},
    members::bring_back,
};
use crate::chaos::{
    history::{Event, InjectedFault, Micros, now},
    stores::RunningStore,
    worker_group::WorkerGroup,
};

impl Nemesis {
    /// Heals all faults whose end is not after `by`. A fault that involves several servers may stay
    /// active until these servers agree.
    pub(super) async fn heal_due(
        &mut self,
        worker_group: &mut WorkerGroup,
        running_store: &mut RunningStore,
        by: Micros,
    ) -> Result<()> {
        let (due, open) = std::mem::take(&mut self.active)
            .into_iter()
            .partition::<Vec<_>, _>(|active_fault| active_fault.fault.to <= by);
        self.active = open;
        for ActiveFault { fault, remedy } in due {
            let over = self
                .apply_remedy(remedy, fault, worker_group, running_store)
                .await?;
            if let Some(mut fault) = over {
                fault.to = now();
                worker_group.referee.record(0, Event::Fault(fault));
            }
        }
        Ok(())
    }

    /// Heals all faults, and waits until the servers agree.
    pub(crate) async fn heal_all(
        &mut self,
        worker_group: &mut WorkerGroup,
        running_store: &mut RunningStore,
    ) -> Result<()> {
        self.heal_due(worker_group, running_store, Micros::MAX)
            .await?;
        while !self.active.is_empty() {
            self.wait_and_watch_leaders(worker_group, running_store, AGREEMENT_PAUSE)
                .await;
            self.heal_due(worker_group, running_store, Micros::MAX)
                .await?;
        }
        Ok(())
    }

    /// Takes the step that ends a fault, and returns the fault if it has ended. `None` means that
    /// the fault stays active, or that the history contains the fault already.
    async fn apply_remedy(
        &mut self,
        remedy: Remedy,
        mut fault: InjectedFault,
        worker_group: &WorkerGroup,
        running_store: &mut RunningStore,
    ) -> Result<Option<InjectedFault>> {
        match remedy {
            Remedy::ResumeWorker { member, worker } => {
                if let Some(member) = worker_group.member(member, worker) {
                    member.signal(Signal::CONT)?;
                }
                // The nemesis records the stall, because the worker may be killed before its own
                // meter reports it.
                let (from, to) = (fault.from, now());
                worker_group
                    .referee
                    .record(worker, Event::Stalled { from, to });
            }
            Remedy::RestoreConnections { member, worker } => {
                if let Some(member) = worker_group.member(member, worker) {
                    for proxy in &member.proxies {
                        proxy.pass();
                    }
                }
            }
            Remedy::ResumeServer(paused) => {
                let restarted = paused.index();
                running_store.resume(paused)?;
                if fault.excuse.is_some() {
                    self.keep_active_until_agreement(fault, false, restarted);
                    return Ok(None);
                }
            }
            Remedy::RestartServer(at) => {
                block_in_place(|| running_store.restart_server(at))?;
                if fault.excuse.is_some() {
                    self.keep_active_until_agreement(fault, false, Some(at));
                    return Ok(None);
                }
            }
            Remedy::BringBack(away) => bring_back(&away, worker_group, running_store)?,
            Remedy::RepairClock(by) => block_in_place(|| running_store.put_clock_back(by))?,
            Remedy::FreeMemory => block_in_place(|| running_store.limit_memory(false))?,
            Remedy::ReadmitLeader { former, recorded } => {
                self.readmit_leader(former, recorded, fault, running_store)?;
                return Ok(None);
            }
            Remedy::AwaitAgreement {
                recorded,
                restarted,
            } => {
                if !block_in_place(|| running_store.is_settled()) {
                    fail_if_agreement_is_overdue(&fault)?;
                    self.keep_active_until_agreement(fault, recorded, restarted);
                    return Ok(None);
                }
                // The server that was down leads again, so no acknowledged write is lost.
                if restarted
                    .is_some_and(|at| block_in_place(|| running_store.would_hit_primary(at)))
                {
                    fault.excuse = None;
                }
                if recorded {
                    return Ok(None);
                }
            }
            Remedy::UnlockFile(holding) => {
                holding.abort();
                let _ = holding.await;
            }
        }
        Ok(Some(fault))
    }
}
