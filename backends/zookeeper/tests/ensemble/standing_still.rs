//! Futures of acquires that their callers keep and do not poll.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use distlock_core::{Attempt, Guard, Locker, Result};
use distlock_harness::servers::zookeeper::ZooKeeper;

use crate::fixtures::{
    SOON, contenders, eventually, hold, locker, now, pause, raw_client, release_cleanly, within,
};

/// The longest time for which a future that stands still may keep others from the lock: the lease
/// of its place, and what a busy machine adds.
const LONGEST: Duration = Duration::from_secs(4 + 2);

type Acquiring = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_stands_still_does_not_block_others() {
    let ensemble = ZooKeeper::start().unwrap();
    let (ours, theirs) = (
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    );
    a_waiter_that_stands_still_is_passed(&ensemble, &ours, &theirs).await;
    an_attempt_that_stands_still_is_undone(&ensemble, &ours, &theirs).await;
    ours.close().await;
    theirs.close().await;
}

fn start(locker: &Locker, name: &str) -> Acquiring {
    let lock = locker.lock(name).wait(SOON * 2);
    Box::pin(lock.acquire())
}

fn poll_once(acquiring: &mut Acquiring) -> Poll<Result<Guard>> {
    acquiring
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

/// Two waiters stand still in the queue, one of this process and one of another. A waiter behind
/// both gets the lock.
async fn a_waiter_that_stands_still_is_passed(
    ensemble: &ZooKeeper,
    ours: &Locker,
    theirs: &Locker,
) {
    let client = raw_client(&ensemble.servers()).await;
    let holder = hold(ours, "kept").await;
    let mut kept = Vec::new();
    for (locker, in_the_queue) in [(ours, 2), (theirs, 3)] {
        let mut waiting = start(locker, "kept");
        // The future is polled until its node is in the queue, and never again.
        eventually("in the queue", async || {
            assert!(poll_once(&mut waiting).is_pending());
            (contenders(&client, "kept").await.len() == in_the_queue).then_some(())
        })
        .await;
        kept.push(waiting);
    }
    let behind = tokio::spawn(start(theirs, "kept"));
    eventually("in the queue", async || {
        (contenders(&client, "kept").await.len() == 4).then_some(())
    })
    .await;
    let freed = now();
    release_cleanly(holder).await;
    let guard = within("passed", behind).await.unwrap().expect("acquires");
    let took = now().since(freed);
    assert!(took < LONGEST, "granted after {took:?}");
    // A future that is polled again gets the lock, behind the others.
    let first = kept.remove(0);
    let first = tokio::spawn(first);
    eventually("in the queue again", async || {
        (contenders(&client, "kept").await.len() == 2).then_some(())
    })
    .await;
    let token = guard.token();
    release_cleanly(guard).await;
    let first = within("acquired", first).await.unwrap().expect("acquires");
    assert!(first.token() > token);
    release_cleanly(first).await;
    drop(kept);
    eventually("no node is left", async || {
        contenders(&client, "kept").await.is_empty().then_some(())
    })
    .await;
}

/// The future of an attempt stands still after its first poll, which sent the creation of its node:
/// no answer is read.
async fn an_attempt_that_stands_still_is_undone(
    ensemble: &ZooKeeper,
    ours: &Locker,
    theirs: &Locker,
) {
    let client = raw_client(&ensemble.servers()).await;
    // The container exists after this cycle, so the first request creates the node.
    release_cleanly(hold(ours, "asked").await).await;
    let asked = now();
    let mut kept = start(ours, "asked");
    assert!(poll_once(&mut kept).is_pending());
    let attempt = Box::pin(ours.lock("asked").try_acquire());
    let mut attempt: Pin<Box<dyn Future<Output = Result<Attempt<Guard>>> + Send>> = attempt;
    let polled = attempt
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    eventually("both nodes are there", async || {
        (contenders(&client, "asked").await.len() == 2).then_some(())
    })
    .await;
    let guard = within("passed", hold(theirs, "asked")).await;
    let took = now().since(asked);
    assert!(took < LONGEST, "granted after {took:?}");
    assert_eq!(
        contenders(&client, "asked").await.len(),
        1,
        "both are undone"
    );
    // Neither future gets a lock with a node that is gone.
    let attempt = within("an answer", attempt).await;
    assert!(!matches!(attempt, Ok(Attempt::Acquired(_))), "{attempt:?}");
    let kept = tokio::spawn(kept);
    pause(Duration::from_millis(500)).await;
    assert!(guard.is_valid() && !kept.is_finished());
    let token = guard.token();
    release_cleanly(guard).await;
    let kept = within("acquired", kept).await.unwrap().expect("acquires");
    assert!(kept.token() > token);
    release_cleanly(kept).await;
}
