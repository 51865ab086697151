//! Dropping a future at a chosen point of its life, for the cases of cancel safety.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Polls a future at most `polls` times, each time that its task is woken, and then drops it.
///
/// `None`: the future was dropped before it ended.
pub(crate) async fn poll_at_most<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    AtMost {
        left: polls,
        future: Box::pin(future),
    }
    .await
}

struct AtMost<F> {
    left: usize,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for AtMost<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // The caller drops the future right after this answer. So the future is dropped after
            // exactly the wanted number of polls.
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn needs_three_polls() -> u8 {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        7
    }

    #[tokio::test]
    async fn a_future_is_dropped_after_its_last_allowed_poll() {
        for polls in 0..3 {
            assert_eq!(poll_at_most(polls, needs_three_polls()).await, None);
        }
        assert_eq!(poll_at_most(3, needs_three_polls()).await, Some(7));
    }
}
