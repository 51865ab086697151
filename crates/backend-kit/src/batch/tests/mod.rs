//! Tests of the batcher with a scripted store.

mod ahead;
mod long_queue;
mod random;
mod script;

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::*;
use distlock_core::{Error, ErrorKind, Result, sync::Mutex};

use script::{Fate, Kind, Op, Script, op};

fn batcher(script: Script) -> Batcher<Script> {
    Batcher::new(script, Limits::default())
}

fn submit(batcher: &Batcher<Script>, op: Op) -> tokio::task::JoinHandle<Result<u32>> {
    let batcher = batcher.clone();
    tokio::spawn(async move { batcher.submit(op).await })
}

/// Waits for a condition. Fails the test if the condition does not hold within 10 seconds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting)
        .await
        .unwrap_or_else(|_| panic!("never happened: {what}"));
}

async fn until_sent(batcher: &Batcher<Script>, batches: usize) {
    until("a batch is sent", || {
        batcher.executor().sent().len() >= batches
    })
    .await;
}

async fn until_queued(batcher: &Batcher<Script>, operations: usize) {
    until("operations are queued", || {
        batcher.0.state.lock().queue.len() == operations
    })
    .await;
}

#[tokio::test]
async fn a_lone_operation_runs_in_the_task_of_its_caller() {
    let batcher = batcher(Script::open());
    let tasks = Handle::current().metrics();
    for id in 0..3 {
        assert_eq!(
            batcher.submit(op(Kind::Acquire, "a", id)).await.unwrap(),
            id
        );
        assert_eq!(tasks.num_alive_tasks(), 0);
    }
    let sent = batcher.executor().sent();
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|sent| sent.task.is_none()));
}

/// The caller polls once and then does other work for a long time, for example in another arm of a
/// `select!`.
#[tokio::test]
async fn a_caller_that_stops_polling_does_not_delay_queued_operations() {
    let batcher = batcher(Script::gated());
    let mut leader = pin!(batcher.submit(op(Kind::Acquire, "a", 0)));
    assert!(futures_poll(leader.as_mut()).await.is_none());
    let behind = submit(&batcher, op(Kind::Acquire, "b", 1));
    batcher.executor().let_through(2);
    let behind = tokio::time::timeout(Duration::from_secs(30), behind);
    assert_eq!(behind.await.unwrap().unwrap().unwrap(), 1);
    assert_eq!(leader.await.unwrap(), 0);
    assert_eq!(batcher.executor().ids(), [vec![0], vec![1]]);
    // A task has taken the operation over. When the caller drops its future now, the operation is
    // undone.
    let mut leader = Box::pin(batcher.submit(op(Kind::Acquire, "a", 2)));
    assert!(futures_poll(leader.as_mut()).await.is_none());
    let behind = submit(&batcher, op(Kind::Acquire, "b", 3));
    batcher.executor().let_through(3);
    behind.await.unwrap().unwrap();
    drop(leader);
    until("the operation is undone", || {
        *batcher.executor().granted.lock() == [0, 1, 3].into()
    })
    .await;
    batcher.close().await;
}

/// A second operation with the same key has to wait for the first one, also while a permit is free.
#[tokio::test]
async fn a_caller_that_stops_polling_does_not_delay_its_key_or_a_close() {
    let limits = Limits {
        in_flight: 3,
        ..Limits::default()
    };
    let batcher = Batcher::new(Script::open(), limits);
    let mut leader = pin!(batcher.submit(op(Kind::Acquire, "a", 0)));
    assert!(futures_poll(leader.as_mut()).await.is_none());
    for (id, key) in [(1, "b"), (2, "a"), (3, "b"), (4, "a")] {
        let behind = submit(&batcher, op(Kind::Acquire, key, id));
        let behind = tokio::time::timeout(Duration::from_secs(30), behind);
        assert_eq!(behind.await.unwrap().unwrap().unwrap(), id);
    }
    assert_eq!(leader.await.unwrap(), 0);
    let mut leader = pin!(batcher.submit(op(Kind::Acquire, "a", 5)));
    assert!(futures_poll(leader.as_mut()).await.is_none());
    let closing = tokio::time::timeout(Duration::from_secs(30), batcher.close());
    closing.await.unwrap();
    assert_eq!(leader.await.unwrap(), 5);
}

