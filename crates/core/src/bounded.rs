//! A bound on every wait for a store.

use std::{future::Future, pin::pin, task::Poll, time::Duration};

use crate::{
    clock::Clock,
    error::{Error, ErrorKind, Result},
};

/// Waits for `operation` at most for `limit`; after that its outcome is unknown. An operation that is ready at once never
/// pays for a timer.
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
    tokio::select! {
        biased;
        answer = operation => answer,
        () = clock.sleep(limit) => Err(Error::new(
            ErrorKind::OutcomeUnknown,
            format!("the store did not answer within {limit:?}"),
        )),
    }
}
