//! Measures the costs of waiting: the delay until a waiter in another client is woken up, and the
//! requests that waiters send.

use std::time::Duration;

use anyhow::{Context as _, Result};
use distlock::{Clock as _, Locker, SystemClock};
use distlock_cli::program::Outcome;
use distlock_harness::FaultProxy;
use distlock_report::{Latencies, compare::Measure};
use tokio::task::JoinSet;

use super::{
    client::CountedConnection,
    plan::{ComparisonRun, pause},
    rounds::RoundResult,
    stores::Opener,
};
use crate::counts::as_f64;

/// The number of callers that wait.
const WAITERS: u32 = 64;

/// The TTL of each lock, longer than any measurement here.
const TTL: Duration = Duration::from_secs(60);

impl ComparisonRun {
    /// Measures wake-ups between two clients, in rounds.
    pub(super) async fn measure_wake_ups(&mut self) -> Outcome<()> {
        self.progress.begin_part("measuring wake-ups");
        let (rounds, wakes) = (self.plan.rounds, self.plan.wakes);
        let expected = Duration::from_millis(600) * wakes;
        self.interleave("wakeup", rounds, expected, |store, _| {
            let opener = store.opener();
            Some(async move { wake_up_round(&opener, wakes).await })
        })
        .await
    }

    /// Counts requests and bytes per second while many callers wait.
    pub(super) async fn measure_waiting(&mut self) -> Outcome<()> {
        self.progress.begin_part("counting what waiting costs");
        let (key, time) = (format!("waiting-{WAITERS}"), self.plan.waiting);
        self.interleave(&key, 1, time + Duration::from_secs(15), |store, _| {
            let (key, opener, wire) =
                (&key, store.opener(), CountedConnection::to_server_of(store));
            Some(async move { waiting_round(key, &opener, wire, time).await })
        })
        .await
    }
}

/// Runs a round of wake-ups: one client releases the lock, and another one waits for it.
async fn wake_up_round(opener: &Opener, wakes: u32) -> Result<RoundResult> {
    let (holder, waiter) = (opener.open_client().await?, opener.open_client().await?);
    let (holding, waiting) = (holder.locker(), waiter.locker());
    let name = format!("bench:wakeup:{:08x}", fastrand::u32(..));
    let mut latencies = Latencies::new();
    for at in 0..=wakes {
        let guard = holding.lock(&name).ttl(TTL).acquire().await?;
        let next = tokio::spawn(acquire_and_release(waiting.clone(), name.clone()));
        // After 60 ms the other caller waits for certain. The random part lets the release fall at
        // any point between two polls.
        pause(Duration::from_millis(60 + fastrand::u64(0..120))).await;
        let released = SystemClock.now();
        let _ = guard.release().await;
        let granted = next.await.context("the waiter ended early")??;
        // The first wake-up opens connections, so it is not counted.
        if at > 0 {
            latencies.record(granted.since(released));
        }
    }
    holder.close().await;
    waiter.close().await;
    let us = |share| latencies.quantile(share).as_secs_f64() * 1e6;
    let values = [(Measure::P50, us(0.5)), (Measure::P99, us(0.99))];
    Ok(RoundResult::of("wakeup", values))
}

/// Waits for the lock, releases it, and returns the moment of the grant.
async fn acquire_and_release(locker: Locker, name: String) -> distlock::Result<distlock::Moment> {
    let guard = locker
        .lock(&name)
        .ttl(TTL)
        .wait(Duration::from_secs(30))
        .acquire()
        .await?;
    let granted = SystemClock.now();
    let _ = guard.release().await;
    Ok(granted)
}

/// Makes callers wait for a lock that another client holds, and counts the requests that the client
/// of these callers sends.
async fn waiting_round(
    experiment: &str,
    opener: &Opener,
    wire: Option<CountedConnection>,
    time: Duration,
) -> Result<RoundResult> {
    let holder = opener.open_client().await?;
    let (waiter, counter) = match wire {
        Some(wire) => {
            let (waiter, counter) = wire.open().await?;
            (waiter, Some(counter))
        }
        None => (opener.open_client().await?, None),
    };
    let name = format!("bench:waiting:{:08x}", fastrand::u32(..));
    let guard = holder
        .locker()
        .lock(&name)
        .ttl(Duration::from_secs(600))
        .acquire()
        .await?;
    let locker = waiter.locker();
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let (locker, name) = (locker.clone(), name.clone());
        waiters.spawn(async move {
            let lock = locker.lock(&name).ttl(TTL).wait(TTL);
            drop(lock.acquire().await);
        });
    }
    // The requests with which callers start to wait must not be counted.
    pause(Duration::from_millis(1500)).await;
    let moved = || counter.as_ref().map(FaultProxy::bytes);
    let before = (waiter.backend().requests_sent(), moved());
    let start = SystemClock.now();
    pause(time).await;
    let seconds = SystemClock.now().since(start).as_secs_f64();
    let after = (waiter.backend().requests_sent(), moved());
    waiters.shutdown().await;
    let _ = guard.release().await;
    waiter.close().await;
    holder.close().await;
    let a_second = |measure, before: Option<u64>, after: Option<u64>| {
        Some((measure, as_f64(after?.saturating_sub(before?)) / seconds))
    };
    let requests = a_second(Measure::WaitingStatements, before.0, after.0);
    let bytes = a_second(Measure::WaitingBytes, before.1, after.1);
    Ok(RoundResult::of(
        experiment,
        requests.into_iter().chain(bytes),
    ))
}
