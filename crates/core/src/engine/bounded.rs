//! A bound on every wait for a store.

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

/// What a store that hangs may cost beyond the wait.
const BEYOND: Duration = Duration::from_secs(5);

/// How long closing waits for what is on its way to the store: attempts of callers, and releases.
/// Closing takes this time and, with what follows it, at most 10 seconds.
pub(crate) const LANDING: Duration = Duration::from_secs(4);

/// How long closing waits for the keeper's thread, which closes connections too.
pub(crate) const STOPPING: Duration = Duration::from_secs(2);

/// How long closing waits for one handle's connections to close. The server answers that, and one
/// that hangs does not.
const CONNECTIONS: Duration = Duration::from_millis(900);

/// When the caller gets an answer, whatever the store does. `None` = not known beforehand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallEnd(Option<Moment>);

impl CallEnd {
    pub(crate) fn after(wait: Option<Duration>, clock: &dyn Clock) -> Self {
        Self(wait.map(|wait| clock.now() + wait + BEYOND))
    }

    /// What one more step at the store may take from now on.
    pub(crate) fn left(self, now: Moment) -> Duration {
        let left = |end: Moment| end.since(now).min(BEYOND);
        self.0.map_or(BEYOND, left)
    }
}

/// Waits for `operation` at most for `limit`; after that its outcome is unknown.
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

/// Waits for connections to close, in good order where the store answers. Where it does not, the
/// connections are dropped with their owner.
pub(crate) async fn close_bounded(clock: &dyn Clock, closing: impl Future<Output = ()>) {
    if at_most(clock, CONNECTIONS, closing).await.is_none() {
        tracing::debug!("connections did not close within {CONNECTIONS:?}");
    }
}

/// Waits for `operation` at most for `limit`, and drops it then. An operation that is ready at once
/// never pays for a timer; without any time it is begun all the same.
pub(crate) async fn at_most<T>(
    clock: &dyn Clock,
    limit: Duration,
    operation: impl Future<Output = T>,
) -> Option<T> {
    let mut operation = pin!(operation);
    let mut timer = pin!(None);
    // One look at the operation each time: those that wait are many layers deep.
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
