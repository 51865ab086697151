//! Measures the costs of waiting: the delay until a waiter in another client is woken up, and the
//! requests that waiters send.

use std::time::Duration;

use distlock::{Clock as _, Locker, SystemClock};
use distlock_cli::program::Outcome;
use distlock_report::{
    Latencies,
    compare::{Figure, Measure},
};
use tokio::task::JoinSet;

use super::{
    client::{ByteCounter, CountedConnection},
    plan::{ComparisonRun, pause, within},
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
            Some(async move {
                wake_up_round(&opener, wakes)
                    .await
                    .unwrap_or_else(|error| RoundResult::failed(error.to_string()))
            })
        })
        .await
    }

    /// Counts requests and bytes per second while many callers wait. All stores run at the same
    /// time, because nothing is timed.
    pub(super) async fn measure_waiting(&mut self) -> Outcome<()> {
        self.progress.begin_part("counting what waiting costs");
        let mut running = JoinSet::new();
        for (at, candidate) in self.stores.iter().enumerate() {
            let name = format!("waiting-{WAITERS}.{}.0.json", candidate.key());
            let (opener, time) = (candidate.opener(), self.plan.waiting);
            let wire = CountedConnection::to_server_of(candidate);
            let kept = self.kept.load::<RoundResult>(&name);
            let alive = candidate.is_alive();
            running.spawn(async move {
                let turn = match kept {
                    Some(kept) => Some(kept),
                    None if !alive => None,
                    None => Some(
                        within(
                            time + Duration::from_secs(40),
                            waiting_round(&opener, wire, time),
                        )
                        .await
                        .unwrap_or_else(|| Ok(RoundResult::failed("it hung")))
                        .unwrap_or_else(|error| RoundResult::failed(format!("{error:#}"))),
                    ),
                };
                (at, name, turn)
            });
        }
        for (at, name, turn) in running.join_all().await {
            self.progress.finish_step();
            let Some(turn) = turn else { continue };
            if turn.error.is_none() {
                self.kept.save(&name, &turn)?;
            }
            for (measure, value) in &turn.values {
                self.figures.push(Figure {
                    store: self.stores[at].key().to_owned(),
                    experiment: format!("waiting-{WAITERS}"),
                    measure: *measure,
                    rounds: vec![*value],
                    missing: None,
                });
            }
        }
        Ok(())
    }
}

/// Runs a round of wake-ups: one client releases the lock, and another one waits for it.
async fn wake_up_round(opener: &Opener, wakes: u32) -> distlock::Result<RoundResult> {
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
        let granted = match next.await {
            Ok(granted) => granted?,
            Err(_) => return Ok(RoundResult::failed("the waiter ended early")),
        };
        // The first wake-up opens connections, so it is not counted.
        if at > 0 {
            latencies.record(granted.since(released));
        }
    }
    holder.close().await;
    waiter.close().await;
    let us = |share| latencies.quantile(share).as_secs_f64() * 1e6;
    Ok(RoundResult {
        values: vec![(Measure::P50, us(0.5)), (Measure::P99, us(0.99))],
        ..RoundResult::default()
    })
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
    opener: &Opener,
    wire: Option<CountedConnection>,
    time: Duration,
) -> anyhow::Result<RoundResult> {
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
    let moved = || counter.as_ref().map(ByteCounter::bytes);
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
    Ok(RoundResult {
        values: requests.into_iter().chain(bytes).collect(),
        ..RoundResult::default()
    })
}
