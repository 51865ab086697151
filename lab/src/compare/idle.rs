//! Measures growth: the same cycle while more and more other locks are held.

use std::{sync::Arc, time::Duration};

use distlock::{
    Attempt, DistLock, HolderLabel, LockName, OwnerId, Store, Ttl,
    backend::{AcquireRequest, Lease},
};
use distlock_cli::program::Outcome;
use distlock_report::{Arm, LockerSubject, Workload};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    plan::{ComparisonRun, within},
    rounds::{RoundResult, workload_round},
};

/// The TTL of the idle locks: long enough for all rounds, and short enough that a killed run does
/// not leave them for long.
const TTL_MS: u64 = 15 * 60_000;

/// The most acquires or releases in flight.
const MAX_IN_FLIGHT: usize = 256;

/// The idle locks that one client holds in one store.
struct IdleLocks {
    store: Store,
    run: u32,
    held: Vec<Lease>,
}

impl ComparisonRun {
    /// Measures in rounds the cycles of one caller while each number of idle locks is held.
    pub(super) async fn measure_idle(&mut self) -> Outcome<()> {
        let mut fillers: Vec<Option<IdleLocks>> = self.stores.iter().map(|_| None).collect();
        let mut arms = Vec::new();
        for candidate in &self.stores {
            if !candidate.is_alive() {
                arms.push(None);
                continue;
            }
            arms.push(match candidate.opener().open_client().await {
                Ok(store) => {
                    let subject = LockerSubject::new(store.backend());
                    Some((
                        subject.locker().clone(),
                        Arc::new(Arm::new(candidate.key(), subject)),
                    ))
                }
                Err(_) => None,
            });
        }
        for size in self.plan.idle.clone() {
            let key = format!("idle-{size}");
            self.progress
                .begin_part(&format!("measuring beside {size} idle locks"));
            for (at, filler) in fillers.iter_mut().enumerate() {
                if let Err(error) = self.fill_store(at, filler, size, &key).await {
                    self.progress.print_note(&format!(
                        "{} does not hold {size} locks: {error}",
                        self.stores[at].facts.name
                    ));
                    arms[at] = None;
                }
            }
            let running: Vec<_> = self
                .stores
                .iter()
                .zip(&arms)
                .map(|(store, arm)| {
                    (
                        store.key().to_owned(),
                        arm.as_ref().map(|(_, arm)| Arc::clone(arm)),
                    )
                })
                .collect();
            let (rounds, warmup, time) = (self.plan.rounds, self.plan.warmup, self.plan.time);
            self.interleave(&key, rounds, warmup + time, |store, round| {
                let (_, arm) = running.iter().find(|(key, _)| key == store.key())?;
                let arm = Arc::clone(arm.as_ref()?);
                Some(async move {
                    workload_round(&arm, Workload::Uncontended, 1, round, warmup, time).await
                })
            })
            .await?;
        }
        for filler in fillers.into_iter().flatten() {
            within(Duration::from_secs(120), filler.release_all()).await;
        }
        for (locker, _) in arms.into_iter().flatten() {
            within(Duration::from_secs(10), locker.close()).await;
        }
        Ok(())
    }

    /// Makes a store hold this number of idle locks, unless all rounds with this number were kept
    /// from an earlier run.
    async fn fill_store(
        &self,
        at: usize,
        filler: &mut Option<IdleLocks>,
        size: u32,
        key: &str,
    ) -> distlock::Result<()> {
        let candidate = &self.stores[at];
        let done = (0..self.plan.rounds).all(|round| {
            let name = format!("{key}.{}.{round}.json", candidate.key());
            self.kept.load::<RoundResult>(&name).is_some()
        });
        if done || !candidate.is_alive() {
            return Ok(());
        }
        let filler = match filler {
            Some(filler) => filler,
            none => none.insert(IdleLocks {
                store: candidate.opener().open_client().await?,
                run: fastrand::u32(..),
                held: Vec::new(),
            }),
        };
        filler.fill(size).await
    }
}

impl IdleLocks {
    /// Acquires more locks until this number is held.
    async fn fill(&mut self, size: u32) -> distlock::Result<()> {
        let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        let mut taking = JoinSet::new();
        let from = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        for number in from..size {
            let permit = Arc::clone(&permits).acquire_owned().await;
            let name = LockName::new(format!("bench:idle:{:08x}:{number:06}", self.run))?;
            let lock = self.store.backend();
            taking.spawn(async move {
                let _permit = permit;
                acquire_idle(lock, name).await
            });
        }
        while let Some(taken) = taking.join_next().await {
            if let Ok(lease) = taken {
                self.held.extend(lease?);
            }
        }
        Ok(())
    }

    /// Releases all locks, and closes the client.
    async fn release_all(self) {
        let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        let mut giving = JoinSet::new();
        for lease in self.held {
            let permit = Arc::clone(&permits).acquire_owned().await;
            let lock = self.store.backend();
            giving.spawn(async move {
                let _permit = permit;
                drop(lock.release(&lease).await);
            });
        }
        giving.join_all().await;
        self.store.close().await;
    }
}

/// Acquires one idle lock; `None` if another client holds it.
async fn acquire_idle(lock: Arc<dyn DistLock>, name: LockName) -> distlock::Result<Option<Lease>> {
    let owner = OwnerId::new();
    let request = AcquireRequest::new(
        name.clone(),
        owner,
        Ttl::from_millis(TTL_MS)?,
        HolderLabel::of_this_process(),
    );
    Ok(match lock.try_acquire(&request).await? {
        Attempt::Acquired(grant) => Some(Lease::new(name, owner, Some(grant.token))),
        Attempt::Busy(_) => None,
    })
}
