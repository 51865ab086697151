//! Waiting processes beside a process that takes the lock again and again without a wait.

use std::time::Duration;

use distlock::{Attempt, Clock as _, SystemClock};
use distlock_conformance::{
    Workers,
    worker::{Ask, Command, Reply, Worker},
};
use distlock_harness::{
    eventually_async,
    servers::mysql::{MySqlServer, Product},
};
use sqlx::{Connection as _, SqliteConnection};

use crate::{
    PROGRAM,
    support::{Home, SOON},
};

const NAME: &str = "shared";
const ENTRIES: &str = "SELECT COUNT(*) FROM distributed_queue";
const WAITERS: u32 = 5;
/// The number of turns that each waiting process must get.
const TURNS: u32 = 4;
/// The time for which a process holds the lock in one turn.
const HOLD: Duration = Duration::from_millis(5);
/// The bound of all 20 turns. Each turn waits for at most one run of the loop's grants (16,
/// `hand_over_limit`), and for the 0.1 s in which the loop gives way. The loop holds the lock for
/// 5 ms, and a grant and its release take up to 10 ms here, beside six busy processes.
const BOUND: Duration = Duration::from_millis(20 * (16 * (5 + 10) + 100));

#[tokio::test(flavor = "multi_thread")]
async fn waiters_get_their_turns_beside_attempts_without_a_wait_on_sqlite() {
    let home = Home::new();
    let url = format!("sqlite:{}", home.store().display());
    let count_entries = async || {
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        sqlx::query_scalar(ENTRIES)
            .fetch_one(&mut connection)
            .await
            .unwrap()
    };
    waiters_get_their_turns(&url, count_entries).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_get_their_turns_beside_attempts_without_a_wait_on_mysql() {
    for product in Product::ALL {
        let server = MySqlServer::start(product).unwrap();
        let count_entries = async || server.sql(ENTRIES).unwrap().parse().unwrap();
        waiters_get_their_turns(&server.url(), count_entries).await;
    }
}

/// Runs the loop and the waiting processes. `count_entries` counts the entries of the store queue.
async fn waiters_get_their_turns(url: &str, count_entries: impl AsyncFn() -> u32) {
    let locker = distlock::connect(url).await.unwrap();
    let ttl = Duration::from_secs(10);
    // The loop holds the lock until all others wait.
    let mut held = Some(locker.lock(NAME).ttl(ttl).acquire().await.unwrap());
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let workers = Workers::new(PROGRAM, ["conformance-worker"], url);
        let mut worker = Worker::start(&workers).await.unwrap();
        let ask = Ask {
            name: NAME.into(),
            ttl,
            wait: BOUND * 2,
            renew: true,
            fair: false,
            not_before: Duration::ZERO,
        };
        let command = Command::Cycles {
            ask,
            hold: HOLD,
            count: TURNS,
        };
        worker.send(&command).await.unwrap();
        waiting.push(tokio::spawn(async move {
            let reply = worker.reply().await.unwrap();
            (SystemClock.now(), reply)
        }));
    }
    let all_wait = async || (count_entries().await == WAITERS).then_some(());
    eventually_async("all wait", SOON, all_wait).await.unwrap();
    let begun = SystemClock.now();
    let mut grants = 0;
    while waiting.iter().any(|it| !it.is_finished()) && SystemClock.now() < begun + BOUND * 2 {
        if let Some(guard) = held.take() {
            SystemClock.sleep(HOLD).await;
            assert!(guard.release().await.is_clean());
        }
        match locker.lock(NAME).ttl(ttl).try_acquire().await.unwrap() {
            Attempt::Acquired(guard) => {
                grants += 1;
                held = Some(guard);
            }
            Attempt::Busy(_) => SystemClock.sleep(Duration::from_millis(1)).await,
        }
    }
    drop(held);
    for waiter in waiting {
        let (ended, reply) = waiter.await.unwrap();
        let Reply::Cycles { holds, .. } = reply else {
            panic!("{reply:?}");
        };
        let took = ended.since(begun);
        assert_eq!(
            holds.len(),
            TURNS as usize,
            "turns, beside {grants} of the loop"
        );
        assert!(
            took <= BOUND,
            "{took:?} of {BOUND:?}, beside {grants} grants of the loop"
        );
    }
}
