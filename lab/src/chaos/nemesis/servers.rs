//! Faults that need healthy servers: another server replaces the leader, or an administrator
//! changes a server.

use std::time::Duration;

use anyhow::Result;
use distlock::{Clock as _, Deleted, RecordKey, Store, SystemClock};
use tokio::task::block_in_place;

use super::{
    actions::{ActiveFault, Injection, REPLACEMENT_TIMEOUT, Remedy, as_micros, failover_excuse},
    inject::{AGREEMENT_PAUSE, Nemesis},
    kinds::FaultKind,
};
use crate::chaos::{
    history::{Event, Excuse, InjectedFault, now},
    stores::{FormerLeader, LeaderRemoval, RunningStore, StoreKind},
    worker_group::WorkerGroup,
    worker_settings::{RW_LOCKS, SEMAPHORES},
};

impl Nemesis {
    /// Injects a fault that no other part of [`Nemesis::inject`] handles.
    pub(super) async fn inject_into_servers(
        &mut self,
        kind: FaultKind,
        mut fault: InjectedFault,
        worker_group: &WorkerGroup,
        running_store: &mut RunningStore,
        admin: Option<&Store>,
    ) -> Result<Option<Injection>> {
        let pick = self.rng.usize(..64);
        let removal = match kind {
            FaultKind::LoseMinority | FaultKind::LoseMajority => {
                let lost = self.lose_servers(kind, fault, worker_group, running_store);
                return lost.map(Some);
            }
            FaultKind::FillMemory => {
                block_in_place(|| running_store.limit_memory(true))?;
                return Ok(Some((fault, Some(Remedy::FreeMemory))));
            }
            FaultKind::StepClock => {
                let by = self.longest_ttl.mul_f32(self.rng.f32() * 2.0);
                fault.excuse = block_in_place(|| running_store.put_clock_forward(by))?;
                if running_store.has_independent_servers() {
                    return Ok(Some((fault, Some(Remedy::RepairClock(by)))));
                }
                fault.to = now();
                return Ok(Some((fault, None)));
            }
            FaultKind::DeleteByHand => {
                let Some(name) = random_held_name(self, worker_group, admin).await else {
                    return Ok(None);
                };
                // A server may be down although no fault is active. Then the deletion fails, and
                // may have deleted the lock on some servers.
                let deleted = block_in_place(|| running_store.delete_lock(&name));
                fault.target = format!("lock {name:?}");
                if let Err(error) = deleted {
                    fault.target = format!("lock {name:?}, perhaps: {error:#}");
                }
                fault.excuse = Some(Excuse::Removed { name });
                fault.to = now();
                return Ok(Some((fault, None)));
            }
            FaultKind::DeleteHolders => {
                let kinds = [
                    ("rw", RW_LOCKS.to_vec()),
                    ("sem", SEMAPHORES.map(|it| it.0).to_vec()),
                ];
                let (kind, names) = &kinds[self.rng.usize(..kinds.len())];
                let name = names[self.rng.usize(..names.len())];
                let key = RecordKey::new(format!("shared/{kind}/{name}"))?;
                if !delete_record(admin, &key).await {
                    return Ok(None);
                }
                fault.target = format!("record {key:?}");
                fault.excuse = Some(Excuse::Removed { name: name.into() });
                fault.to = now();
                return Ok(Some((fault, None)));
            }
            FaultKind::ExpireSession => {
                let Some(name) = random_held_name(self, worker_group, admin).await else {
                    return Ok(None);
                };
                // Without an answer, nobody knows the session, and no session was ended.
                let ended = block_in_place(|| running_store.end_session_of(&name));
                let Some(excuse) = ended.unwrap_or_default() else {
                    return Ok(None);
                };
                fault.target = format!("the holder of {name:?}");
                fault.excuse = Some(excuse);
                fault.to = now();
                return Ok(Some((fault, None)));
            }
            FaultKind::Failover => LeaderRemoval::FailOver,
            FaultKind::KillLeader => LeaderRemoval::Kill,
            FaultKind::DeposePrimary | FaultKind::DeposeLeader => LeaderRemoval::CutOff,
            _ => return Ok(None),
        };
        fault.from = now();
        let Some(former) = block_in_place(|| running_store.remove_leader(removal, pick))? else {
            return Ok(None);
        };
        fault.excuse = failover_excuse(running_store.kind != StoreKind::Zookeeper);
        let recorded = false;
        Ok(Some((
            fault,
            Some(Remedy::ReadmitLeader { former, recorded }),
        )))
    }