/// Callers on several threads wait for answers, stop polling for a while, or drop their futures.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_on_several_threads_get_their_answers_or_are_undone() {
    const EACH: u32 = 400;
    for in_flight in [1, 3] {
        let limits = Limits {
            in_flight,
            ..Limits::default()
        };
        let batcher = Batcher::new(Script::open(), limits);
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let batcher = batcher.clone();
                tokio::spawn(async move {
                    let mut received = std::collections::BTreeSet::new();
                    for id in caller * EACH..(caller + 1) * EACH {
                        let mut asking = Box::pin(batcher.submit(op(Kind::Acquire, "a", id)));
                        let mut answer = None;
                        for _ in 0..id * 7 % 4 {
                            answer = futures_poll(asking.as_mut()).await;
                            tokio::task::yield_now().await;
                            if answer.is_some() {
                                break;
                            }
                        }
                        if answer.is_none() && id % 3 > 0 {
                            let answered = tokio::time::timeout(Duration::from_secs(60), asking);
                            answer = Some(answered.await.unwrap());
                        }
                        if let Some(answer) = answer {
                            assert_eq!(answer.unwrap(), id);
                            received.insert(id);
                        }
                    }
                    received
                })
            })
            .collect();
        let mut received = std::collections::BTreeSet::new();
        for caller in callers {
            received.extend(caller.await.unwrap());
        }
        batcher.close().await;
        assert_eq!(*batcher.executor().granted.lock(), received);
        let state = batcher.0.state.lock();
        assert!(state.queue.is_empty() && state.running == 0 && state.caller_driven.is_empty());
    }
}

#[tokio::test]
async fn operations_during_a_flight_share_the_next_batch_sorted_by_key() {
    let batcher = batcher(Script::gated());
    let mut tasks = vec![submit(&batcher, op(Kind::Acquire, "x", 0))];
    until_sent(&batcher, 1).await;
    for (id, key) in [(1, "c"), (2, "a"), (3, "B"), (4, "b")] {
        tasks.push(submit(&batcher, op(Kind::Acquire, key, id)));
    }
    until_queued(&batcher, 4).await;
    batcher.executor().let_through(2);
    for (id, task) in (0..).zip(tasks) {
        assert_eq!(task.await.unwrap().unwrap(), id);
    }
    assert_eq!(batcher.executor().ids(), [vec![0], vec![3, 2, 4, 1]]);
}

#[tokio::test]
async fn a_batch_holds_one_kind_and_each_key_once_and_renewals_are_sent_first() {
    let batcher = batcher(Script::gated());
    let mut tasks = vec![submit(&batcher, op(Kind::Acquire, "x", 0))];
    until_sent(&batcher, 1).await;
    let queued = [
        (Kind::Acquire, "a"),
        (Kind::Acquire, "a"),
        (Kind::Acquire, "b"),
        (Kind::Release, "c"),
        (Kind::Renew, "d"),
        (Kind::Renew, "e"),
    ];
    for (id, (kind, key)) in (1..).zip(queued) {
        tasks.push(submit(&batcher, op(kind, key, id)));
        until_queued(&batcher, id as usize).await;
    }
    batcher.executor().let_through(10);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let sent = batcher.executor().sent();
    assert_eq!(sent[1].kind, Kind::Renew);
    assert_eq!(
        batcher.executor().ids(),
        [vec![0], vec![5, 6], vec![4], vec![1, 3], vec![2]]
    );
}

