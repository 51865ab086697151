//! Batches that are sent before the answers of the last one are handed out.

use super::*;

type Asking = std::pin::Pin<Box<dyn Future<Output = Result<u32>> + Send>>;

/// Polls once, with a waker that wakes no task.
fn poll_once(asking: &mut Asking) -> Option<Result<u32>> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match asking.as_mut().poll(&mut context) {
        std::task::Poll::Ready(answer) => Some(answer),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn the_next_batch_is_sent_before_the_answers_are_handed_out_if_ahead_is_set() {
    for ahead in [false, true] {
        let limits = Limits {
            ahead,
            ..Limits::default()
        };
        let batcher = Batcher::new(Script::gated(), limits);
        let first = submit(&batcher, op(Kind::Acquire, "x", 0));
        until_sent(&batcher, 1).await;
        let second = tokio::spawn({
            let batcher = batcher.clone();
            async move {
                batcher.submit(op(Kind::Acquire, "a", 1)).await.unwrap();
                batcher.executor().sent().len()
            }
        });
        until_queued(&batcher, 1).await;
        batcher.executor().let_through(1);
        until_sent(&batcher, 2).await;
        let third = submit(&batcher, op(Kind::Acquire, "b", 2));
        until_queued(&batcher, 1).await;
        batcher.executor().let_through(1);
        let sent_when_answered = second.await.unwrap();
        assert_eq!(sent_when_answered, if ahead { 3 } else { 2 });
        batcher.executor().let_through(1);
        first.await.unwrap().unwrap();
        third.await.unwrap().unwrap();
        batcher.close().await;
    }
}

#[tokio::test]
async fn no_batch_is_sent_ahead_when_an_answer_must_be_undone() {
    let limits = Limits {
        ahead: true,
        ..Limits::default()
    };
    let batcher = Batcher::new(Script::gated(), limits);
    let first = submit(&batcher, op(Kind::Acquire, "x", 0));
    until_sent(&batcher, 1).await;
    let second = submit(&batcher, op(Kind::Acquire, "a", 1));
    until_queued(&batcher, 1).await;
    batcher.executor().let_through(1);
    until_sent(&batcher, 2).await;
    let again = submit(&batcher, op(Kind::Acquire, "a", 2));
    until_queued(&batcher, 1).await;
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    batcher.executor().let_through(3);
    first.await.unwrap().unwrap();
    again.await.unwrap().unwrap();
    let sent = batcher.executor().sent();
    let sent: Vec<_> = sent.iter().map(|it| (it.kind, it.ops[0].id)).collect();
    let undone = (Kind::Release, 1);
    assert_eq!(
        sent,
        [
            (Kind::Acquire, 0),
            (Kind::Acquire, 1),
            undone,
            (Kind::Acquire, 2)
        ]
    );
}

/// A caller goes away after the next batch was sent and before its own answer is handed out.
/// Another caller submits an operation with the same key at once, while a permit is free. That
/// operation must be sent after the undo. Otherwise the undo would end the new grant.
#[tokio::test]
async fn a_key_stays_claimed_until_its_answer_is_handed_out() {
    let limits = Limits {
        ahead: true,
        in_flight: 3,
        ..Limits::default()
    };
    let batcher = Batcher::new(Script::gated(), limits);
    let ask = |key: &str, id| -> Asking {
        let (batcher, op) = (batcher.clone(), op(Kind::Acquire, key, id));
        Box::pin(async move { batcher.submit(op).await })
    };
    // First all three permits are in use, so a task takes the operation "a" over and sends the
    // queue. Then the two other operations are answered, and two new ones take their permits.
    let mut asked = [("x", 0), ("y", 0), ("z", 0)].map(|(key, id)| ask(key, id));
    assert!(asked.iter_mut().all(|it| poll_once(it).is_none()));
    let mut caller = ask("a", 1);
    assert!(poll_once(&mut caller).is_none());
    batcher.executor().let_through(1);
    until_sent(&batcher, 4).await;
    batcher.executor().let_through(2);
    assert!(asked.iter_mut().all(|it| poll_once(it).is_some()));
    let (mut room, mut other) = (ask("y", 2), ask("z", 3));
    assert!(poll_once(&mut room).is_none() && poll_once(&mut other).is_none());
    let next = submit(&batcher, op(Kind::Acquire, "m", 4));
    until_queued(&batcher, 1).await;
    let (sender, next_caller) = std::sync::mpsc::channel();
    let (mut asks, again) = (ask("a", 5), batcher.clone());
    let happens = move || {
        drop(caller);
        again.executor().let_through(1);
        assert!(matches!(poll_once(&mut room), Some(Ok(2))));
        assert!(poll_once(&mut asks).is_none());
        sender.send(asks).unwrap();
    };
    *batcher.executor().meanwhile.lock() = Some((4, Box::new(happens)));
    batcher.executor().let_through(1);
    until_sent(&batcher, 7).await;
    batcher.executor().let_through(4);
    next.await.unwrap().unwrap();
    assert_eq!(next_caller.try_recv().unwrap().await.unwrap(), 5);
    other.await.unwrap();
    let sent = batcher.executor().sent();
    let at = |kind, id| {
        sent.iter()
            .position(|it| it.kind == kind && it.ops[0].id == id)
    };
    assert!(at(Kind::Release, 1).unwrap() < at(Kind::Acquire, 5).unwrap());
    batcher.close().await;
}