    /// Waits for `time`. Meanwhile the function records the fault of each former leader that
    /// another server has replaced.
    ///
    /// For the verdict, the fault ends when another server leads. The documentation allows no
    /// violation later than one lease after that end.
    pub(super) async fn wait_and_watch_leaders(
        &mut self,
        worker_group: &WorkerGroup,
        running_store: &RunningStore,
        time: Duration,
    ) {
        let until = SystemClock.now() + time;
        let lease = as_micros(self.longest_ttl);
        loop {
            let mut waits = false;
            for ActiveFault { fault, remedy } in &mut self.active {
                let Remedy::ReadmitLeader { former, recorded } = remedy else {
                    continue;
                };
                if *recorded {
                    continue;
                }
                if !block_in_place(|| running_store.is_replaced(*former)) {
                    waits = true;
                    continue;
                }
                *recorded = true;
                let lasts = fault.to.saturating_sub(fault.from);
                fault.to = now();
                worker_group.referee.record(0, Event::Fault(fault.clone()));
                // The history already has a copy of the fault, so this later end only delays the
                // readmission. A former leader that still answers stays cut off for at least one
                // more lease, so that clients can use it beside its replacement.
                fault.to += lasts / 2;
                if former.still_answers() {
                    fault.to += lease;
                }
            }
            let left = until.since(SystemClock.now());
            if left.is_zero() {
                return;
            }
            SystemClock
                .sleep(if waits {
                    left.min(AGREEMENT_PAUSE)
                } else {
                    left
                })
                .await;
        }
    }

    /// Lets a former leader take part again, if another server leads or none has replaced it in
    /// time. Otherwise the fault stays active.
    pub(super) fn readmit_leader(
        &mut self,
        former: FormerLeader,
        recorded: bool,
        fault: InjectedFault,
        running_store: &mut RunningStore,
    ) -> Result<()> {
        if !recorded && now() < fault.from + as_micros(REPLACEMENT_TIMEOUT) {
            let remedy = Remedy::ReadmitLeader { former, recorded };
            self.active.push(ActiveFault { fault, remedy });
            return Ok(());
        }
        block_in_place(|| running_store.rejoin(former))?;
        self.keep_active_until_agreement(fault, recorded, None);
        Ok(())
    }

    /// Keeps a fault active until the servers agree again, so that no other fault of servers begins
    /// before that.
    pub(super) fn keep_active_until_agreement(
        &mut self,
        fault: InjectedFault,
        recorded: bool,
        restarted: Option<usize>,
    ) {
        let remedy = Remedy::AwaitAgreement {
            recorded,
            restarted,
        };
        self.active.push(ActiveFault { fault, remedy });
    }
}

/// Returns a random lock that somebody holds now.
async fn random_held_name(
    nemesis: &mut Nemesis,
    worker_group: &WorkerGroup,
    admin: Option<&Store>,
) -> Option<String> {
    let name = worker_group.random_name(&mut nemesis.rng)?;
    let held = admin?.locker().inspect(&name).await.ok()?.held;
    held.map(|_| name)
}

/// Deletes a record. `false` means that there is none, or that it could not be read. A failed
/// deletion may have happened.
async fn delete_record(admin: Option<&Store>, key: &RecordKey) -> bool {
    let Some(records) = admin.map(Store::records) else {
        return false;
    };
    let Ok(Some(entry)) = records.get(key).await else {
        return false;
    };
    !matches!(
        records.delete(key, entry.version).await,
        Ok(Deleted::Conflict)
    )
}
