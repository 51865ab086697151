//! The gate under a clock that the test moves.

use std::{
    pin::Pin,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    task::{Context, Poll, Waker},
};

use distlock_core::{ErrorKind, ManualClock};

use super::*;

const STEP: Duration = Duration::from_millis(5);

fn away() -> Error {
    Error::new(ErrorKind::Unavailable, "connection refused")
}

/// Polls a future once.
fn poll<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Option<T> {
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

async fn fail(gate: &ConnectGate, clock: &ManualClock) -> Error {
    gate.connect(clock, async { Err::<(), _>(away()) })
        .await
        .unwrap_err()
}

async fn succeed(gate: &ConnectGate, clock: &ManualClock) -> Result<()> {
    gate.connect(clock, async { Ok(()) }).await
}

/// Seeds the random numbers of this thread, and prints the seed.
#[expect(clippy::print_stderr, reason = "the seed repeats a failure")]
fn seed() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    fastrand::seed(seed);
}

#[tokio::test]
async fn a_server_that_answered_is_reached_at_once_and_after_one_failure_soon() {
    seed();
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    for _ in 0..3 {
        succeed(&gate, &clock).await.unwrap();
        let pause = fail(&gate, &clock).await.retry_pause().unwrap();
        assert!(pause <= FIRST_PAUSE * 6 / 5, "{pause:?}");
        clock.advance(pause);
    }
    succeed(&gate, &clock).await.unwrap();
    assert!(gate.answered_lately(clock.now()));
}

/// A renewal must not lose a short lease behind the attempt of a caller that is stopped.
#[tokio::test]
async fn an_attempt_that_hangs_after_a_success_delays_others_for_a_moment_only() {
    seed();
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    succeed(&gate, &clock).await.unwrap();
    let mut stopped = Box::pin(gate.connect(&clock, std::future::pending::<Result<()>>()));
    assert!(poll(&mut stopped).is_none());
    let mut renewal = Box::pin(succeed(&gate, &clock));
    assert!(poll(&mut renewal).is_none());
    clock.advance(SHORTEST_INTERVAL);
    renewal.await.unwrap();
    // Its success ends the wait for the older attempt.
    succeed(&gate, &clock).await.unwrap();
}

#[tokio::test]
async fn callers_that_follow_the_pause_make_one_attempt_a_second_together() {
    const CALLERS: usize = 63;
    seed();
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    let attempts = AtomicU32::new(0);
    let mut due = [clock.now(); CALLERS];
    let begun = clock.now();
    let mut after_a_while = 0;
    while clock.now().since(begun) < Duration::from_secs(32) {
        if clock.now().since(begun) < Duration::from_secs(2) {
            after_a_while = attempts.load(SeqCst);
        }
        for due in &mut due {
            if *due > clock.now() {
                continue;
            }
            let attempt = async {
                attempts.fetch_add(1, SeqCst);
                Err::<(), _>(away())
            };
            let error = gate.connect(&clock, attempt).await.unwrap_err();
            *due = clock.now() + error.retry_pause().unwrap();
        }
        clock.advance(STEP);
    }
    let first = after_a_while;
    assert!((4..=8).contains(&first), "{first} in the first two seconds");
    let later = attempts.load(SeqCst) - first;
    assert!((24..=37).contains(&later), "{later} in thirty seconds");
}

/// Two groups of callers that come at different moments of each pause would make two attempts a
/// second.
#[tokio::test]
async fn callers_that_come_within_a_pause_join_the_others_at_its_end() {
    seed();
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    for _ in 0..10 {
        let pause = fail(&gate, &clock).await.retry_pause().unwrap();
        clock.advance(pause);
    }
    let others = clock.now() + fail(&gate, &clock).await.retry_pause().unwrap();
    for _ in 0..3 {
        clock.advance(SHORTEST_INTERVAL);
        let pause = fail(&gate, &clock).await.retry_pause().unwrap();
        assert_eq!(clock.now() + pause, others);
    }
}

#[tokio::test]
async fn a_caller_in_a_hurry_is_held_back_for_a_fifth_of_a_second_only() {
    seed();
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    for _ in 0..10 {
        let pause = fail(&gate, &clock).await.retry_pause().unwrap();
        clock.advance(pause);
    }
    fail(&gate, &clock).await;
    clock.advance(SHORTEST_INTERVAL - STEP);
    assert!(succeed(&gate, &clock).await.is_err(), "the gate is closed");
    clock.advance(STEP);
    succeed(&gate, &clock).await.unwrap();
}

