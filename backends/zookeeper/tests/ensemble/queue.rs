//! The queue: nobody is forgotten, nothing is left, nothing costs more with more who wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use distlock_core::{Attempt, ErrorKind, Guard, Lease, Locker, LossReason, Renew};
use distlock_harness::servers::zookeeper::ZooKeeper;
use tokio::task::JoinSet;

use crate::{
    containers, crowds,
    rig::{
        SESSION, SOON, container, contenders, eventually, give_back, hold, line_up, line_up_behind,
        locker, now, open, pause, request, requests, stranger, within,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn crowds_cancellations_and_hands_that_interfere() {
    let ensemble = ZooKeeper::start().unwrap();
    those_who_wait_are_shown_in_order(&ensemble).await;
    nodes_removed_by_hand(&ensemble).await;
    a_container_that_was_made_anew(&ensemble).await;
    two_crowds_alternate(&ensemble).await;
    renewals_are_shared(&ensemble).await;
    closing_wakes_those_behind(&ensemble).await;
    a_grant_that_came_too_late(&ensemble).await;
    containers::removed_again_and_again(&ensemble).await;
    crowds::with_cancellations(&ensemble).await;
}

/// Everybody can see who comes next, and after whom.
async fn those_who_wait_are_shown_in_order(ensemble: &ZooKeeper) {
    let lockers = [
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    ];
    let guard = hold(&lockers[0], "shown").await;
    let shown = async |locker: &Locker| {
        let info = locker.inspect("shown").await.expect("answers");
        let labels = info.queue.into_iter().map(|waiting| {
            assert_eq!(waiting.token, None, "nothing was granted to it");
            waiting.holder
        });
        (info.waiters, labels.collect::<Vec<_>>())
    };
    assert_eq!(shown(&lockers[1]).await, (Some(0), Vec::new()));
    let mut tasks = JoinSet::new();
    let mut labels = Vec::new();
    for number in 0..4_u32 {
        let label = format!("number {number}");
        let asks = lockers[usize::from(number % 2 == 1)].lock("shown");
        let asks = asks.holder(label.as_str()).wait(SOON * 2);
        tasks.spawn(async move { asks.acquire().await.map(drop) });
        labels.push(label);
        let all = (Some(number + 1), labels.clone());
        eventually("shown behind the others", async || {
            (shown(&lockers[0]).await == all).then_some(())
        })
        .await;
        assert_eq!(shown(&lockers[1]).await, all);
    }
    let listed = lockers[0].list("shown").await.expect("answers");
    assert_eq!((listed.len(), listed[0].waiters), (1, Some(4)));
    assert!(listed[0].queue.is_empty(), "a list is not asked for each");
    give_back(guard).await;
    while let Some(ended) = within("all get it", tasks.join_next()).await {
        ended.unwrap().unwrap();
    }
    for locker in lockers {
        locker.close().await;
    }
}

/// A place that somebody removes is a loss, or an error, at once.
async fn nodes_removed_by_hand(ensemble: &ZooKeeper) {
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    let client = stranger(&ensemble.servers()).await;
    // Nobody asks for it, so only its removal tells.
    let ttl = SESSION;
    let held = ours.lock("removed").ttl(ttl).renew(Renew::Manual);
    let guard = held.acquire().await.expect("acquires");
    let holders = contenders(&client, "removed").await;
    let waiting = tokio::spawn(theirs.lock("removed").wait(SOON).acquire());
    let queued = eventually("in the queue", async || {
        let all = contenders(&client, "removed").await;
        all.into_iter().find(|child| !holders.contains(child))
    })
    .await;
    let path = |child: &str| format!("{}/{child}", container("removed"));
    // What a lease lasts, which is over by then: it began before.
    let at_once = SESSION * 2 / 3;
    guard.extend(ttl).await.expect("is held");
    client.delete(&path(&queued), None).await.unwrap();
    let start = now();
    let error = within("refused", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let took = now().since(start);
    assert!(took < at_once, "who waits was told after {took:?}");
    guard.extend(ttl).await.expect("is held");
    client.delete(&path(&holders[0]), None).await.unwrap();
    let start = now();
    assert_eq!(within("told", guard.lost()).await, LossReason::Removed);
    let took = now().since(start);
    assert!(took < at_once, "the holder was told after {took:?}");
    assert!(!guard.release().await.is_clean());
    give_back(hold(&theirs, "removed").await).await;
    ours.close().await;
    theirs.close().await;
}

/// The servers remove empty containers, and one that is made again counts from zero. Whoever remembers the last number it
/// had must not take the next one for its own successor.
async fn a_container_that_was_made_anew(ensemble: &ZooKeeper) {
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    let client = stranger(&ensemble.servers()).await;
    for times in 2..8 {
        let name = format!("anew-{times}");
        for _ in 0..times {
            give_back(hold(&ours, &name).await).await;
            // Time for whatever is remembered of the container.
            pause(Duration::from_millis(20)).await;
        }
        client.delete(&container(&name), None).await.unwrap();
        for _ in 1..times {
            give_back(hold(&theirs, &name).await).await;
        }
        // Theirs has the number that ours had last.
        let guard = hold(&theirs, &name).await;
        let attempt = ours.lock(&name).try_acquire().await.unwrap();
        assert!(matches!(attempt, Attempt::Busy(_)), "{times}: {attempt:?}");
        let next = line_up_behind(&guard, &ours).await;
        give_back(guard).await;
        give_back(within("its turn", next).await.unwrap().0).await;
    }
    ours.close().await;
    theirs.close().await;
}

/// Many tasks in each of two processes: both get their share.
async fn two_crowds_alternate(ensemble: &ZooKeeper) {
    const EACH: usize = 16;
    const IN_ALL: u32 = 200;
    let crowds = [
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    ];
    let grants = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let done = Arc::new(AtomicBool::new(false));
    // Both crowds are in the queue before anybody counts.
    let first = hold(&crowds[0], "crowd").await;
    let mut tasks = JoinSet::new();
    for (locker, count) in crowds.iter().zip(&grants) {
        for _ in 0..EACH {
            let (locker, count, done) = (locker.clone(), Arc::clone(count), Arc::clone(&done));
            let others = grants.clone();
            tasks.spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let guard = locker.lock("crowd").wait(SOON).acquire().await.unwrap();
                    if !done.load(Ordering::Relaxed) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    let sum: u32 = others
                        .iter()
                        .map(|count| count.load(Ordering::Relaxed))
                        .sum();
                    if sum >= IN_ALL {
                        done.store(true, Ordering::Relaxed);
                    }
                    pause(Duration::from_millis(1)).await;
                    give_back(guard).await;
                }
            });
        }
    }
    for locker in &crowds {
        eventually("both wait", async || {
            (locker.inspect("crowd").await.ok()?.waiters >= Some(4)).then_some(())
        })
        .await;
    }
    give_back(first).await;
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let shares = grants.map(|count| count.load(Ordering::Relaxed));
    let most = shares[0].max(shares[1]);
    assert!(most * 10 <= (shares[0] + shares[1]) * 6, "{shares:?}");
    for locker in crowds {
        locker.close().await;
    }
}

