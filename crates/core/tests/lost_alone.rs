//! A loss reaches tasks that only wait for it.
//!
//! No test in this file asks a guard whether it is valid, or what remains of it, before the waiters
//! were told: such a question finds the loss by itself and tells the waiters.

mod support;

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use distlock_core::{Ended, Guard, Locker, LossReason, ManualClock, Renew};
use support::{Script, ScriptedLock, eventually, pause};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(10);
/// The TTL less the margin of a tenth.
const DEADLINE: Duration = Duration::from_secs(9);
/// The longest delay that the documentation promises.
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

    /// Moves time in steps of 50 ms and lets the keeper thread run after each.
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

    /// Checks that all waiters learn of the loss at the deadline or within [`NOTICE`] after it, not
    /// before, and with the same reason.
    async fn expect_all_told(&self, mut waiting: JoinSet<Ended>, reason: LossReason) {
        self.pass(DEADLINE - Duration::from_millis(100)).await;
        assert!(waiting.try_join_next().is_none(), "told too early");
        // The clock does not move from here on, however long the machine takes to run the keeper
        // thread.
        self.pass(Duration::from_millis(100) + NOTICE).await;
        let waiters = waiting.len();
        let mut told = Vec::new();
        eventually("everybody is told", || {
            told.extend(std::iter::from_fn(|| waiting.try_join_next()));
            told.len() == waiters
        })
        .await;
        for ended in told {
            assert_eq!(ended.unwrap(), Ended::Lost(reason));
        }
    }
}

fn waiter(guard: &Arc<Guard>, waiting: &mut JoinSet<Ended>) {
    let guard = Arc::clone(guard);
    waiting.spawn(async move { Ended::Lost(guard.lost().await) });
}

fn watcher(guard: &Guard, waiting: &mut JoinSet<Ended>) {
    let watch = guard.watch();
    waiting.spawn(async move { watch.ended().await });
}

#[tokio::test]
async fn one_waiter_learns_of_the_loss() {
    let simulation = simulation().await;
    let guard = simulation.take(Renew::Manual).await;
    let mut waiting = JoinSet::new();
    waiter(&guard, &mut waiting);
    simulation
        .expect_all_told(waiting, LossReason::Expired)
        .await;
}

#[tokio::test]
async fn one_watcher_learns_of_the_loss() {
    let simulation = simulation().await;
    let guard = simulation.take(Renew::Manual).await;
    let mut waiting = JoinSet::new();
    watcher(&guard, &mut waiting);
    simulation
        .expect_all_told(waiting, LossReason::Expired)
        .await;
}

#[tokio::test]
async fn waiters_and_watchers_learn_of_the_loss() {
    let simulation = simulation().await;
    let guard = simulation.take(Renew::Manual).await;
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        waiter(&guard, &mut waiting);
        watcher(&guard, &mut waiting);
    }
    simulation
        .expect_all_told(waiting, LossReason::Expired)
        .await;
}

#[tokio::test]
async fn a_loss_is_reported_while_a_renewal_hangs() {
    let simulation = simulation().await;
    simulation.store.0.renew.hang.store(u32::MAX, SeqCst);
    let guard = simulation.take(Renew::Auto).await;
    let mut waiting = JoinSet::new();
    waiter(&guard, &mut waiting);
    watcher(&guard, &mut waiting);
    simulation
        .expect_all_told(waiting, LossReason::Unreachable)
        .await;
}

#[tokio::test]
async fn a_loss_is_reported_while_renewals_are_refused() {
    let simulation = simulation().await;
    simulation.store.0.renew.refuse.store(u32::MAX, SeqCst);
    let guard = simulation.take(Renew::Auto).await;
    let mut waiting = JoinSet::new();
    waiter(&guard, &mut waiting);
    watcher(&guard, &mut waiting);
    simulation
        .expect_all_told(waiting, LossReason::Unreachable)
        .await;
}

#[tokio::test]
async fn a_loss_is_reported_after_the_locker_closed() {
    let simulation = simulation().await;
    let guard = simulation.take(Renew::Manual).await;
    simulation.locker.close().await;
    let mut waiting = JoinSet::new();
    waiter(&guard, &mut waiting);
    watcher(&guard, &mut waiting);
    simulation
        .expect_all_told(waiting, LossReason::Expired)
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
