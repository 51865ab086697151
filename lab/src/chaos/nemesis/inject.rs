//! Injects one fault into a worker, its connections, a lock or the store.
//!
//! The nemesis and its steps: each step heals the faults that are due, and may inject another
//! fault.
//!
//! The order of the random draws decides which faults a seed gives, so no draw may be added,
//! removed or moved.

use std::time::Duration;

use anyhow::{Context as _, Result};
use distlock::Store;
use distlock_harness::Signal;
use fastrand::Rng;

use super::{
    actions::{ActiveFault, Injection, Remedy, break_connections, break_store, force_release},
    kinds::FaultKind,
    ring::change_members,
};
use crate::chaos::{
    database_file,
    history::{Event, Excuse, InjectedFault, Micros, now},
    stores::RunningStore,
    worker_group::WorkerGroup,
};

impl Nemesis {
    /// Injects one fault. `None` means that an active fault, or the state of the store, prevents
    /// the injection.
    pub(super) async fn inject(
        &mut self,
        kind: FaultKind,
        worker_group: &mut WorkerGroup,
        running_store: &mut RunningStore,
        admin: Option<&Store>,
    ) -> Result<Option<Injection>> {
        let (from, lasts) = (now(), self.draw_duration());
        let fault = InjectedFault {
            kind: kind.key(),
            target: running_store.kind.key(),
            from,
            to: from + lasts,
            excuse: None,
        };
        // Both values are drawn for each fault, even if unused, so that the faults of a seed stay
        // the same.
        let member = self.rng.usize(..worker_group.members.len());
        let pick = self.rng.usize(..64);
        match kind {
            FaultKind::StopWorker | FaultKind::StopAtGrant | FaultKind::KillWorker => {
                self.inject_into_worker(kind, fault, member, worker_group, running_store)
                    .await
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
                let apart = running_store.has_independent_servers();
                Ok(self.inject_into_connections(kind, fault, member, (pick, apart), worker_group))
            }
            // An operator also removes a member that is away.
            FaultKind::ChangeMembers => Ok(change_members(fault, pick, running_store).await),
            FaultKind::KeepOldView => {
                self.keep_old_view(fault, (member, pick), worker_group, running_store)
                    .await
            }
            _ if !self.is_store_whole() => Ok(None),
            _ if kind.costs_one_server() && running_store.spare_servers() == 0 => Ok(None),
            FaultKind::ForceRelease => {
                Ok(self.force_release_random(fault, worker_group, admin).await)
            }
            FaultKind::LockFile => {
                let path = running_store.database_path().context("a file")?.to_owned();
                let holding = tokio::spawn(database_file::keep_locked(path));
                Ok(Some((fault, Some(Remedy::UnlockFile(holding)))))
            }
            FaultKind::StopServer
            | FaultKind::KillServer
            | FaultKind::WipeServer
            | FaultKind::RestartServer
            | FaultKind::CrashServer
            | FaultKind::RollBackState
            | FaultKind::EndConnections
            | FaultKind::ForgetScripts
            | FaultKind::ForgetAll => break_store(kind, fault, running_store, pick).map(Some),
            _ => {
                self.inject_into_servers(kind, fault, worker_group, running_store, admin)
                    .await
            }
        }
    }

    /// Tells whether a fault of this worker or of its connections is active.
    pub(super) fn is_worker_faulty(&self, member: usize) -> bool {
        self.active
            .iter()
            .any(|active_fault| match active_fault.remedy {
                Remedy::ResumeWorker { member: it, .. }
                | Remedy::RestoreConnections { member: it, .. } => it == member,
                _ => false,
            })
    }

    /// Tells whether no fault of the store itself is active.
    fn is_store_whole(&self) -> bool {
        !self.active.iter().any(|active_fault| {
            !matches!(
                active_fault.remedy,
                Remedy::ResumeWorker { .. } | Remedy::RestoreConnections { .. }
            )
        })
    }

    /// Stops or kills one worker, unless a fault of this worker is active.
    async fn inject_into_worker(
        &self,
        kind: FaultKind,
        mut fault: InjectedFault,
        member: usize,
        worker_group: &mut WorkerGroup,
        running_store: &RunningStore,
    ) -> Result<Option<Injection>> {
        if self.is_worker_faulty(member) {
            return Ok(None);
        }
        let worker = worker_group.members[member].worker;
        fault.target = format!("worker {worker}");
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
                // The fault begins at the grant. The wait for the grant is no part of the fault.
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

    /// Breaks all connections of one worker, unless a fault of this worker is active. With `apart`,
    /// breaks those to some of the servers, or to all of them.
    fn inject_into_connections(
        &self,
        kind: FaultKind,
        mut fault: InjectedFault,
        member: usize,
        (pick, apart): (usize, bool),
        worker_group: &WorkerGroup,
    ) -> Option<Injection> {
        if self.is_worker_faulty(member) {
            return None;
        }
        let broken = &worker_group.members[member];
        let worker = broken.worker;
        fault.target = format!("worker {worker}");
        let delay = Duration::from_micros((fault.to - fault.from) / 4);
        // The lowest bit of the pick is the direction of a half-close.
        let servers = pick >> 1;
        for (at, proxy) in broken.proxies.iter().enumerate() {
            if !apart || servers == 0 || servers >> at & 1 == 1 {
                break_connections(kind, proxy, delay, pick);
            }
        }
        Some((fault, Some(Remedy::RestoreConnections { member, worker })))
    }

    /// Force-releases a random lock, if somebody holds it.
    async fn force_release_random(
        &mut self,
        mut fault: InjectedFault,
        worker_group: &WorkerGroup,
        admin: Option<&Store>,
    ) -> Option<Injection> {
        let name = worker_group.random_name(&mut self.rng)?;
        if !force_release(admin, &name).await {
            return None;
        }
        fault.target = format!("lock {name:?}");
        fault.excuse = Some(Excuse::Removed { name });
        fault.to = now();
        Some((fault, None))
    }
}

/// Injects and heals the faults of one run.
pub(crate) struct Nemesis {
    pub(super) rng: Rng,
    kinds: Vec<FaultKind>,
    pub(super) longest_ttl: Duration,
    pub(super) active: Vec<ActiveFault>,
}

/// Largest number of faults that are active at a time.
const MAX_ACTIVE: usize = 2;
/// Pause between two checks whether servers agree.
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

    /// Heals the faults that are due, injects another fault unless too many are active, and waits
    /// for a random time.
    pub(crate) async fn step(
        &mut self,
        worker_group: &mut WorkerGroup,
        running_store: &mut RunningStore,
        admin: Option<&Store>,
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

    /// Draws the duration of a fault. One fault in four may last longer than the longest TTL.
    pub(super) fn draw_duration(&mut self) -> Micros {
        let longest = self
            .longest_ttl
            .mul_f32(if self.rng.u32(..4) == 0 { 3.0 } else { 1.0 });
        u64::try_from(longest.mul_f32(self.rng.f32()).as_micros()).unwrap_or_default()
    }
}
