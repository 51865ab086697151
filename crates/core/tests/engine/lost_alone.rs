//! A loss is reported to tasks that only wait for it.
//!
//! No test in this file calls `is_valid` or `remaining` of a guard before the waiters have the
//! loss. Such a call notices a passed deadline itself and would wake the waiters, so the test would
//! not check the keeper thread.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, pause};
use distlock_core::{Ended, Guard, Locker, LossReason, ManualClock, Renew};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(10);
/// The deadline of a lease, counted from its acquire: the TTL less a margin of 10 %.
const DEADLINE: Duration = Duration::from_secs(9);
/// The longest time between the deadline and the report of the loss that the documentation
/// promises.
const NOTICE: Duration = Duration::from_millis(250);

struct Simulation {
    clock: ManualClock,
    store: ScriptedLock,
    locker: Locker,
}

async fn simulation() -> Simulation {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .seed(7)
        .build();
    locker.ready().await.unwrap();
    Simulation {
        clock,
        store,
        locker,
    }
}

impl Simulation {
    async fn take(&self, renew: Renew) -> Arc<Guard> {
        let request = self.locker.lock("a").ttl(TTL).renew(renew);
        Arc::new(request.acquire().await.unwrap())
    }

    /// Advances the clock in steps of 50 ms, and lets the keeper thread run after each step.
    async fn pass(&self, time: Duration) {
        let step = Duration::from_millis(50);
        let mut left = time;
        while !left.is_zero() {
            self.clock.advance(step.min(left));
            left = left.saturating_sub(step);
            for _ in 0..3 {
                pause().await;
            }
        }
    }

    /// Checks that the loss is reported to all waiters with `reason`, not before the deadline and
    /// within [`NOTICE`] after the deadline.
    async fn expect_all_notified(&self, waiting: JoinSet<Ended>, reason: LossReason) {
        self.expect_all_notified_in(DEADLINE, waiting, reason).await;
    }

    /// The same when the deadline is `left` away.
    async fn expect_all_notified_in(
        &self,
        left: Duration,
        mut waiting: JoinSet<Ended>,
        reason: LossReason,
    ) {
        self.pass(left - Duration::from_millis(100)).await;
        assert!(
            waiting.try_join_next().is_none(),
            "a waiter was notified before the deadline"
        );
        // The clock does not move after this call, so the result does not depend on the real time
        // that the keeper thread needs.
        self.pass(Duration::from_millis(100) + NOTICE).await;
        let waiters = waiting.len();
        let mut notified = Vec::new();
        eventually("all waiters are notified", || {
            notified.extend(std::iter::from_fn(|| waiting.try_join_next()));
            notified.len() == waiters
        })
        .await;
        for ended in notified {
            assert_eq!(ended.unwrap(), Ended::Lost(reason));
        }
    }
}

fn spawn_waiter(guard: &Arc<Guard>, waiting: &mut JoinSet<Ended>) {
    let guard = Arc::clone(guard);
    waiting.spawn(async move { Ended::Lost(guard.lost().await) });
}

fn spawn_watcher(guard: &Guard, waiting: &mut JoinSet<Ended>) {
    let watch = guard.watch();
    waiting.spawn(async move { watch.ended().await });
}

#[tokio::test]
async fn a_single_waiting_task_is_notified_of_the_loss() {
    let simulation = simulation().await;
    let guard = simulation.take(Renew::Manual).await;
    let mut waiting = JoinSet::new();
    spawn_waiter(&guard, &mut waiting);
    simulation
        .expect_all_notified(waiting, LossReason::Expired)
        .await;
}

#[tokio::test]
async fn a_single_watching_task_is_notified_of_the_loss() {
    let simulation = simulation().await;
    let guard = simulation.take(Renew::Manual).await;
    let mut waiting = JoinSet::new();
    spawn_watcher(&guard, &mut waiting);
    simulation
        .expect_all_notified(waiting, LossReason::Expired)
        .await;
}

#[tokio::test]
async fn all_waiting_and_watching_tasks_are_notified_of_the_loss() {
    let simulation = simulation().await;
    let guard = simulation.take(Renew::Manual).await;
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        spawn_waiter(&guard, &mut waiting);
        spawn_watcher(&guard, &mut waiting);
    }
    simulation
        .expect_all_notified(waiting, LossReason::Expired)
        .await;
}

#[tokio::test]
async fn a_loss_is_reported_while_a_renewal_hangs() {
    let simulation = simulation().await;
    simulation.store.0.renew.hang.store(u32::MAX, SeqCst);
    let guard = simulation.take(Renew::Auto).await;
    let mut waiting = JoinSet::new();
    spawn_waiter(&guard, &mut waiting);
    spawn_watcher(&guard, &mut waiting);
    simulation
        .expect_all_notified(waiting, LossReason::Unreachable)
        .await;
}

#[tokio::test]
async fn a_loss_is_reported_while_renewals_are_refused() {
    let simulation = simulation().await;
    simulation.store.0.renew.refuse.store(u32::MAX, SeqCst);
    let guard = simulation.take(Renew::Auto).await;
    let mut waiting = JoinSet::new();
    spawn_waiter(&guard, &mut waiting);
    spawn_watcher(&guard, &mut waiting);
    simulation
        .expect_all_notified(waiting, LossReason::Unreachable)
        .await;
}

#[tokio::test]
async fn a_loss_is_reported_after_the_locker_closed() {
    let simulation = simulation().await;
    let guard = simulation.take(Renew::Manual).await;
    let locker = simulation.locker.clone();
    let close = tokio::spawn(async move { locker.close().await });
    // The close waits a second for the guard.
    let (step, mut passed) = (Duration::from_millis(50), Duration::ZERO);
    while !close.is_finished() {
        simulation.pass(step).await;
        passed += step;
        assert!(passed < DEADLINE / 2, "the close has not ended");
    }
    let mut waiting = JoinSet::new();
    spawn_waiter(&guard, &mut waiting);
    spawn_watcher(&guard, &mut waiting);
    simulation
        .expect_all_notified_in(DEADLINE - passed, waiting, LossReason::Expired)
        .await;
}

#[tokio::test]
async fn a_loss_stays_readable_after_the_deadline() {
    let simulation = simulation().await;
    let guard = simulation.take(Renew::Manual).await;
    simulation.pass(TTL * 2).await;
    for _ in 0..2 {
        assert_eq!(guard.lost().await, LossReason::Expired);
        let watch = guard.watch();
        assert_eq!(watch.ended().await, Ended::Lost(LossReason::Expired));
    }
}
