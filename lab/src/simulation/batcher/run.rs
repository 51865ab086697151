//! One run of the batcher: a seed decides each step of the callers, the runtime and the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use anyhow::Result;
use distlock::backend::batch::{Batcher, Limits};
use distlock_core::sync::Mutex;
use fastrand::Rng;
use tokio::{runtime::Builder, task::yield_now};

use super::store::{BatchOperation, BatchResult, BatchStore, BatcherObservations, OperationKind};
use crate::simulation::{
    executor::Owner,
    planted_bugs::EngineBug,
    promise::SeedResult,
    trace::{About, Trace, TraceLine},
};

/// Number of polls of the runtime after which every task waits for the store or for a caller.
const TURNS: usize = 200;

/// A caller that waits for the answer to its operation.
struct BatchCaller {
    op: BatchOperation,
    asking: Pin<Box<dyn Future<Output = distlock::Result<u64>> + Send>>,
    woken: Arc<WokenFlag>,
}

/// Whether a caller was woken after its last poll.
struct WokenFlag(AtomicBool);

impl Wake for WokenFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The state of a run.
struct BatcherRun {
    random: Rng,
    seen: Arc<Mutex<BatcherObservations>>,
    batcher: Batcher<BatchStore>,
    callers: BTreeMap<u64, BatchCaller>,
    /// Callers that are never polled again and never dropped.
    unpolled: Vec<BatchCaller>,
    received: BTreeSet<u64>,
    releases: BTreeSet<u64>,
    last: u64,
    shares_keys: bool,
}

/// Runs one seed.
pub(in crate::simulation) fn run_batcher(
    seed: u64,
    bug: Option<EngineBug>,
    full_trace: bool,
) -> Result<SeedResult> {
    // With an interval of 1, the runtime polls one task between two steps of the run.
    let runtime = Builder::new_current_thread().event_interval(1).build()?;
    let seen = Arc::<Mutex<BatcherObservations>>::default();
    let steps = runtime.block_on(async {
        let mut random = Rng::with_seed(seed);
        let mut limits = Limits::default();
        limits.operations = random.usize(1..=5);
        limits.in_flight = random.usize(1..=3);
        limits.ahead = random.bool();
        if random.bool() {
            limits.undivided = random.usize(1..=6);
        }
        let store = BatchStore {
            seen: Arc::clone(&seen),
            limits,
            bug,
        };
        let mut run = BatcherRun {
            batcher: Batcher::new(store, limits),
            random,
            seen: Arc::clone(&seen),
            callers: BTreeMap::new(),
            unpolled: Vec::new(),
            received: BTreeSet::new(),
            releases: BTreeSet::new(),
            last: 0,
            shares_keys: bug == Some(EngineBug::BatchSharesKeys),
        };
        let steps = run.random.u64(50..=400);
        for _ in 0..steps {
            run.step().await;
        }
        run.finish().await;
        steps
    });
    let mut trace = Trace::new(full_trace);
    let mut seen = seen.lock();
    for (at, (what, number)) in (0..).zip(std::mem::take(&mut seen.lines)) {
        trace.add_trace_line(TraceLine {
            at: Duration::from_micros(at),
            owner: Owner::Network,
            what,
            about: About {
                call: Some(number),
                ..About::default()
            },
        });
    }
    let mut outcome = SeedResult::with_trace(seen.broken.take(), &trace);
    outcome.steps = steps;
    Ok(outcome)
}

impl BatcherRun {
    /// Adds a line about a caller or batch to the trace.
    fn add_trace_line(&self, what: &'static str, number: u64) {
        self.seen.lock().lines.push((what, number));
    }

    /// Makes one random step of a caller, of the store or of the runtime.
    async fn step(&mut self) {
        self.seen.lock().moment += 1;
        match self.random.u32(0..10) {
            0..3 => self.add_caller(),
            3..6 => self.poll_one(),
            6 if self.random.u32(0..8) == 0 => self.stop_polling(),
            6 => self.cancel_caller(),
            7 => self.complete_batch(true),
            _ => yield_now().await,
        }
    }

    /// Adds a caller that has not been polled yet.
    fn add_caller(&mut self) {
        if self.callers.len() >= 12 {
            return;
        }
        self.last += 1;
        let number = self.last;
        let kind = match self.random.u32(0..4) {
            0 => OperationKind::Renew,
            1 => OperationKind::Release,
            _ => OperationKind::Acquire,
        };
        let key = format!("key-{}", self.random.u32(0..5));
        let visible_key = if self.shares_keys {
            format!("{key}-{number}")
        } else {
            key.clone()
        };
        let op = BatchOperation {
            kind,
            key,
            visible_key,
            number,
            undo: false,
        };
        let (batcher, asked) = (self.batcher.clone(), op.clone());
        let caller = BatchCaller {
            op,
            asking: Box::pin(async move { batcher.submit(asked).await }),
            woken: Arc::new(WokenFlag(AtomicBool::new(true))),
        };
        self.add_trace_line("a caller comes", number);
        self.callers.insert(number, caller);
    }

