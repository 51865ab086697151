//! Makes one value at a time, in a task that outlives the caller that started it.
//!
//! Connecting may take longer than an operation waits. So an attempt goes on when its caller gives
//! up. At most one attempt is in progress, and later callers wait for that attempt.

use std::{future::Future, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Moment, Result, sync::Mutex};
use tokio::{sync::watch, task::AbortHandle};

use crate::error::BACKEND;

/// A value that is made on demand, such as a connection or a slot map. The task that makes the
/// value also stores it. If the first caller stored the value instead, a caller whose future nobody
/// polls would block all others.
#[derive(Debug)]
pub(crate) struct SingleFlight<T>(
    // A blocking mutex: it is held only to read and swap values, never across an await.
    Arc<Mutex<FlightState<T>>>,
);

#[derive(Debug)]
struct FlightState<T> {
    /// The last value, which may be unusable by now.
    made: Option<T>,
    flight: Option<Flight>,
    /// The number of attempts so far.
    begun: u64,
    closed: bool,
}

/// An attempt that is in progress.
#[derive(Debug)]
struct Flight {
    begun: Moment,
    done: watch::Receiver<Option<Result<()>>>,
    task: AbortHandle,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(FlightState {
            made: None,
            flight: None,
            begun: 0,
            closed: false,
        })))
    }
}

impl<T: Clone + Send + 'static> SingleFlight<T> {
    /// Returns the last value if it is `good`, otherwise a new one. A caller that comes during an
    /// attempt waits for that attempt. An attempt that is as old as `longest` is abandoned and
    /// replaced, because its connection may be dead or its runtime blocked.
    ///
    /// # Errors
    /// The error of the attempt.
    ///
    /// # Cancel safety
    /// Safe: the attempt goes on for the next caller.
    pub(crate) async fn get<F>(
        &self,
        clock: &dyn Clock,
        longest: Duration,
        good: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut done = {
            let mut state = self.0.lock();
            if state.closed {
                return Err(abandoned());
            }
            if let Some(made) = state.made.as_ref().filter(|made| good(made)) {
                return Ok(made.clone());
            }
            let now = clock.now();
            let lost = |flight: &mut Flight| {
                now.since(flight.begun) >= longest || flight.done.has_changed().is_err()
            };
            state.flight.take_if(lost);
            match &state.flight {
                Some(flight) => flight.done.clone(),
                None => self.begin(&mut state, now, make()),
            }
        };
        match done.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Err(error))) => Err(error.clone()),
            // `good` is not called again here. If new values became unusable all the time, this
            // function would never return one.
            Ok(_) => self.latest().ok_or_else(abandoned),
            Err(_) => Err(task_ended()),
        }
    }

    /// Returns the last value that was made.
    pub(crate) fn latest(&self) -> Option<T> {
        self.0.lock().made.clone()
    }

    fn begin(
        &self,
        state: &mut FlightState<T>,
        now: Moment,
        flight: impl Future<Output = Result<T>> + Send + 'static,
    ) -> watch::Receiver<Option<Result<()>>> {
        let (finish, done) = watch::channel(None);
        let shared = Arc::clone(&self.0);
        state.begun += 1;
        let number = state.begun;
        let task = tokio::spawn(async move {
            let outcome = flight.await;
            let mut state = shared.lock();
            let outcome = if state.closed || state.begun != number {
                // The attempt was abandoned, or the owner is closed. The value is dropped here. If
                // it were stored, nobody would close it.
                Err(abandoned())
            } else {
                // The order matters: the value is stored before the waiting callers wake up, and
                // this attempt ends before the next one may begin.
                state.flight = None;
                outcome.map(|made| state.made = Some(made))
            };
            drop(state);
            finish.send_replace(Some(outcome));
        });
        state.flight = Some(Flight {
            begun: now,
            done: done.clone(),
            task: task.abort_handle(),
        });
        done
    }
}

impl<T> SingleFlight<T> {
    /// Drops the value and stops the attempt. After this no other attempt begins.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        let (made, flight) = (state.made.take(), state.flight.take());
        drop(state);
        drop((made, flight));
    }
}

impl<T> Drop for SingleFlight<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the error for an attempt that was abandoned, because it took too long or because the
/// owner was closed.
fn abandoned() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the attempt to connect was abandoned",
    )
    .on(BACKEND)
}

