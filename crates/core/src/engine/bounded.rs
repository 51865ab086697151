//! A bound on every wait for a store.
//!
//! This module owns the limits that all calls share. Invariant: a wait that goes through this
//! module ends at its limit, whatever the store does. It never tries an operation again.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use crate::{
    engine::clock::{Clock, Moment, Timer},
    types::error::{Error, ErrorKind, Result},
};

/// How long a call may last beyond its wait when the store hangs.
const BEYOND: Duration = Duration::from_secs(5);

/// How long a close waits for operations in flight: attempts of callers, and releases. A close
/// takes at most 10 seconds in all.
pub(crate) const LANDING: Duration = Duration::from_secs(4);

/// How long a close waits for the keeper thread, which closes connections too.
pub(crate) const STOPPING: Duration = Duration::from_secs(2);

/// How long a close waits for the connections of one handle. The server answers a close, and a
/// server that hangs does not.
const CONNECTIONS: Duration = Duration::from_millis(900);

/// When the caller gets an answer, whatever the store does. `None` = its wait has no end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallEnd(Option<Moment>);

impl CallEnd {
    pub(crate) fn after(wait: Option<Duration>, clock: &dyn Clock) -> Self {
        Self(wait.map(|wait| clock.now() + wait + BEYOND))
    }

    /// How long one more step at the store may take from now on.
    pub(crate) fn left(self, now: Moment) -> Duration {
        let left = |end: Moment| end.since(now).min(BEYOND);
        self.0.map_or(BEYOND, left)
    }
}

/// Waits for `operation` at most for `limit`. After that it has an unknown outcome.
pub(crate) async fn bounded<T>(
    clock: &dyn Clock,
    limit: Duration,
    operation: impl Future<Output = Result<T>>,
) -> Result<T> {
    at_most(clock, limit, operation).await.unwrap_or_else(|| {
        Err(Error::new(
            ErrorKind::OutcomeUnknown,
            format!("the store did not answer within {limit:?}"),
        ))
    })
}

/// Waits for connections to close. Where the store does not answer, the connections are dropped
/// with their owner.
pub(crate) async fn close_bounded(clock: &dyn Clock, closing: impl Future<Output = ()>) {
    if at_most(clock, CONNECTIONS, closing).await.is_none() {
        tracing::debug!("connections did not close within {CONNECTIONS:?}");
    }
}

/// Waits for `operation` at most for `limit`, and then drops it. An operation that is ready at once
/// costs no timer. With a limit of zero, the operation is still polled once.
pub(crate) async fn at_most<T>(
    clock: &dyn Clock,
    limit: Duration,
    operation: impl Future<Output = T>,
) -> Option<T> {
    let mut operation = pin!(operation);
    let mut timer = pin!(None);
    // The operation is polled once in each turn: its futures are many layers deep.
    poll_fn(|context| {
        if let Poll::Ready(answer) = operation.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        if limit.is_zero() {
            return Poll::Ready(None);
        }
        if timer.is_none() {
            timer.set(Some(Timer::start(clock, limit)));
        }
        match timer.as_mut().as_pin_mut() {
            Some(timer) => timer.poll(context).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}