#[tokio::test]
async fn others_wait_for_the_attempt_in_progress_and_share_its_error() {
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    let (fail, failed) = tokio::sync::oneshot::channel();
    let mut first = Box::pin(gate.connect(&clock, async {
        let _ = failed.await;
        Err::<(), _>(away())
    }));
    assert!(poll(&mut first).is_none());
    let mut second = Box::pin(succeed(&gate, &clock));
    assert!(poll(&mut second).is_none(), "it waits");
    fail.send(()).unwrap();
    assert!(poll(&mut first).unwrap().is_err());
    let error = poll(&mut second).expect("an answer at once").unwrap_err();
    assert_eq!(error.message(), away().message());
    assert!(error.retry_pause().is_some());
}

#[tokio::test]
async fn others_connect_side_by_side_after_a_success() {
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    let (answer, answered) = tokio::sync::oneshot::channel::<()>();
    let mut first = Box::pin(gate.connect(&clock, async {
        let _ = answered.await;
        Ok(())
    }));
    assert!(poll(&mut first).is_none());
    let begun = AtomicU32::new(0);
    let attempt = || async {
        begun.fetch_add(1, SeqCst);
        std::future::pending::<Result<()>>().await
    };
    let mut others = [(); 3].map(|()| Box::pin(gate.connect(&clock, attempt())));
    assert!(others.iter_mut().all(|other| poll(other).is_none()));
    assert_eq!(begun.load(SeqCst), 0);
    answer.send(()).unwrap();
    poll(&mut first).unwrap().unwrap();
    assert!(others.iter_mut().all(|other| poll(other).is_none()));
    assert_eq!(begun.load(SeqCst), 3);
}

#[tokio::test]
async fn a_silent_or_dropped_attempt_holds_others_up_for_a_second_at_most() {
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    let silent = || Box::pin(gate.connect(&clock, std::future::pending::<Result<()>>()));
    fail(&gate, &clock).await;
    clock.advance(SHORTEST_INTERVAL);
    let mut dropped = silent();
    assert!(poll(&mut dropped).is_none());
    let mut next = Box::pin(succeed(&gate, &clock));
    assert!(poll(&mut next).is_none());
    drop(dropped);
    poll(&mut next).expect("at once").unwrap();
    fail(&gate, &clock).await;
    clock.advance(SHORTEST_INTERVAL);
    let mut kept = silent();
    assert!(poll(&mut kept).is_none());
    let mut next = Box::pin(succeed(&gate, &clock));
    clock.advance(LONGEST_WAIT - STEP);
    assert!(poll(&mut next).is_none());
    clock.advance(STEP);
    poll(&mut next).expect("after a second").unwrap();
}

#[tokio::test]
async fn attempts_that_fail_together_count_as_one_failure() {
    seed();
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    let attempt = || async {
        tokio::task::yield_now().await;
        Err::<(), _>(away())
    };
    let mut first = Box::pin(gate.connect(&clock, attempt()));
    assert!(poll(&mut first).is_none());
    clock.advance(LONGEST_WAIT);
    let mut second = Box::pin(gate.connect(&clock, attempt()));
    assert!(poll(&mut second).is_none());
    for failing in [&mut first, &mut second] {
        let error = poll(failing).unwrap().unwrap_err();
        let pause = error.retry_pause().unwrap();
        assert!(pause <= FIRST_PAUSE * 6 / 5, "{pause:?}");
    }
}

#[tokio::test]
async fn a_permanent_error_does_not_close_the_gate() {
    let (gate, clock) = (ConnectGate::default(), ManualClock::new());
    let refused = Error::new(ErrorKind::AccessDenied, "wrong password");
    let attempt = async { Err::<(), _>(refused) };
    let error = gate.connect(&clock, attempt).await.unwrap_err();
    assert_eq!(error.retry_pause(), None);
    succeed(&gate, &clock).await.unwrap();
}

#[test]
fn a_gate_is_shared_by_its_key_while_it_is_used() {
    let gate = ConnectGate::of("a server".to_owned());
    assert!(Arc::ptr_eq(&gate, &ConnectGate::of("a server".to_owned())));
    assert!(!Arc::ptr_eq(&gate, &ConnectGate::of("another".to_owned())));
}