#[tokio::test]
async fn a_batch_is_limited_in_operations_and_bytes() {
    let limits = Limits {
        operations: 3,
        bytes: 10,
        ..Limits::default()
    };
    let batcher = Batcher::new(Script::gated(), limits);
    let mut tasks = vec![submit(&batcher, op(Kind::Acquire, "x", 0))];
    until_sent(&batcher, 1).await;
    let long = "long".repeat(5);
    for (id, key) in (1..).zip(["a", "b", "c", "d", "eeeee", "fffff", &long, "g"]) {
        tasks.push(submit(&batcher, op(Kind::Acquire, key, id)));
        until_queued(&batcher, id as usize).await;
    }
    batcher.executor().let_through(10);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(
        batcher.executor().ids(),
        [
            vec![0],
            vec![1, 2, 3],
            vec![4, 5],
            vec![6],
            vec![7],
            vec![8]
        ]
    );
}

#[tokio::test]
async fn a_grant_whose_caller_went_away_is_undone_before_other_operations() {
    let batcher = batcher(Script::gated());
    // Two callers go away: the first one drives its operation itself, and the operation of the
    // second one is in a batch.
    let leader = submit(&batcher, op(Kind::Acquire, "a", 0));
    until_sent(&batcher, 1).await;
    let renewal = submit(&batcher, op(Kind::Renew, "r", 1));
    until_queued(&batcher, 1).await;
    leader.abort();
    assert!(leader.await.unwrap_err().is_cancelled());
    // Another operation with the same key follows. The undo must be sent before it, or it would end
    // the new grant.
    let again = submit(&batcher, op(Kind::Acquire, "a", 2));
    until_queued(&batcher, 2).await;
    batcher.executor().let_through(3);
    renewal.await.unwrap().unwrap();
    until_sent(&batcher, 4).await;
    let follower = submit(&batcher, op(Kind::Acquire, "b", 3));
    until_queued(&batcher, 1).await;
    batcher.executor().let_through(1);
    again.await.unwrap().unwrap();
    until_sent(&batcher, 5).await;
    follower.abort();
    assert!(follower.await.unwrap_err().is_cancelled());
    batcher.executor().let_through(2);
    batcher.close().await;
    let sent: Vec<_> = batcher
        .executor()
        .sent()
        .iter()
        .map(|sent| (sent.kind, sent.ops[0].id))
        .collect();
    assert_eq!(
        sent,
        [
            (Kind::Acquire, 0),
            (Kind::Release, 0),
            (Kind::Renew, 1),
            (Kind::Acquire, 2),
            (Kind::Acquire, 3),
            (Kind::Release, 3),
        ]
    );
}

#[tokio::test]
async fn an_answer_that_was_sent_but_never_received_is_undone() {
    let batcher = batcher(Script::gated());
    let leader = submit(&batcher, op(Kind::Acquire, "a", 0));
    until_sent(&batcher, 1).await;
    {
        let mut follower = pin!(batcher.submit(op(Kind::Acquire, "b", 1)));
        let polled = futures_poll(follower.as_mut()).await;
        assert!(polled.is_none());
        batcher.executor().let_through(2);
        leader.await.unwrap().unwrap();
        until("the permit is given back", || {
            batcher.0.state.lock().running == 0
        })
        .await;
    }
    batcher.executor().let_through(1);
    batcher.close().await;
    let last = batcher.executor().sent().pop().unwrap();
    assert_eq!((last.kind, last.ops[0].id), (Kind::Release, 1));
}

#[tokio::test]
async fn unsent_operations_are_dropped_with_their_caller_except_releases() {
    let batcher = batcher(Script::gated());
    let leader = submit(&batcher, op(Kind::Acquire, "x", 0));
    until_sent(&batcher, 1).await;
    let acquire = submit(&batcher, op(Kind::Acquire, "a", 1));
    let release = submit(&batcher, op(Kind::Release, "b", 2));
    until_queued(&batcher, 2).await;
    acquire.abort();
    release.abort();
    let _ = (acquire.await, release.await);
    batcher.executor().let_through(10);
    leader.await.unwrap().unwrap();
    until_sent(&batcher, 2).await;
    batcher.close().await;
    assert_eq!(batcher.executor().ids(), [vec![0], vec![2]]);
}