fn task_ended() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the task that was connecting has ended",
    )
    .on(BACKEND)
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Weak};

    use distlock_core::ManualClock;
    use futures_util::FutureExt as _;
    use tokio::sync::Notify;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(8);

    /// Begins an attempt that ends when it is notified, and drops the caller's future.
    fn begin(
        single_flight: &SingleFlight<u8>,
        clock: &ManualClock,
        outcome: Result<u8>,
    ) -> Arc<Notify> {
        let go = Arc::new(Notify::new());
        let make = || {
            let go = Arc::clone(&go);
            async move {
                go.notified().await;
                outcome
            }
        };
        let given_up = single_flight
            .get(clock, LONGEST, |_| true, make)
            .now_or_never();
        assert!(given_up.is_none());
        go
    }

    async fn next(single_flight: &SingleFlight<u8>, clock: &ManualClock, good: bool) -> Result<u8> {
        let make = || async { Ok(8) };
        single_flight.get(clock, LONGEST, |_| good, make).await
    }

    async fn flight_has_ended(single_flight: &SingleFlight<u8>) {
        while single_flight.0.lock().flight.is_some() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_attempt_goes_on_without_its_first_caller() {
        let (clock, single_flight) = (ManualClock::new(), SingleFlight::default());
        begin(&single_flight, &clock, Ok(7)).notify_one();
        assert_eq!(next(&single_flight, &clock, true).await.unwrap(), 7);
        assert_eq!(single_flight.0.lock().begun, 1, "begun twice");
    }

    #[tokio::test]
    async fn a_finished_value_is_used_only_while_it_is_good() {
        let clock = ManualClock::new();
        let failed = || Error::new(ErrorKind::Unavailable, "an hour ago");
        for (outcome, good, expected) in [
            (Ok(7), true, 7),
            (Ok(7), false, 8),
            (Err(failed()), true, 8),
        ] {
            let single_flight = SingleFlight::default();
            begin(&single_flight, &clock, outcome).notify_one();
            flight_has_ended(&single_flight).await;
            assert_eq!(next(&single_flight, &clock, good).await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn an_attempt_that_takes_too_long_is_replaced() {
        let (clock, single_flight) = (ManualClock::new(), SingleFlight::default());
        begin(&single_flight, &clock, Ok(7));
        clock.advance(LONGEST);
        assert_eq!(next(&single_flight, &clock, true).await.unwrap(), 8);
    }

    #[tokio::test]
    async fn a_caller_that_is_not_polled_blocks_no_other_caller() {
        let (clock, single_flight) = (ManualClock::new(), SingleFlight::default());
        let go = Arc::new(Notify::new());
        let make = || {
            let go = Arc::clone(&go);
            async move {
                go.notified().await;
                Ok(7)
            }
        };
        let mut first = pin!(single_flight.get(&clock, LONGEST, |_| true, make));
        assert!(first.as_mut().now_or_never().is_none());
        go.notify_one();
        assert_eq!(next(&single_flight, &clock, true).await.unwrap(), 7);
        assert_eq!(next(&single_flight, &clock, false).await.unwrap(), 8);
        assert_eq!(first.await.unwrap(), 8);
    }

    #[tokio::test]
    async fn no_value_is_kept_or_made_after_close() {
        for over in [false, true] {
            let (clock, single_flight) = (ManualClock::new(), SingleFlight::default());
            let value = Arc::new(7);
            let alive: Weak<i32> = Arc::downgrade(&value);
            let go = Arc::new(Notify::new());
            let make = || {
                let go = Arc::clone(&go);
                async move {
                    go.notified().await;
                    Ok(value)
                }
            };
            let begun = single_flight
                .get(&clock, LONGEST, |_| true, make)
                .now_or_never();
            assert!(begun.is_none());
            if over {
                go.notify_one();
                while single_flight.latest().is_none() {
                    tokio::task::yield_now().await;
                }
            }
            single_flight.close();
            while alive.upgrade().is_some() {
                tokio::task::yield_now().await;
            }
            let make = || async { Ok(Arc::new(8)) };
            assert!(
                single_flight
                    .get(&clock, LONGEST, |_| true, make)
                    .await
                    .is_err()
            );
        }
    }
}
