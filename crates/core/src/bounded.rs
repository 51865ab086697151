//! A bound on every wait for a store.

use std::{future::Future, pin::pin, task::Poll, time::Duration};

use crate::{
    clock::{Clock, Moment},
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

    /// What one more step at the store may take.
    pub(crate) fn left(self, clock: &dyn Clock) -> Duration {
        let left = |end: Moment| end.since(clock.now()).min(BEYOND);
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
    let first = std::future::poll_fn(|context| Poll::Ready(operation.as_mut().poll(context))).await;
    if let Poll::Ready(answer) = first {
        return answer;
    }
    if !limit.is_zero() {
        tokio::select! {
            biased;
            answer = operation => return answer,
            () = clock.sleep(limit) => {}
        }
    }
    Err(Error::new(
        ErrorKind::OutcomeUnknown,
        format!("the store did not answer within {limit:?}"),
    ))
}
