//! What is made by a task of its own, which goes on when the operation that wanted it gives up: connecting may take longer
//! than any operation waits.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::{sync::watch, task::AbortHandle};

use crate::error::BACKEND;

/// A connection or a map, made when somebody needs it. The task that makes it also puts it here, so that nobody depends on
/// the caller who asked for it first: a future may be alive and never be polled again.
#[derive(Debug)]
pub(crate) struct SingleFlight<T>(Arc<Mutex<FlightState<T>>>);

#[derive(Debug)]
struct FlightState<T> {
    /// The last one, whether it is still good or not.
    made: Option<T>,
    flight: Option<Flight>,
    /// Counts what was begun.
    begun: u64,
    closed: bool,
}

/// A task that has not told yet what came of it.
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
    /// The last one if it is `good`, or else the next. Whoever comes while that is being made waits for it, unless it was
    /// begun `longest` ago: then it may lead anywhere, or be on a runtime that stands still, and is given up.
    ///
    /// # Errors
    /// Whatever keeps it from being made.
    ///
    /// # Cancel safety
    /// Safe: it goes on being made, for whoever comes next.
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
            let mut state = self.state();
            if state.closed {
                return Err(given_up());
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
            // Not asked again whether it is good: what is doubted all the time would never be had.
            Ok(_) => self.latest().ok_or_else(given_up),
            Err(_) => Err(gone()),
        }
    }

    /// The last one that was made.
    pub(crate) fn latest(&self) -> Option<T> {
        self.state().made.clone()
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
            let mut state = lock(&shared);
            let outcome = if state.closed || state.begun != number {
                // What was made is dropped here, and not put where nobody would look for it.
                Err(given_up())
            } else {
                // Put there before anybody is told, and over before the next may begin.
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
    /// Lets go of it, and of what is being made. None is made any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let (made, flight) = (state.made.take(), state.flight.take());
        drop(state);
        drop((made, flight));
    }

    // A std mutex: held to look and to swap only.
    fn state(&self) -> MutexGuard<'_, FlightState<T>> {
        lock(&self.0)
    }
}

impl<T> Drop for SingleFlight<T> {
    fn drop(&mut self) {
        self.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn given_up() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was given up").on(BACKEND)
}

fn gone() -> Error {
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

    /// Begins one that is done when told, and goes away.
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

    async fn is_over(single_flight: &SingleFlight<u8>) {
        while single_flight.state().flight.is_some() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn it_goes_on_without_who_began_it() {
        let (clock, single_flight) = (ManualClock::new(), SingleFlight::default());
        begin(&single_flight, &clock, Ok(7)).notify_one();
        assert_eq!(next(&single_flight, &clock, true).await.unwrap(), 7);
        assert_eq!(single_flight.state().begun, 1, "begun twice");
    }

    #[tokio::test]
    async fn what_was_over_before_it_was_needed_is_no_answer_unless_it_is_good() {
        let clock = ManualClock::new();
        let failed = || Error::new(ErrorKind::Unavailable, "an hour ago");
        for (outcome, good, expected) in [
            (Ok(7), true, 7),
            (Ok(7), false, 8),
            (Err(failed()), true, 8),
        ] {
            let single_flight = SingleFlight::default();
            begin(&single_flight, &clock, outcome).notify_one();
            is_over(&single_flight).await;
            assert_eq!(next(&single_flight, &clock, good).await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn one_that_is_too_old_is_begun_anew() {
        let (clock, single_flight) = (ManualClock::new(), SingleFlight::default());
        begin(&single_flight, &clock, Ok(7));
        clock.advance(LONGEST);
        assert_eq!(next(&single_flight, &clock, true).await.unwrap(), 8);
    }

    #[tokio::test]
    async fn who_is_not_polled_keeps_nobody_waiting() {
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
    async fn nothing_is_kept_or_made_after_closing() {
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
