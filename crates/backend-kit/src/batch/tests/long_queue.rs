//! Long queues: the sizes of their batches, and the delivery of many answers.

use super::*;
use crate::batch::queue::{Pending, Queue};

fn batch_sizes(undivided: usize, waiting: u32) -> Vec<usize> {
    let limits = Limits {
        operations: 100,
        in_flight: 2,
        undivided,
        ..Limits::default()
    };
    let (script, mut queue) = (Script::open(), Queue::new(limits));
    for id in 0..waiting {
        let op = op(Kind::Acquire, id.to_string(), id);
        queue.push(&script, Pending::without_reply(op));
    }
    let sizes = std::iter::from_fn(|| Some(queue.take(&script)?.ops.len()));
    sizes.collect()
}

#[test]
fn a_long_queue_is_split_into_several_batches() {
    assert_eq!(batch_sizes(8, 7), [7]);
    assert_eq!(batch_sizes(8, 20), [8, 8, 4]);
    assert_eq!(batch_sizes(8, 80), [20, 15, 12, 9, 8, 8, 8]);
    assert_eq!(
        batch_sizes(8, 1000)[0],
        100,
        "no batch has more operations than allowed"
    );
    assert_eq!(batch_sizes(usize::MAX, 80), [80]);
}

#[tokio::test]
async fn twice_as_many_batches_are_in_flight_while_the_queue_is_long() {
    let limits = Limits {
        in_flight: 2,
        undivided: 8,
        ..Limits::default()
    };
    let batcher = Batcher::new(Script::gated(), limits);
    let asked: Vec<_> = (0..40)
        .map(|id| submit(&batcher, op(Kind::Acquire, format!("{id:02}"), id)))
        .collect();
    // The first two operations were driven by their callers. Then two batches of the long queue
    // were sent above the limit of two.
    until_sent(&batcher, 4).await;
    until("the others wait", || batcher.0.state.lock().running == 4).await;
    let sent = batcher.executor().sent();
    let sizes: Vec<_> = sent.iter().map(|sent| sent.ops.len()).collect();
    assert_eq!((&sizes[..2], sizes.len()), (&[1, 1][..], 4), "{sizes:?}");
    batcher.executor().let_through(1000);
    for (id, asked) in asked.into_iter().enumerate() {
        assert_eq!(asked.await.unwrap().unwrap() as usize, id);
    }
    until("no batch is in flight", || {
        batcher.0.state.lock().running == 0
    })
    .await;
    batcher.close().await;
}

type Answer = tokio::sync::oneshot::Receiver<(Op, Result<u32>)>;

/// Returns a function that hands out the answers of a batch of `count` acquires, and the receivers
/// of these answers.
fn answered_batch(batcher: &Batcher<Script>, count: u32) -> (impl FnOnce() + use<>, Vec<Answer>) {
    let shared = Arc::clone(&batcher.0);
    let mut queue = Queue::new(Limits::default());
    let answers = (0..count)
        .map(|id| {
            let op = op(Kind::Acquire, format!("{id:02}"), id);
            let (pending, answer) = Pending::with_reply(op);
            queue.push(&shared.executor, pending);
            answer
        })
        .collect();
    let batch = queue.take(&shared.executor).unwrap();
    let replies = (0..count).map(|id| Reply::Done(Ok(id))).collect();
    let handing = move || shared.hand_out(batch, Ok(replies));
    (handing, answers)
}

fn all_are_answered(answers: &mut [Answer]) -> bool {
    answers
        .iter_mut()
        .enumerate()
        .all(|(id, answer)| matches!(answer.try_recv(), Ok((_, Ok(said))) if said as usize == id))
}

#[test]
fn each_receiver_of_a_batch_gets_its_own_answer() {
    let batcher = batcher(Script::open());
    let (handing, mut answers) = answered_batch(&batcher, 30);
    handing();
    assert!(all_are_answered(&mut answers));
}

#[tokio::test]
async fn answers_without_a_receiver_among_many_are_undone() {
    let batcher = batcher(Script::open());
    batcher.executor().granted.lock().extend(0..30);
    let (handing, mut answers) = answered_batch(&batcher, 30);
    answers.drain(10..20);
    handing();
    let left = || batcher.executor().granted.lock().clone();
    until("ten are undone", || {
        left() == (0..10).chain(20..30).collect()
    })
    .await;
}
