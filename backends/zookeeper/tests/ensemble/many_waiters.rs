//! Many contenders in one queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{Attempt, DistLock, Lease};
use distlock_harness::servers::zookeeper::ZooKeeper;
use tokio::{sync::watch, task::JoinSet};

use crate::fixtures::{
    contenders, count_waiters, eventually, hold, locker, open_store, pause, raw_client,
    release_cleanly, request, requests_received, within,
};

/// Each waiter watches only the contender just ahead. So the number of requests for each grant does
/// not depend on the number of waiters.
pub(crate) async fn a_turn_costs_the_same_with_many_waiters(ensemble: &ZooKeeper) {
    let few = requests_per_turn(ensemble, 40).await;
    let many = requests_per_turn(ensemble, 200).await;
    // A grant itself takes about four requests. The others are sent for waiters that give up.
    assert!(few <= 16.0, "{few} requests for each turn");
    assert!(
        many <= few + 8.0,
        "{few} requests for each turn of few, {many} of many"
    );
}

/// Starts `many` contenders, some of which give up. All others must get the lock, one at a time.
/// Returns the number of requests for each grant.
async fn requests_per_turn(ensemble: &ZooKeeper, many: u32) -> f64 {
    const SESSIONS: usize = 4;
    const TURN: Duration = Duration::from_millis(5);
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    eprintln!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut stores: Vec<Arc<dyn DistLock>> = Vec::new();
    for _ in 0..SESSIONS {
        stores.push(open_store(&ensemble.servers()).await.lock());
    }
    let client = raw_client(&ensemble.servers()).await;
    let name = format!("crowd-{many}");
    let first = locker(&ensemble.servers()).await;
    let guard = hold(&first, &name).await;
    let inside = Arc::new(AtomicBool::new(false));
    let (begin, begun) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for at in 0..many {
        let lock = Arc::clone(&stores[at as usize % SESSIONS]);
        // Every second waiter gives up at a random moment. At that moment fewer than half of the
        // waiters have had the lock.
        let patience = (at % 2 == 0).then(|| TURN.mul_f64(f64::from(many) / 2.0 * random.f64()));
        let (inside, name, mut begun) = (Arc::clone(&inside), name.clone(), begun.clone());
        tasks.spawn(async move {
            let request = request(&name, Duration::from_secs(60));
            let acquire = async {
                let mut contender = lock.contend(&request).await.unwrap();
                loop {
                    if let Attempt::Acquired(grant) = contender.attempt().await.unwrap() {
                        return grant;
                    }
                    contender.wait(Duration::from_secs(60)).await;
                }
            };
            let gives_up = async {
                let Some(patience) = patience else {
                    return std::future::pending().await;
                };
                begun.wait_for(|begun| *begun).await.unwrap();
                pause(patience).await;
            };
            let grant = tokio::select! {
                grant = acquire => grant,
                () = gives_up => return TurnOutcome::GaveUp,
            };
            assert!(!inside.swap(true, Ordering::SeqCst), "two holders at once");
            pause(TURN).await;
            inside.store(false, Ordering::SeqCst);
            let lease = Lease::new(request.name.clone(), request.owner, Some(grant.token));
            lock.release(&lease).await.unwrap();
            match patience {
                None => TurnOutcome::Stayed,
                Some(_) => TurnOutcome::AcquiredInTime,
            }
        });
    }
    eventually("all are in the queue", async || {
        (count_waiters(&first, &name).await == many).then_some(())
    })
    .await;
    let before = requests_received(ensemble);
    begin.send_replace(true);
    release_cleanly(guard).await;
    let mut turns = Vec::new();
    let all = async {
        while let Some(task) = tasks.join_next().await {
            turns.push(task.unwrap());
        }
    };
    within("everybody who stays gets the lock", all).await;
    let sent = requests_received(ensemble) - before;
    let count = |kind| turns.iter().filter(|turn| **turn == kind).count();
    let (stayed, gave_up) = (count(TurnOutcome::Stayed), count(TurnOutcome::GaveUp));
    assert_eq!(stayed, many as usize / 2);
    assert!(
        gave_up >= many as usize / 10,
        "only {gave_up} of {many} gave up in the queue"
    );
    eventually("no entry is left", async || {
        contenders(&client, &name).await.is_empty().then_some(())
    })
    .await;
    let granted = u32::try_from(turns.len() - gave_up).unwrap();
    let each = f64::from(u32::try_from(sent).unwrap()) / f64::from(granted);
    eprintln!("{many} in the queue: {granted} turns, {gave_up} gave up, {each} requests each");
    for store in stores {
        store.close().await;
    }
    first.close().await;
    each
}

/// The outcome for one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnOutcome {
    GaveUp,
    Stayed,
    /// The waiter got the lock before the moment at which it would have given up.
    AcquiredInTime,
}