    /// Polls a random caller among the woken ones.
    fn poll_one(&mut self) {
        let woken = self.callers.iter().filter(|(_, caller)| caller.is_woken());
        let woken: Vec<u64> = woken.map(|(number, _)| *number).collect();
        if let Some(number) = self.random.choice(woken) {
            self.poll(number);
        }
    }

    /// Polls a caller once, and checks the answer if there is one.
    fn poll(&mut self, number: u64) {
        self.add_trace_line("a caller is polled", number);
        let Some(caller) = self.callers.get_mut(&number) else {
            return;
        };
        {
            let mut seen = self.seen.lock();
            let moment = seen.moment;
            seen.asked.entry(number).or_insert(moment);
        }
        if caller.op.kind == OperationKind::Release {
            self.releases.insert(number);
        }
        caller.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&caller.woken));
        let Poll::Ready(answer) = caller
            .asking
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
        else {
            return;
        };
        self.callers.remove(&number);
        let mut seen = self.seen.lock();
        match answer {
            Ok(answer) if answer == number => {
                self.received.insert(number);
            }
            Ok(answer) => seen.record_breach(format!("caller {number} got the answer to {answer}")),
            Err(error) if seen.applied.contains(&number) || !seen.failed.contains(&number) => {
                seen.record_breach(format!("caller {number} got an error: {error}"));
            }
            Err(_) => {}
        }
    }

    /// Drops a random caller.
    fn cancel_caller(&mut self) {
        let all: Vec<u64> = self.callers.keys().copied().collect();
        let Some(number) = self.random.choice(all) else {
            return;
        };
        self.add_trace_line("a caller goes away", number);
        {
            let mut seen = self.seen.lock();
            let moment = seen.moment;
            seen.given_up.insert(number, moment);
        }
        self.callers.remove(&number);
    }

    /// Stops polling a random caller for ever. No other caller may depend on the unpolled caller.
    fn stop_polling(&mut self) {
        let all: Vec<u64> = self.callers.keys().copied().collect();
        let Some(number) = self.random.choice(all).filter(|_| self.unpolled.len() < 2) else {
            return;
        };
        self.add_trace_line("a caller falls asleep", number);
        self.unpolled.extend(self.callers.remove(&number));
    }

    /// Completes a random batch.
    fn complete_batch(&mut self, fails: bool) {
        let mut seen = self.seen.lock();
        let all: Vec<u64> = seen.in_flight.keys().copied().collect();
        let Some(number) = self.random.choice(all) else {
            return;
        };
        let Some(batch) = seen.in_flight.remove(&number) else {
            return;
        };
        seen.lines.push(("batch comes back", number));
        // An undo must succeed, because the final check counts grants.
        let fails = fails && !batch.ops.iter().any(|op| op.undo);
        let result = match self.random.u32(0..8) {
            0 if fails => BatchResult::Split,
            1 if fails => BatchResult::Whole,
            2 if fails => {
                BatchResult::Skips(batch.ops.iter().map(|_| self.random.bool()).collect())
            }
            _ => BatchResult::Done,
        };
        let _ = batch.result.send(result);
    }

    /// Polls all callers and completes all batches until nothing happens any more.
    async fn finish(&mut self) {
        for _ in 0..TURNS {
            yield_now().await;
            self.complete_batch(false);
            let all: Vec<u64> = self.callers.keys().copied().collect();
            for number in all {
                if self.callers[&number].is_woken() {
                    self.poll(number);
                }
            }
        }
        for number in self.callers.keys() {
            let detail = format!("caller {number} waits for ever");
            self.seen.lock().record_breach(detail);
        }
        let mut closing = Box::pin(self.batcher.close());
        let waker = Waker::noop();
        let mut closed = false;
        for _ in 0..TURNS {
            if closing
                .as_mut()
                .poll(&mut Context::from_waker(waker))
                .is_ready()
            {
                closed = true;
                break;
            }
            yield_now().await;
        }
        let unpolled = self.unpolled.iter().map(|caller| caller.op.number);
        // A grant to a caller that is never polled again is no leak.
        self.received.extend(unpolled);
        let mut seen = self.seen.lock();
        if !closed || !seen.in_flight.is_empty() {
            seen.record_breach("the batcher does not close".to_owned());
        }
        let kept: Vec<u64> = seen.granted.difference(&self.received).copied().collect();
        if !kept.is_empty() {
            seen.record_breach(format!(
                "the grants {kept:?} have no caller and were not undone"
            ));
        }
        let unsent = self
            .releases
            .iter()
            .find(|number| !seen.applied.contains(number) && !seen.failed.contains(number));
        if let Some(number) = unsent {
            seen.record_breach(format!("release {number} was never sent"));
        }
    }
}

impl BatchCaller {
    /// Tells whether the caller was woken after its last poll.
    fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed)
    }
}
