//! The direct notification of a loss from a backend to the holder. No task forwards it.
//!
//! This module owns the first reason of a loss and the listeners. Invariant: each listener runs
//! once, without the mutex held, on the thread that reports the loss, or on the registering thread
//! if the loss was reported before.

use std::{fmt, sync::Arc};

use tokio::sync::Notify;

use crate::{contract::LossReason, sync::Mutex};

/// The receiving end of loss notifications for one lock.
#[derive(Clone, Debug)]
pub struct LossFeed(Option<Arc<FeedShared>>);

/// The sending end of a [`LossFeed`].
#[derive(Debug)]
pub struct LossSender(Arc<FeedShared>);

#[derive(Default)]
struct FeedShared {
    state: Mutex<FeedState>,
    changed: Notify,
}

#[derive(Default)]
struct FeedState {
    reason: Option<LossReason>,
    listeners: Vec<Box<dyn FnOnce(LossReason) + Send>>,
}

impl LossFeed {
    /// A feed of a store that sends no notifications.
    #[must_use]
    pub const fn silent() -> Self {
        Self(None)
    }

    /// A feed and its sender.
    #[must_use]
    pub fn new() -> (LossSender, Self) {
        let shared = Arc::<FeedShared>::default();
        (LossSender(Arc::clone(&shared)), Self(Some(shared)))
    }

    /// Whether no notification can ever come.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.0.is_none()
    }

    /// Registers a function that is called at the loss, or at once if the lock is lost already. The
    /// function runs on the thread that reports the loss, so it must be quick.
    pub fn on_loss(&self, listener: impl FnOnce(LossReason) + Send + 'static) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.state.lock();
        match state.reason {
            Some(reason) => {
                drop(state);
                listener(reason);
            }
            None => state.listeners.push(Box::new(listener)),
        }
    }

    /// Waits for the loss. The future never resolves if the store sends no notifications, or if the
    /// sender was dropped without a report.
    ///
    /// # Cancel safety
    /// Safe: a later call returns the same loss.
    pub async fn lost(&mut self) -> LossReason {
        let Some(shared) = &self.0 else {
            return std::future::pending().await;
        };
        loop {
            let changed = shared.changed.notified();
            if let Some(reason) = shared.state.lock().reason {
                return reason;
            }
            changed.await;
        }
    }
}

impl LossSender {
    /// Reports the loss to the holder. Only the first call has an effect.
    pub fn lose(&self, reason: LossReason) {
        let listeners = {
            let mut state = self.0.state.lock();
            if state.reason.is_some() {
                return;
            }
            state.reason = Some(reason);
            std::mem::take(&mut state.listeners)
        };
        self.0.changed.notify_waiters();
        for listener in listeners {
            listener(reason);
        }
    }

    /// Another feed of the same sender.
    #[must_use]
    pub fn feed(&self) -> LossFeed {
        LossFeed(Some(Arc::clone(&self.0)))
    }
}

impl fmt::Debug for FeedShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loss")
            .field("reason", &self.state.lock().reason)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn earlier_and_later_listeners_get_the_first_reason() {
        let (sender, mut feed) = LossFeed::new();
        let (heard, mut late) = (mpsc::channel(), sender.feed());
        let waiting = tokio::spawn(async move { feed.lost().await });
        for _ in 0..2 {
            let heard = heard.0.clone();
            late.on_loss(move |reason| heard.send(reason).unwrap());
        }
        sender.lose(LossReason::Removed);
        sender.lose(LossReason::Expired);
        let heard_late = heard.0.clone();
        late.on_loss(move |reason| heard_late.send(reason).unwrap());
        assert_eq!(
            heard.1.try_iter().collect::<Vec<_>>(),
            [LossReason::Removed; 3]
        );
        assert_eq!(waiting.await.unwrap(), LossReason::Removed);
        assert_eq!(late.lost().await, LossReason::Removed);
        LossFeed::silent().on_loss(|_| panic!("a silent feed sends nothing"));
    }
}
