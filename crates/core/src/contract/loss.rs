//! What a store pushes about one lock, carried to whoever holds it without a task in between.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::contract::LossReason;

/// The receiving end of what a store pushes about one lock.
#[derive(Clone, Debug)]
pub struct LossFeed(Option<Arc<Shared>>);

/// The sending end of a [`LossFeed`].
#[derive(Debug)]
pub struct LossSender(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    told: Notify,
}

#[derive(Default)]
struct State {
    reason: Option<LossReason>,
    listeners: Vec<Box<dyn FnOnce(LossReason) + Send>>,
}

impl LossFeed {
    /// A feed of a store that pushes nothing.
    #[must_use]
    pub const fn silent() -> Self {
        Self(None)
    }

    /// A feed and its sender.
    #[must_use]
    pub fn new() -> (LossSender, Self) {
        let shared = Arc::<Shared>::default();
        (LossSender(Arc::clone(&shared)), Self(Some(shared)))
    }

    /// Whether anything can ever come.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.0.is_none()
    }

    /// Has `listener` called at the loss, at once if it has happened, by whoever sends it: it must be quick.
    pub fn on_loss(&self, listener: impl FnOnce(LossReason) + Send + 'static) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.state();
        match state.reason {
            Some(reason) => {
                drop(state);
                listener(reason);
            }
            None => state.listeners.push(Box::new(listener)),
        }
    }

    /// Waits for the loss; for ever when the store pushes nothing or the sender went away in silence.
    ///
    /// # Cancel safety
    /// Safe: the loss stays readable.
    pub async fn lost(&mut self) -> LossReason {
        let Some(shared) = &self.0 else {
            return std::future::pending().await;
        };
        loop {
            let told = shared.told.notified();
            if let Some(reason) = shared.state().reason {
                return reason;
            }
            told.await;
        }
    }
}

impl LossSender {
    /// Tells the holder. The first reason stays.
    pub fn lose(&self, reason: LossReason) {
        let listeners = {
            let mut state = self.0.state();
            if state.reason.is_some() {
                return;
            }
            state.reason = Some(reason);
            std::mem::take(&mut state.listeners)
        };
        self.0.told.notify_waiters();
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

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Listeners run outside of it, so nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loss")
            .field("reason", &self.state().reason)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_first_reason_reaches_everybody_now_and_later() {
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
        LossFeed::silent().on_loss(|_| panic!("nothing ever comes"));
    }
}
