//! The nemesis: injects faults at random, drawn from a seed, and heals them again.
//!
//! The order of the random draws decides which faults a seed gives, so no draw may be added,
//! removed or moved.

use std::time::Duration;

use anyhow::{Context as _, Result};
use distlock::Locker;
use distlock_harness::Signal;
use fastrand::Rng;
use tokio::task::block_in_place;

use super::{
    actions::{break_connections, break_store, force_release},
    active::{ActiveFault, Remedy, fail_if_agreement_is_overdue},
    kinds::FaultKind,
};
use crate::chaos::{
    database_file,
    history::{Event, Excuse, InjectedFault, Micros, now},
    stores::RunningStore,
    worker_group::WorkerGroup,
};

/// Injects and heals the faults of one run.
pub(crate) struct Nemesis {
    pub(super) rng: Rng,
    kinds: Vec<FaultKind>,
    pub(super) longest_ttl: Duration,
    pub(super) active: Vec<ActiveFault>,
}

/// Number of faults that are active at a time.
const MAX_ACTIVE: usize = 2;
/// Pause between two questions whether servers agree.
pub(super) const AGREEMENT_PAUSE: Duration = Duration::from_millis(50);

impl Nemesis {
    pub(crate) fn new(rng: Rng, kinds: Vec<FaultKind>, longest_ttl: Duration) -> Self {
        Self {
            rng,
            kinds,
            longest_ttl,
            active: Vec::new(),
        }
    }

    /// Injects one fault if it can, and waits a little.
    pub(crate) async fn step(
        &mut self,
        worker_group: &mut WorkerGroup,
        running_store: &mut RunningStore,
        admin: Option<&Locker>,
    ) -> Result<()> {
        self.heal_due(worker_group, running_store, now()).await?;
        if self.active.len() < MAX_ACTIVE
            && !self.kinds.is_empty()
            && let kind = self.kinds[self.rng.usize(..self.kinds.len())]
            && let Some((fault, remedy)) = self
                .inject(kind, worker_group, running_store, admin)
                .await?
        {
            match remedy {
                Some(remedy) => self.active.push(ActiveFault { fault, remedy }),
                None => worker_group.referee.record(0, Event::Fault(fault)),
            }
        }
        let gap = self.longest_ttl.mul_f32(self.rng.f32() / 2.0);
        self.wait_and_watch_leaders(worker_group, running_store, gap + Duration::from_millis(20))
            .await;
        Ok(())
    }

