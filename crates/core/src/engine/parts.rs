//! The parts that all clones of a locker and all its guards share.
//!
//! This module only puts the parts together: each part has a file of its own. A function that needs
//! one part takes that part. A function that drives a whole acquire, release or clean-up takes all
//! parts.

use std::{fmt, sync::Arc};

use crate::{
    clock::Clock,
    contract::{
        DistLock,
        capabilities::{Fairness, Reach, Wakeup},
        loss::LossFeed,
    },
    engine::{
        contended::ContendedNames,
        jobs::Spawn,
        keeper::Keeper,
        lease_state::LeaseState,
        lifecycle::Lifecycle,
        local_queue::LocalQueues,
        meters::{GroupOf, MetersByName},
        settings::{Settings, Timing},
        store_queue::StoreQueues,
        unreleased::UnreleasedLeases,
    },
    types::name::LockName,
};

/// Everything that the clones of one locker share.
///
/// The fields are dropped in this order. The keeper is dropped before the lifecycle: first the
/// keeper thread learns that no locker is left, and then the jobs on that thread learn it.
pub(crate) struct LockerParts {
    pub(crate) backend: Arc<dyn DistLock>,
    pub(crate) queues: Arc<LocalQueues>,
    pub(crate) store_queues: Arc<StoreQueues>,
    pub(crate) contended: ContendedNames,
    pub(crate) keeper: Keeper,
    pub(crate) timing: Timing,
    pub(crate) meters: MetersByName,
    pub(crate) settings: Settings,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) unreleased: Arc<UnreleasedLeases>,
}

impl LockerParts {
    /// Starts the keeper, and puts the parts together.
    pub(crate) fn start(
        backend: Arc<dyn DistLock>,
        clock: Arc<dyn Clock>,
        seed: Option<u64>,
        settings: Settings,
        group_of: Option<GroupOf>,
        keeper_on: Option<Spawn>,
    ) -> Arc<Self> {
        let meters = MetersByName::new(backend.capabilities().backend, group_of);
        let keeper = Keeper::start(Arc::clone(&backend), Arc::clone(&clock), keeper_on);
        Arc::new(Self {
            backend,
            queues: LocalQueues::new(),
            store_queues: Arc::default(),
            contended: ContendedNames::default(),
            keeper,
            timing: Timing::new(clock, seed),
            meters,
            settings,
            lifecycle: Lifecycle::new(),
            unreleased: Arc::default(),
        })
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.backend.capabilities().backend
    }

    /// Whether the store keeps a queue in order of arrival and has no hand-over. With such a store,
    /// the next task of this process joins the store queue while the task before it still holds the
    /// lock.
    pub(crate) fn queues_at_the_store(&self) -> bool {
        let capabilities = self.backend.capabilities();
        capabilities.fairness == Fairness::Fifo && !capabilities.hand_over
    }

    /// Whether the next acquire of this name lets other processes go first: it then joins the store
    /// queue before its first attempt. A `true` answer resets the count of the name.
    pub(crate) fn lets_others_go_first(&self, name: &LockName) -> bool {
        let limit = match self.backend.capabilities().wakeup {
            Wakeup::Push => 1,
            Wakeup::Poll => self.grants_in_a_row(),
        };
        self.contended.take_if_due(name, limit)
    }

    /// Whether an attempt without a wait leaves the lock to the waiters of other processes now.
    /// A store that waiters poll needs that, and one on the same host (SQLite): its waiter is told
    /// at once, and still loses the race against a process that asks right after its own release. A
    /// waiter that a server notifies is soon enough, and a queue of the store (ZooKeeper) puts the
    /// attempt behind all waiters.
    pub(crate) fn gives_way(&self, name: &LockName) -> bool {
        let capabilities = self.backend.capabilities();
        let may_lose = capabilities.wakeup == Wakeup::Poll || capabilities.reach == Reach::Host;
        may_lose
            && self
                .contended
                .gives_way(name, self.grants_in_a_row(), self.timing.now())
    }

    /// The number of grants in a row after which this process lets other processes go first.
    fn grants_in_a_row(&self) -> u32 {
        self.settings.hand_over_limit().max(1)
    }

    /// Gives a new lease to the keeper, and counts the first guard of the lease, which the caller
    /// makes.
    pub(crate) fn adopt(&self, lease_state: &Arc<LeaseState>, loss: &LossFeed) {
        // The call that a close waits for is still running. If the guard were counted after it, a
        // close in between would see neither.
        self.lifecycle.add_guard();
        self.keeper.keep(lease_state, loss);
    }
}

impl fmt::Debug for LockerParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker")
            .field("backend", &self.backend)
            .field("held_or_wanted", &self.queues.len())
            .finish_non_exhaustive()
    }
}
