//! Several waiters of one process for one lock: the local queue serves them in order of arrival.

use std::{future::Future, pin::Pin, task::Poll, time::Duration};

use anyhow::Result;
use distlock::{Clock as _, Fairness, SystemClock};

use super::task::WorkerTask;
use crate::chaos::{
    history::{CallKind, Event, now},
    worker_settings::EXTRA_WAIT,
};

/// Largest number of waiters in one queue.
const MAX_WAITERS: u32 = 6;

impl WorkerTask {
    /// Starts several waiters at once, and serves them all.
    pub(super) async fn wait_in_local_queue(&mut self) -> Result<()> {
        let capabilities = self.locker.capabilities();
        if capabilities.fairness == Fairness::Fifo && !capabilities.hand_over {
            // At such a store the first waiters of a process each have a place in the store queue.
            // These waiters may join the store queue in another order than they started.
            return self.use_one_lock().await;
        }
        let (name, ttl, wait) = (self.draw_name(), self.draw_ttl(), self.draw_wait() * 4);
        let queue = self.history.next_number();
        let pause = Duration::from_micros(self.rng.u64(..4_000));
        let waiters = self.rng.u32(2..=MAX_WAITERS);
        // Some waiters stop waiting early. They must not delay the waiters behind them.
        let impatient = self.rng.u32(..MAX_WAITERS * 2);
        let patience = self.draw_wait();
        let task = &*self;
        let one = |place: u32| {
            let name = name.clone();
            async move {
                let asked = now();
                task.history.record(Event::Queued {
                    queue,
                    place,
                    at: asked,
                });
                let call = task
                    .history
                    .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
                let acquiring = task.locker.lock(&name).ttl(ttl).wait(wait).acquire();
                let guard = if place == impatient {
                    tokio::select! {
                        guard = acquiring => guard,
                        () = SystemClock.sleep(patience) => {
                            drop(call);
                            return;
                        }
                    }
                } else {
                    acquiring.await
                };
                call.finish_with(&guard);
                let Ok(guard) = guard else { return };
                let hold = task.record_grant(&guard, asked, None);
                task.history.record(Event::Served {
                    queue,
                    place,
                    token: guard.token().get(),
                    at: now(),
                });
                task.check_validity(hold, &guard.watch());
                SystemClock.sleep(pause).await;
                task.check_validity(hold, &guard.watch());
                task.record_end_and_release(hold, guard).await;
            }
        };
        join_all_in_order((0..waiters).map(one).collect()).await;
        Ok(())
    }
}

/// Awaits all futures. The first poll of each future comes before the first poll of the next
/// future, so the waiters join the queue in this order.
async fn join_all_in_order<F: Future<Output = ()>>(all: Vec<F>) {
    let mut open: Vec<Pin<Box<F>>> = all.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        open.retain_mut(|it| it.as_mut().poll(context).is_pending());
        if open.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