#[tokio::test]
async fn the_operations_of_a_failed_batch_are_sent_singly() {
    let mut script = Script::gated();
    script.poisoned.insert("b".into());
    let batcher = batcher(script);
    let leader = submit(&batcher, op(Kind::Acquire, "x", 0));
    until_sent(&batcher, 1).await;
    let tasks: Vec<_> = (1..)
        .zip(["a", "b", "c"])
        .map(|(id, key)| submit(&batcher, op(Kind::Acquire, key, id)))
        .collect();
    until_queued(&batcher, 3).await;
    batcher.executor().let_through(10);
    leader.await.unwrap().unwrap();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap().map_err(|error| error.kind()));
    }
    assert_eq!(answers, [Ok(1), Err(ErrorKind::Unavailable), Ok(3)]);
    assert_eq!(
        batcher.executor().ids(),
        [vec![0], vec![1, 2, 3], vec![1], vec![2], vec![3]]
    );
}

#[tokio::test]
async fn eight_single_failures_in_a_row_fail_all_waiting_single_operations() {
    let mut script = Script::gated();
    script.poisoned = (0..100).map(|id| format!("{id:03}")).collect();
    let batcher = batcher(script);
    let leader = submit(&batcher, op(Kind::Acquire, "x", 0));
    until_sent(&batcher, 1).await;
    let tasks: Vec<_> = (0..100)
        .map(|id| submit(&batcher, op(Kind::Acquire, format!("{id:03}"), id)))
        .collect();
    until_queued(&batcher, 100).await;
    batcher.executor().let_through(100);
    leader.await.unwrap().unwrap();
    for task in tasks {
        assert_eq!(
            task.await.unwrap().unwrap_err().kind(),
            ErrorKind::Unavailable
        );
    }
    assert_eq!(batcher.executor().sent().len(), 2 + 8);
}

#[tokio::test]
async fn a_whole_failure_of_a_batch_reaches_every_caller_without_a_retry() {
    let script = Script::gated();
    let batcher = batcher(script);
    let leader = submit(&batcher, op(Kind::Acquire, "x", 0));
    until_sent(&batcher, 1).await;
    let tasks: Vec<_> = (1..4)
        .map(|id| submit(&batcher, op(Kind::Acquire, id.to_string(), id)))
        .collect();
    until_queued(&batcher, 3).await;
    batcher.executor().let_through(1);
    leader.await.unwrap().unwrap();
    batcher.executor().fates.lock().push_back(Fate::Whole);
    batcher.executor().let_through(1);
    for task in tasks {
        assert!(task.await.unwrap().is_err());
    }
    assert_eq!(batcher.executor().sent().len(), 2);
}

#[tokio::test]
async fn operations_that_the_store_skipped_are_sent_singly() {
    let batcher = batcher(Script::gated());
    let leader = submit(&batcher, op(Kind::Acquire, "x", 0));
    until_sent(&batcher, 1).await;
    let tasks: Vec<_> = (1..)
        .zip(["a", "s1", "s2"])
        .map(|(id, key)| submit(&batcher, op(Kind::Acquire, key, id)))
        .collect();
    until_queued(&batcher, 3).await;
    batcher.executor().let_through(1);
    leader.await.unwrap().unwrap();
    batcher.executor().fates.lock().push_back(Fate::Skip);
    batcher.executor().let_through(10);
    for (id, task) in (1..).zip(tasks) {
        assert_eq!(task.await.unwrap().unwrap(), id);
    }
    assert_eq!(
        batcher.executor().ids(),
        [vec![0], vec![1, 2, 3], vec![2], vec![3]]
    );
}

