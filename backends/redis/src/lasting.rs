//! What goes on when the operation that wanted it gives up: connecting may take longer than any operation waits.

use std::{future::Future, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::task::JoinHandle;

use crate::error::BACKEND;

/// Something under way in a task of its own. The next who wants the same waits for it instead of beginning anew.
#[derive(Debug)]
pub(crate) struct Lasting<T> {
    begun: Moment,
    task: JoinHandle<Result<T>>,
}

impl<T: Send + 'static> Lasting<T> {
    /// What comes of the one in `slot`, which is begun if there is none, or only one that is older than `longest`: that may
    /// lead anywhere by now, or be on a runtime that stands still.
    ///
    /// # Cancel safety
    /// Safe: it stays in the slot.
    pub(crate) async fn outcome<F>(
        slot: &mut Option<Self>,
        clock: &dyn Clock,
        longest: Duration,
        begin: impl FnOnce() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let now = clock.now();
        let known = slot.take().filter(|known| now.since(known.begun) < longest);
        let lasting = slot.insert(known.unwrap_or_else(|| Self {
            begun: now,
            task: tokio::spawn(begin()),
        }));
        let outcome = (&mut lasting.task).await;
        *slot = None;
        outcome.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unavailable,
                "the runtime that was connecting was shut down",
            )
            .on(BACKEND))
        })
    }
}

impl<T> Drop for Lasting<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;
    use futures_util::FutureExt as _;
    use tokio::sync::Notify;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(8);

    #[tokio::test]
    async fn it_goes_on_without_who_began_it() {
        let (clock, mut slot) = (ManualClock::new(), None);
        let (go, gone) = (std::sync::Arc::new(Notify::new()), Notify::new());
        let begin = || {
            let go = std::sync::Arc::clone(&go);
            async move {
                go.notified().await;
                Ok(7)
            }
        };
        let given_up = Lasting::outcome(&mut slot, &clock, LONGEST, begin).now_or_never();
        assert!(given_up.is_none());
        go.notify_one();
        let second = || {
            gone.notify_one();
            async { Ok(8) }
        };
        let outcome = Lasting::outcome(&mut slot, &clock, LONGEST, second).await;
        assert_eq!(outcome.unwrap(), 7);
        assert!(gone.notified().now_or_never().is_none(), "begun twice");
        assert!(slot.is_none());
    }

    #[tokio::test]
    async fn one_that_is_too_old_is_begun_anew() {
        let (clock, mut slot) = (ManualClock::new(), None);
        let never = std::future::pending::<Result<u8>>;
        let given_up = Lasting::outcome(&mut slot, &clock, LONGEST, never).now_or_never();
        assert!(given_up.is_none());
        clock.advance(LONGEST);
        let outcome = Lasting::outcome(&mut slot, &clock, LONGEST, || async { Ok(8) }).await;
        assert_eq!(outcome.unwrap(), 8);
    }
}
