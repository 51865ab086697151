//! Measures growth: the same cycle while more and more other locks are held.

use std::{sync::Arc, time::Duration};

use distlock::{
    Attempt, DistLock, HolderLabel, LockName, OwnerId, Store, Ttl,
    backend::{AcquireRequest, Lease},
};
use distlock_cli::program::Outcome;
use distlock_report::{Workload, compare::Missing};
use futures_util::stream::{self, StreamExt as _};

use super::{
    plan::{ComparisonRun, Experiment, within},
    rounds::{Arms, RoundResult},
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
        let mut arms = Arms::open(&self.stores).await;
        for size in self.plan.idle.clone() {
            let experiment = Experiment::new(&format!("idle-{size}"), Workload::Uncontended, 1);
            self.progress
                .begin_part(&format!("measuring beside {size} idle locks"));
            for (at, filler) in fillers.iter_mut().enumerate() {
                if let Err(error) = self.fill_store(at, filler, size, &experiment.key).await {
                    let store = &self.stores[at];
                    let why = format!("it does not hold {size} locks: {error}");
                    let note = format!("{}: {why}", store.facts.name);
                    self.progress.print_note(&note);
                    self.missing.push(Missing {
                        store: store.key().to_owned(),
                        experiment: experiment.key.clone(),
                        why,
                    });
                    arms.remove(store);
                }
            }
            self.measure_arms(&arms, &experiment).await?;
        }
        for filler in fillers.into_iter().flatten() {
            within(Duration::from_secs(120), filler.release_all()).await;
        }
        arms.close().await;
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
        let from = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        let taking = stream::iter(from..size).map(|number| {
            let name = LockName::new(format!("bench:idle:{:08x}:{number:06}", self.run));
            let lock = self.store.backend();
            async move { acquire_idle(lock, name?).await }
        });
        let mut taking = taking.buffer_unordered(MAX_IN_FLIGHT);
        while let Some(taken) = taking.next().await {
            self.held.extend(taken?);
        }
        Ok(())
    }

    /// Releases all locks, and closes the client.
    async fn release_all(self) {
        let giving = stream::iter(&self.held).for_each_concurrent(MAX_IN_FLIGHT, |lease| {
            let lock = self.store.backend();
            async move { drop(lock.release(lease).await) }
        });
        giving.await;
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
