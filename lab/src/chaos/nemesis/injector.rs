//! The nemesis and its steps: each step heals the faults that are due, and may inject another
//! fault.
//!
//! The order of the random draws decides which faults a seed gives, so no draw may be added,
//! removed or moved.

use std::time::Duration;

use anyhow::Result;
use distlock::Locker;
use fastrand::Rng;

use super::{
    active::{ActiveFault, Remedy},
    kinds::FaultKind,
};
use crate::chaos::{
    history::{Event, Micros, now},
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