/// Sixty locks of one session cost about as many renewals as one does.
async fn renewals_are_shared(ensemble: &ZooKeeper) {
    let locker = locker(&ensemble.servers()).await;
    let mut costs = Vec::new();
    let mut guards = Vec::new();
    for many in [1, 60] {
        while guards.len() < many {
            guards.push(hold(&locker, &format!("shared-{}", guards.len())).await);
        }
        // Whatever follows a grant is over.
        pause(Duration::from_millis(500)).await;
        let before = requests(ensemble);
        pause(SESSION).await;
        costs.push(requests(ensemble) - before);
        assert!(guards.iter().all(Guard::is_valid));
    }
    for guard in guards {
        give_back(guard).await;
    }
    assert!(
        costs[1] < costs[0] + 30,
        "{costs:?} requests in {SESSION:?}"
    );
    locker.close().await;
}

/// A locker that is closed while others wait for what it holds.
async fn closing_wakes_those_behind(ensemble: &ZooKeeper) {
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    let held = hold(&ours, "closed").await;
    let next = line_up(&theirs, "closed").await;
    let start = now();
    drop(held);
    ours.close().await;
    let (next, granted) = within("its turn", next).await.unwrap();
    assert!(
        granted.since(start) < SESSION,
        "without waiting for the session to expire"
    );
    give_back(next).await;
    theirs.close().await;
}

/// A grant that nobody can use any more is given back, and its contender asks again.
async fn a_grant_that_came_too_late(ensemble: &ZooKeeper) {
    let store = open(&ensemble.servers()).await;
    let lock = store.lock();
    let request = request("late", Duration::from_secs(60));
    let mut contender = lock.contend(&request).await.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let attempt = within("an answer", contender.attempt()).await.unwrap();
        let Attempt::Acquired(grant) = attempt else {
            panic!("nobody else is there: {attempt:?}");
        };
        tokens.push(grant.token);
        let lease = Lease::new(request.name.clone(), request.owner, None);
        lock.release(&lease).await.unwrap();
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    contender.leave().await.unwrap();
    let client = stranger(&ensemble.servers()).await;
    assert_eq!(contenders(&client, "late").await, Vec::<String>::new());
    lock.close().await;
}
