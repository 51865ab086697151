//! The parts that all clones of a locker and all its guards share.
//!
//! This module owns no logic of its own: each part is in the file of its idea. A function takes the
//! one part that it needs where one is enough, and all of them where it drives a whole acquire,
//! release or clean-up.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use crate::{
    contract::{
        DistLock,
        capabilities::{Fairness, Wakeup},
        loss::LossFeed,
    },
    engine::{
        clock::Clock,
        contended::ContendedNames,
        keeper::{Keeper, Spawn},
        lease_state::LeaseState,
        lifecycle::Lifecycle,
        local_queue::{LocalQueues, OnAbandoned},
        meters::Meters,
        settings::Settings,
        store_queue::StoreQueues,
        timing::Timing,
    },
    types::name::LockName,
};

/// Everything that the clones of one locker share.
///
/// The fields are dropped in this order. The keeper goes before the lifecycle: its thread sees that
/// no locker is left, and then its jobs do.
pub(crate) struct LockerParts {
    pub(crate) backend: Arc<dyn DistLock>,
    pub(crate) queues: Arc<LocalQueues>,
    pub(crate) store_queues: Arc<StoreQueues>,
    pub(crate) contended: ContendedNames,
    pub(crate) keeper: Keeper,
    pub(crate) timing: Timing,
    pub(crate) meters: Arc<Meters>,
    pub(crate) settings: Settings,
    pub(crate) lifecycle: Lifecycle,
    /// Gives back a lock that was handed over to a task that had gone.
    pub(crate) on_abandoned: OnAbandoned,
}

impl LockerParts {
    /// Starts the keeper, and puts the parts together. `on_abandoned` is made from a weak
    /// reference, so that a lock that no task picks up does not keep the locker alive.
    pub(crate) fn start(
        backend: Arc<dyn DistLock>,
        clock: Arc<dyn Clock>,
        seed: Option<u64>,
        settings: Settings,
        keeper_on: Option<Spawn>,
        on_abandoned: impl FnOnce(Weak<Self>) -> OnAbandoned,
    ) -> Arc<Self> {
        let meters = Arc::new(Meters::new(backend.capabilities().backend));
        let keeper = Keeper::start(Arc::clone(&backend), Arc::clone(&clock), keeper_on);
        Arc::new_cyclic(|parts: &Weak<Self>| Self {
            backend,
            queues: LocalQueues::new(),
            store_queues: Arc::default(),
            contended: ContendedNames::default(),
            keeper,
            timing: Timing::new(clock, seed),
            meters,
            settings,
            lifecycle: Lifecycle::new(),
            on_abandoned: on_abandoned(Weak::clone(parts)),
        })
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.backend.capabilities().backend
    }

    /// Whether the store keeps the order of waiting, and has no hand-over. Then the next task of
    /// this process joins the store queue as soon as the task before it holds the lock, and not
    /// only when that one releases it.
    pub(crate) fn queues_at_the_store(&self) -> bool {
        let capabilities = self.backend.capabilities();
        capabilities.fairness == Fairness::Fifo && !capabilities.hand_over
    }

    /// Whether the next acquire joins the store queue before it asks.
    pub(crate) fn lets_others_go_first(&self, name: &LockName) -> bool {
        let limit = match self.backend.capabilities().wakeup {
            Wakeup::Push => 1,
            Wakeup::Poll => self.settings.hand_over_limit().max(1),
        };
        self.contended.is_due(name, limit)
    }

    /// Has the keeper renew a fresh lease, and ends it here when the store reports its loss.
    pub(crate) fn adopt(&self, lease_state: &Arc<LeaseState>, loss: &LossFeed) {
        self.keeper.keep(lease_state);
        let (lease_state, log) = (Arc::downgrade(lease_state), self.keeper.loss_log());
        loss.on_loss(move |reason| {
            if let Some(lease_state) = lease_state.upgrade()
                && lease_state.lose(reason)
            {
                log(lease_state, reason);
            }
        });
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
