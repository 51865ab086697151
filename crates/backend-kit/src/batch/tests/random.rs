//! Random sequences of operations, drops and failures.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// One step of a random sequence.
#[derive(Clone, Debug)]
enum Step {
    Submit(Kind, u8),
    /// Drops one of the waiting callers.
    Drop(prop::sample::Index),
    Yield(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(Kind::Renew), Just(Kind::Release), Just(Kind::Acquire)];
    prop_oneof![
        6 => (kind, 0u8..6).prop_map(|(kind, key)| Step::Submit(kind, key)),
        1 => any::<prop::sample::Index>().prop_map(Step::Drop),
        3 => (1u8..5).prop_map(Step::Yield),
    ]
}

fn fate() -> impl Strategy<Value = Option<Fate>> {
    prop_oneof![
        6 => Just(None),
        1 => Just(Some(Fate::Split)),
        1 => Just(Some(Fate::Whole)),
        1 => Just(Some(Fate::Skip)),
    ]
}

proptest! {
    #[test]
    fn every_operation_gets_its_own_answer_and_no_grant_without_a_receiver_is_left(
        steps in prop::collection::vec(step(), 1..120),
        fates in prop::collection::vec(fate(), 0..30),
        in_flight in 1usize..4,
        operations in 1usize..5,
        ahead in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async move {
            let script = Script::open();
            script.fates.lock().extend(fates.into_iter().flatten());
            let limits = Limits { operations, in_flight, ahead, ..Limits::default() };
            let batcher = Batcher::new(script, limits);
            let mut waiting = BTreeMap::new();
            let mut received = BTreeSet::new();
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Submit(kind, key) => {
                        let op = op(kind, format!("s{key}"), next);
                        waiting.insert(next, (op.clone(), submit(&batcher, op)));
                        next += 1;
                    }
                    Step::Drop(index) if !waiting.is_empty() => {
                        let id = *waiting.keys().nth(index.index(waiting.len())).unwrap();
                        let (op, task) = waiting.remove(&id).unwrap();
                        task.abort();
                        // The task may have received its answer before the abort. The grant of the
                        // task is then not undone.
                        if op.kind == Kind::Acquire && matches!(task.await, Ok(Ok(_))) {
                            received.insert(id);
                        }
                    }
                    Step::Drop(_) => {}
                    Step::Yield(times) => {
                        for _ in 0..times {
                            tokio::task::yield_now().await;
                        }
                    }
                }
            }
            for (id, (op, task)) in waiting {
                let answer = tokio::time::timeout(Duration::from_secs(10), task).await;
                let answer = answer.expect("answered").unwrap();
                if let Ok(answer) = answer {
                    assert_eq!(answer, id);
                    if op.kind == Kind::Acquire {
                        received.insert(id);
                    }
                }
            }
            // From here on the store fails no batch, so that every remaining undo succeeds.
            batcher.executor().fates.lock().clear();
            batcher.close().await;
            let sent = batcher.executor().sent();
            for batch in &sent {
                assert!(batch.ops.len() <= operations);
                assert!(batch.ops.iter().all(|op| op.kind == batch.kind));
                let sorted = batch.ops.is_sorted_by(|a, b| a.key < b.key);
                assert!(sorted, "unsorted or twice: {:?}", batch.ops);
            }
            // Each grant that is left at the store was received by a caller, or its undo was sent
            // and failed.
            let granted = batcher.executor().granted.lock().clone();
            assert!(received.is_subset(&granted));
            for lost in granted.difference(&received) {
                let mut ops = sent.iter().flat_map(|batch| &batch.ops);
                let undo_failed = ops.any(|op| op.id == *lost && op.kind == Kind::Release);
                assert!(undo_failed, "{lost} was never taken back");
            }
            let state = batcher.0.state.lock();
            assert!(state.queue.is_empty() && state.running == 0);
        });
    }
}