#[tokio::test]
async fn a_panic_of_the_executor_fails_only_its_batch() {
    let batcher = batcher(Script::gated());
    let panic = || {
        let mut fates = batcher.executor().fates.lock();
        fates.push_back(Fate::Panic);
    };
    panic();
    let alone = submit(&batcher, op(Kind::Acquire, "x", 0));
    batcher.executor().let_through(1);
    assert!(alone.await.unwrap_err().is_panic());
    panic();
    let leader = submit(&batcher, op(Kind::Acquire, "x", 1));
    until_sent(&batcher, 2).await;
    let next = submit(&batcher, op(Kind::Acquire, "a", 2));
    until_queued(&batcher, 1).await;
    batcher.executor().let_through(10);
    let taken_over = leader.await.unwrap().unwrap_err();
    assert_eq!(taken_over.kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(next.await.unwrap().unwrap(), 2);
    batcher.close().await;
}

#[tokio::test]
async fn close_answers_queued_operations_and_refuses_new_ones() {
    let batcher = batcher(Script::gated());
    let leader = submit(&batcher, op(Kind::Acquire, "x", 0));
    until_sent(&batcher, 1).await;
    let queued = submit(&batcher, op(Kind::Acquire, "a", 1));
    until_queued(&batcher, 1).await;
    let closing = tokio::spawn({
        let batcher = batcher.clone();
        async move { batcher.close().await }
    });
    assert_eq!(queued.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(!closing.is_finished());
    batcher.executor().let_through(1);
    leader.await.unwrap().unwrap();
    closing.await.unwrap();
    let late = batcher.submit(op(Kind::Acquire, "b", 2)).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_runtime_that_is_shut_down_answers_every_caller_and_the_batcher_still_works() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (home, here) = (runtime(), runtime());
    let batcher = home.block_on(async { batcher(Script::gated()) });
    let leader = home.spawn({
        let batcher = batcher.clone();
        async move { batcher.submit(op(Kind::Acquire, "x", 0)).await }
    });
    home.block_on(until_sent(&batcher, 1));
    here.block_on(async {
        let queued = submit(&batcher, op(Kind::Acquire, "a", 1));
        until_queued(&batcher, 1).await;
        tokio::task::spawn_blocking(move || drop(home))
            .await
            .unwrap();
        assert!(leader.await.unwrap_err().is_cancelled());
        let error = tokio::time::timeout(Duration::from_secs(10), queued)
            .await
            .expect("answered")
            .unwrap()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        // The batcher still works, with tasks on the runtime that still exists.
        batcher.executor().let_through(10);
        let mut tasks = Vec::new();
        for id in 2..6 {
            tasks.push(submit(&batcher, op(Kind::Acquire, id.to_string(), id)));
        }
        for (id, task) in (2..).zip(tasks) {
            assert_eq!(task.await.unwrap().unwrap(), id);
        }
        batcher.close().await;
    });
}

#[tokio::test]
async fn several_batches_in_flight_never_share_a_key() {
    let limits = Limits {
        in_flight: 3,
        ..Limits::default()
    };
    // `Script::run` asserts that no key is in two batches at the same time.
    let batcher = Batcher::new(Script::open(), limits);
    let mut tasks = Vec::new();
    for id in 0..300 {
        tasks.push(submit(
            &batcher,
            op(Kind::Acquire, (id % 7).to_string(), id),
        ));
        if id % 10 == 0 {
            tokio::task::yield_now().await;
        }
    }
    for (id, task) in (0..).zip(tasks) {
        assert_eq!(task.await.unwrap().unwrap(), id);
    }
    batcher.close().await;
}

/// Polls once, with the waker of the test itself.
async fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut future = Some(future);
    std::future::poll_fn(move |context| {
        let polled = future.take().expect("polled once").poll(context);
        std::task::Poll::Ready(match polled {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
