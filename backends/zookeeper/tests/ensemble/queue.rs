//! The queue: every waiter gets the lock, no node remains, and the cost of a grant does not rise
//! with the number of waiters.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{Attempt, ErrorKind, Guard, Lease, Locker, LossReason, Renew};
use distlock_harness::servers::zookeeper::ZooKeeper;
use tokio::task::JoinSet;
use zookeeper_client as zk;

use crate::{
    fixtures::{
        SESSION, SOON, container_path, contenders, enter_queue, enter_queue_behind, eventually,
        hold, locker, now, open_store, pause, raw_client, release_cleanly, request,
        requests_received, within,
    },
    many_waiters,
};

#[tokio::test(flavor = "multi_thread")]
async fn queues_serve_every_waiter_and_keep_no_node() {
    let ensemble = ZooKeeper::start().unwrap();
    inspect_lists_waiters_in_order(&ensemble).await;
    removed_nodes_are_reported_at_once(&ensemble).await;
    a_recreated_container_is_not_taken_for_the_old_one(&ensemble).await;
    two_clients_share_the_grants(&ensemble).await;
    locks_of_one_session_share_renewals(&ensemble).await;
    closing_wakes_the_contenders_behind(&ensemble).await;
    a_late_grant_is_replaced_by_a_new_one(&ensemble).await;
    a_lock_works_while_its_container_is_removed(&ensemble).await;
    many_waiters::a_turn_costs_the_same_with_many_waiters(&ensemble).await;
}

/// Every client sees the waiters in the order in which they will get the lock.
async fn inspect_lists_waiters_in_order(ensemble: &ZooKeeper) {
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
    assert!(listed[0].queue.is_empty(), "a list shows no waiters");
    release_cleanly(guard).await;
    while let Some(ended) = within("all get it", tasks.join_next()).await {
        ended.unwrap().unwrap();
    }
    for locker in lockers {
        locker.close().await;
    }
}

/// Another client removes nodes of a holder and of a waiter. The loss is reported to the holder at
/// once, and the waiter gets an error at once.
async fn removed_nodes_are_reported_at_once(ensemble: &ZooKeeper) {
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    let client = raw_client(&ensemble.servers()).await;
    // Renewal is manual, so only the removal itself can be reported.
    let ttl = SESSION;
    let held = ours.lock("removed").ttl(ttl).renew(Renew::Manual);
    let guard = held.acquire().await.expect("acquires");
    let holders = contenders(&client, "removed").await;
    let waiting = tokio::spawn(theirs.lock("removed").wait(SOON).acquire());
    let queued = eventually("the contender is in the queue", async || {
        let all = contenders(&client, "removed").await;
        all.into_iter().find(|child| !holders.contains(child))
    })
    .await;
    let path = |child: &str| format!("{}/{child}", container_path("removed"));
    // The longest lease. A later report may come from the end of the lease instead.
    let at_once = SESSION * 2 / 3;
    guard.extend(ttl).await.expect("is held");
    client.delete(&path(&queued), None).await.unwrap();
    let start = now();
    let error = within("refused", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let took = now().since(start);
    assert!(took < at_once, "the waiter was told after {took:?}");
    guard.extend(ttl).await.expect("is held");
    client.delete(&path(&holders[0]), None).await.unwrap();
    let start = now();
    assert_eq!(
        within("the loss is reported", guard.lost()).await,
        LossReason::Removed
    );
    let took = now().since(start);
    assert!(took < at_once, "the holder was told after {took:?}");
    assert!(!guard.release().await.is_clean());
    release_cleanly(hold(&theirs, "removed").await).await;
    ours.close().await;
    theirs.close().await;
}

/// The servers remove empty containers, and a container that is created again counts from zero. A
/// client knows the number of its last node in the old container. The client must not conclude that
/// the node with the next number follows its own node directly.
async fn a_recreated_container_is_not_taken_for_the_old_one(ensemble: &ZooKeeper) {
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    let client = raw_client(&ensemble.servers()).await;
    for times in 2..8 {
        let name = format!("anew-{times}");
        for _ in 0..times {
            release_cleanly(hold(&ours, &name).await).await;
            // The pause gives the backend time to set the watch on the container.
            pause(Duration::from_millis(20)).await;
        }
        client.delete(&container_path(&name), None).await.unwrap();
        for _ in 1..times {
            release_cleanly(hold(&theirs, &name).await).await;
        }
        // The new node of `theirs` has the number of the last node of `ours` in the old container.
        let guard = hold(&theirs, &name).await;
        let attempt = ours.lock(&name).try_acquire().await.unwrap();
        assert!(matches!(attempt, Attempt::Busy(_)), "{times}: {attempt:?}");
        let next = enter_queue_behind(&guard, &ours).await;
        release_cleanly(guard).await;
        release_cleanly(within("the waiter gets the lock", next).await.unwrap().0).await;
    }
    ours.close().await;
    theirs.close().await;
}

/// Many tasks of two clients compete for one lock. Neither client gets more than 60 % of the
/// grants.
async fn two_clients_share_the_grants(ensemble: &ZooKeeper) {
    const EACH: usize = 16;
    const IN_ALL: u32 = 200;
    let lockers = [
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    ];
    let grants = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let done = Arc::new(AtomicBool::new(false));
    // Tasks of both clients are in the queue before any grant counts.
    let first = hold(&lockers[0], "crowd").await;
    let mut tasks = JoinSet::new();
    for (locker, count) in lockers.iter().zip(&grants) {
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
                    release_cleanly(guard).await;
                }
            });
        }
    }
    for locker in &lockers {
        eventually("both wait", async || {
            (locker.inspect("crowd").await.ok()?.waiters >= Some(4)).then_some(())
        })
        .await;
    }
    release_cleanly(first).await;
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let shares = grants.map(|count| count.load(Ordering::Relaxed));
    let most = shares[0].max(shares[1]);
    assert!(most * 10 <= (shares[0] + shares[1]) * 6, "{shares:?}");
    for locker in lockers {
        locker.close().await;
    }
}

