//! A bound on every wait for a store.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use crate::{
    clock::{Clock, Moment, Timer},
    error::{Error, ErrorKind, Result},
};

/// What a store that hangs may cost beyond the wait.
const BEYOND: Duration = Duration::from_secs(5);

/// When the caller gets an answer, whatever the store does. `None` = not known beforehand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End(Option<Moment>);

impl End {
    pub(crate) fn after(wait: Option<Duration>, clock: &dyn Clock) -> Self {
        Self(wait.map(|wait| clock.now() + wait + BEYOND))
    }

    /// What one more step at the store may take from now on.
    pub(crate) fn left(self, now: Moment) -> Duration {
        let left = |end: Moment| end.since(now).min(BEYOND);
        self.0.map_or(BEYOND, left)
    }
}

/// Waits for `operation` at most for `limit`; after that its outcome is unknown. An operation that is ready at once never
/// pays for a timer; without any time it is begun all the same.
pub(crate) async fn bounded<T>(
    clock: &dyn Clock,
    limit: Duration,
    operation: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut operation = pin!(operation);
    let mut timer = pin!(None);
    // One look at the operation each time: those that wait are many layers deep.
    let answer = poll_fn(|context| {
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
    });
    if let Some(answer) = answer.await {
        return answer;
    }
    Err(Error::new(
        ErrorKind::OutcomeUnknown,
        format!("the store did not answer within {limit:?}"),
    ))
}
