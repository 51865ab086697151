//! A bound on every wait for a store.
//!
//! This module owns the limits that all calls share. Invariant: a wait that uses this module ends
//! at its limit, also when the store hangs. The module never repeats an operation.

use std::{
    future::{Future, pending},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{
    clock::{Clock, Moment, Timer},
    types::error::{Error, ErrorKind, Result},
};

/// The longest time that a hanging store adds to the wait of a call.
const BEYOND: Duration = Duration::from_secs(5);

/// The longest time that a close waits for operations in flight: attempts of callers, and releases,
/// which are repeated while the store is away.
/// All waits of a close together take at most 10 seconds.
pub(crate) const LANDING: Duration = Duration::from_secs(4);

/// The longest time that a close waits for guards to be dropped. An aborted task drops its guard at
/// its next yield, on another thread or after the close has begun.
pub(crate) const DROPPING: Duration = Duration::from_secs(1);

/// The longest time that a close waits for the keeper thread, which closes its own connections.
pub(crate) const STOPPING: Duration = Duration::from_secs(2);

/// The longest time that closing the connections of one handle takes. A server that hangs does not
/// answer a close.
const CONNECTIONS: Duration = Duration::from_millis(900);

/// The wait of one acquire, of one lock or of several. All steps of the call share one value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The wait that the caller asked for; `None` = without end.
    pub(crate) asked: Option<Duration>,
    /// The end of the wait for a busy lock.
    until: Option<Moment>,
}

impl Wait {
    pub(crate) fn start(asked: Option<Duration>, now: Moment) -> Self {
        let until = asked.map(|wait| now + wait);
        Self { asked, until }
    }

    /// Whether the caller wants one attempt, without waiting.
    pub(crate) fn is_zero(self) -> bool {
        self.asked == Some(Duration::ZERO)
    }

    /// The time for which the caller still waits for a busy lock.
    pub(crate) fn left(self, now: Moment) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.since(now))
    }

    /// The longest time that one more step at the store may take from `now` on. The caller gets an
    /// answer by then, also when the store hangs.
    pub(crate) fn left_at_store(self, now: Moment) -> Duration {
        let left = |until: Moment| (until + BEYOND).since(now).min(BEYOND);
        self.until.map_or(BEYOND, left)
    }

    /// Resolves at the end of the wait for a busy lock.
    pub(crate) async fn ended(self, clock: &dyn Clock) {
        match self.until {
            Some(until) => clock.sleep(until.since(clock.now())).await,
            None => pending().await,
        }
    }
}

/// Waits for `operation` at most for `limit`. An operation without an answer by then has an unknown
/// outcome. The error does not name the limit: the limit is often the rest of a longer wait, and
/// the caller has waited for all of it.
pub(crate) async fn bounded<T>(
    clock: &dyn Clock,
    limit: Duration,
    operation: impl Future<Output = Result<T>>,
) -> Result<T> {
    at_most(clock, limit, operation).await.unwrap_or_else(|| {
        Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "the store did not answer in time",
        ))
    })
}

/// Waits for connections to close, within a limit. Connections that the store has not closed by
/// then end when their owner is dropped.
pub(crate) async fn close_bounded(clock: &dyn Clock, closing: impl Future<Output = ()>) {
    if at_most(clock, CONNECTIONS, closing).await.is_none() {
        tracing::debug!("connections did not close within {CONNECTIONS:?}");
    }
}

/// Waits for `operation` at most for `limit`, and then drops it. An operation that is ready at its
/// first poll starts no timer. With a limit of zero, the operation is polled once.
///
/// When the operation and its limit are due at the same poll, the operation counts.
///
/// # Cancel safety
/// That of `operation`.
pub fn at_most<F: Future>(
    clock: &dyn Clock,
    limit: Duration,
    operation: F,
) -> impl Future<Output = Option<F::Output>> {
    AtMost {
        clock,
        limit,
        operation,
        timer: None,
    }
}

pin_project! {
    // An `async fn` would keep its argument beside the pinned value, and so double the size of each
    // of the futures that are nested here.
    struct AtMost<'a, F> {
        clock: &'a dyn Clock,
        limit: Duration,
        #[pin]
        operation: F,
        #[pin]
        timer: Option<Timer>,
    }
}

impl<F: Future> Future for AtMost<'_, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // The operation is polled only once each time this future is polled, because its futures
        // are nested many layers deep and each poll is expensive.
        if let Poll::Ready(answer) = this.operation.poll(context) {
            return Poll::Ready(Some(answer));
        }
        if this.limit.is_zero() {
            return Poll::Ready(None);
        }
        if this.timer.is_none() {
            this.timer.set(Some(Timer::start(*this.clock, *this.limit)));
        }
        match this.timer.as_pin_mut() {
            Some(timer) => timer.poll(context).map(|()| None),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ManualClock;

    /// The limit of a single step may be a small part of the time that its caller has waited.
    #[tokio::test]
    async fn a_missing_answer_names_no_limit() {
        let left = Duration::from_nanos(1);
        let clock = ManualClock::new();
        let waiting = bounded::<()>(&clock, left, pending());
        let error = tokio::join!(waiting, async { clock.advance(left * 2) })
            .0
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        assert_eq!(error.message(), "the store did not answer in time");
    }
}