/// Sixty locks of one session need about as many renewal requests as one lock.
async fn locks_of_one_session_share_renewals(ensemble: &ZooKeeper) {
    let locker = locker(&ensemble.servers()).await;
    let mut costs = Vec::new();
    let mut guards = Vec::new();
    for many in [1, 60] {
        while guards.len() < many {
            guards.push(hold(&locker, &format!("shared-{}", guards.len())).await);
        }
        // During this pause, the requests that follow a grant are sent.
        pause(Duration::from_millis(500)).await;
        let before = requests_received(ensemble);
        pause(SESSION).await;
        costs.push(requests_received(ensemble) - before);
        assert!(guards.iter().all(Guard::is_valid));
    }
    for guard in guards {
        release_cleanly(guard).await;
    }
    assert!(
        costs[1] < costs[0] + 30,
        "{costs:?} requests in {SESSION:?}"
    );
    locker.close().await;
}

/// A locker is closed while another locker waits for its lock. The waiter gets the lock without
/// waiting for the expiry of the session.
async fn closing_wakes_the_contenders_behind(ensemble: &ZooKeeper) {
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    let held = hold(&ours, "closed").await;
    let next = enter_queue(&theirs, "closed").await;
    let start = now();
    drop(held);
    ours.close().await;
    let (next, granted) = within("the waiter gets the lock", next).await.unwrap();
    assert!(
        granted.since(start) < SESSION,
        "without waiting for the session to expire"
    );
    release_cleanly(next).await;
    theirs.close().await;
}

/// The caller releases a grant that came too late. The same contender then gets a new grant, with a
/// higher token.
async fn a_late_grant_is_replaced_by_a_new_one(ensemble: &ZooKeeper) {
    let store = open_store(&ensemble.servers()).await;
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
    let client = raw_client(&ensemble.servers()).await;
    assert_eq!(contenders(&client, "late").await, Vec::<String>::new());
    lock.close().await;
}

/// One client removes the container whenever it is empty, as the servers may do. Two other clients
/// acquire and release the lock all the time, and each token is higher than the last.
async fn a_lock_works_while_its_container_is_removed(ensemble: &ZooKeeper) {
    const NAME: &str = "removed again and again";
    const CYCLES: u32 = 100;
    const OFTEN: u32 = 10;
    let lockers = [
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    ];
    let client = raw_client(&ensemble.servers()).await;
    let path = container_path(NAME);
    let removed = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&removed);
    let remover = tokio::spawn(async move {
        loop {
            match client.delete(&path, None).await {
                Ok(()) => {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                Err(zk::Error::NotEmpty | zk::Error::NoNode | zk::Error::ConnectionLoss) => {}
                Err(error) => return error,
            }
            // The pause leaves processor time to the other tasks.
            pause(Duration::from_millis(1)).await;
        }
    });
    let newest = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for locker in &lockers {
        let (locker, newest) = (locker.clone(), Arc::clone(&newest));
        let removed = Arc::clone(&removed);
        tasks.spawn(async move {
            let mut cycles = 0;
            while cycles < CYCLES || removed.load(Ordering::SeqCst) < OFTEN {
                cycles += 1;
                let guard = hold(&locker, NAME).await;
                let token = guard.token().get();
                let before = newest.swap(token, Ordering::SeqCst);
                assert!(before < token, "{token} after {before}");
                release_cleanly(guard).await;
                // The pause makes the queue empty from time to time.
                pause(Duration::from_millis(fastrand::u64(0..4))).await;
            }
        });
    }
    let all = async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    };
    within("all cycles", all).await;
    assert!(!remover.is_finished(), "{}", remover.await.unwrap());
    remover.abort();
    for locker in lockers {
        locker.close().await;
    }
}