    /// Heals all faults whose end is not after `by`.
    pub(crate) async fn heal_due(
        &mut self,
        worker_group: &mut WorkerGroup,
        running_store: &mut RunningStore,
        by: Micros,
    ) -> Result<()> {
        let (due, open) = std::mem::take(&mut self.active)
            .into_iter()
            .partition::<Vec<_>, _>(|active_fault| active_fault.fault.to <= by);
        self.active = open;
        for ActiveFault { mut fault, remedy } in due {
            match remedy {
                Remedy::ResumeWorker { member, worker } => {
                    if let Some(member) = worker_group.member(member, worker) {
                        member.signal(Signal::CONT)?;
                    }
                    // The nemesis records the stall, because the worker may be killed before its
                    // own meter reports it.
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
                        continue;
                    }
                }
                Remedy::RestartServer(at) => {
                    block_in_place(|| running_store.restart_server(at))?;
                    if fault.excuse.is_some() {
                        self.keep_active_until_agreement(fault, false, Some(at));
                        continue;
                    }
                }
                Remedy::FreeMemory => block_in_place(|| running_store.limit_memory(false))?,
                Remedy::ReadmitLeader { former, recorded } => {
                    self.readmit_leader(former, recorded, fault, running_store)?;
                    continue;
                }
                Remedy::AwaitAgreement {
                    recorded,
                    restarted,
                } => {
                    if !block_in_place(|| running_store.is_settled()) {
                        fail_if_agreement_is_overdue(&fault)?;
                        self.keep_active_until_agreement(fault, recorded, restarted);
                        continue;
                    }
                    // The same server leads again, so no acknowledged write is lost.
                    if restarted
                        .is_some_and(|at| block_in_place(|| running_store.would_hit_primary(at)))
                    {
                        fault.excuse = None;
                    }
                    if recorded {
                        continue;
                    }
                }
                Remedy::UnlockFile(holding) => {
                    holding.abort();
                    let _ = holding.await;
                }
            }
            fault.to = now();
            worker_group.referee.record(0, Event::Fault(fault));
        }
        Ok(())
    }

    /// Heals all faults.
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

    /// Tells whether a fault is active that may excuse a violation but is not in the history yet.
    pub(crate) fn has_open_excuse(&self) -> bool {
        self.active.iter().any(|ActiveFault { fault, remedy }| {
            let recorded = matches!(
                remedy,
                Remedy::ReadmitLeader { recorded: true, .. }
                    | Remedy::AwaitAgreement { recorded: true, .. }
            );
            fault.excuse.is_some() && !recorded
        })
    }

    fn draw_duration(&mut self) -> Micros {
        let longest = self
            .longest_ttl
            .mul_f32(if self.rng.u32(..4) == 0 { 3.0 } else { 1.0 });
        u64::try_from(longest.mul_f32(self.rng.f32()).as_micros()).unwrap_or_default()
    }

    /// Injects one fault. A fault that is over at once has no remedy. `None` means that the fault
    /// cannot be injected now.
    async fn inject(
        &mut self,
        kind: FaultKind,
        worker_group: &mut WorkerGroup,
        running_store: &mut RunningStore,
        admin: Option<&Locker>,
    ) -> Result<Option<(InjectedFault, Option<Remedy>)>> {
        let (from, lasts) = (now(), self.draw_duration());
        let mut fault = InjectedFault {
            kind: kind.key(),
            target: running_store.kind.key(),
            from,
            to: from + lasts,
            excuse: None,
        };
        let member = self.rng.usize(..worker_group.members.len());
        let is_broken = self
            .active
            .iter()
            .any(|active_fault| match active_fault.remedy {
                Remedy::ResumeWorker { member: it, .. }
                | Remedy::RestoreConnections { member: it, .. } => it == member,
                _ => false,
            });
        let store_is_whole = !self.active.iter().any(|active_fault| {
            !matches!(
                active_fault.remedy,
                Remedy::ResumeWorker { .. } | Remedy::RestoreConnections { .. }
            )
        });
        let pick = self.rng.usize(..64);
        let worker = worker_group.members[member].worker;
        let of_worker = |fault: &mut InjectedFault| fault.target = format!("worker {worker}");
        let remedy = match kind {
            FaultKind::StopWorker | FaultKind::StopAtGrant | FaultKind::KillWorker => {
                of_worker(&mut fault);
                if is_broken {
                    return Ok(None);
                }
                return self
                    .inject_into_worker(kind, fault, member, worker_group, running_store)
                    .await;
            }
            FaultKind::ForceRelease if store_is_whole => {
                let Some(name) = worker_group.random_name(&mut self.rng) else {
                    return Ok(None);
                };
                if !force_release(admin, &name).await {
                    return Ok(None);
                }
                fault.target = format!("lock {name:?}");
                fault.excuse = Some(Excuse::Removed { name });
                fault.to = now();
                None
            }
            FaultKind::LockFile if store_is_whole => {
                let path = running_store.database_path().context("a file")?.to_owned();
                Some(Remedy::UnlockFile(tokio::spawn(
                    database_file::keep_locked(path),
                )))
            }
            FaultKind::CutConnections
            | FaultKind::ForsakeWorker
            | FaultKind::SlowConnections
            | FaultKind::StopRequests
            | FaultKind::StopReplies
            | FaultKind::BlackHole
            | FaultKind::LoseAnswer
            | FaultKind::Trickle
            | FaultKind::HalfClose
            | FaultKind::DuplicateConnect => {
                if is_broken {
                    return Ok(None);
                }
                of_worker(&mut fault);
                let delay = Duration::from_micros(lasts / 4);
                for proxy in &worker_group.members[member].proxies {
                    break_connections(kind, proxy, delay, pick);
                }
                Some(Remedy::RestoreConnections { member, worker })
            }
            FaultKind::StopServer
            | FaultKind::KillServer
            | FaultKind::WipeServer
            | FaultKind::EndConnections
            | FaultKind::ForgetScripts
            | FaultKind::ForgetAll
                if store_is_whole =>
            {
                return break_store(kind, fault, running_store, pick).map(Some);
            }
            _ if store_is_whole => {
                return self
                    .inject_into_servers(kind, fault, worker_group, running_store, admin)
                    .await;
            }
            _ => return Ok(None),
        };
        Ok(Some((fault, remedy)))
    }

    /// Injects a fault into one worker.
    async fn inject_into_worker(
        &self,
        kind: FaultKind,
        mut fault: InjectedFault,
        member: usize,
        worker_group: &mut WorkerGroup,
        running_store: &RunningStore,
    ) -> Result<Option<(InjectedFault, Option<Remedy>)>> {
        let worker = worker_group.members[member].worker;
        let lasts = fault.to - fault.from;
        let remedy = match kind {
            FaultKind::StopWorker => {
                worker_group.members[member].signal(Signal::STOP)?;
                Some(Remedy::ResumeWorker { member, worker })
            }
            FaultKind::StopAtGrant => {
                if !worker_group.stop_at_grant(worker, self.longest_ttl).await {
                    return Ok(None);
                }
                fault.from = now();
                fault.to = fault.from + lasts;
                Some(Remedy::ResumeWorker { member, worker })
            }
            _ => {
                worker_group.kill_and_replace(member, running_store).await?;
                // The store was a part of the killed process.
                fault.excuse = running_store.is_in_process().then_some(Excuse::LostHistory);
                fault.to = now();
                None
            }
        };
        Ok(Some((fault, remedy)))
    }
}
