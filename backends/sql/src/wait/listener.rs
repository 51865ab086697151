//! One listener for each handle, if the store notifies of releases.
//!
//! The listener runs as a singleton task. The listener never keeps its handle open: it holds a
//! strong reference only between two awaits.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use distlock_core::Sleep;

use super::sleep::AFTER_FAILURE;
use crate::{dialect::Dialect, store::Store};

/// The interval between two signs of life of a listener.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(5);

/// Makes sure that a task receives the store's notifications.
pub(super) fn ensure_listening<D: Dialect>(store: &Arc<Store<D>>) {
    if let Some(turn) = store.listener.start(store.dialect().context().clock.now()) {
        let task = listen(Arc::downgrade(store), turn);
        store.track_task(tokio::spawn(task).abort_handle());
    }
}

/// Receives the store's notifications for as long as the handle exists.
async fn listen<D: Dialect>(store: Weak<Store<D>>, turn: u64) {
    let _running = ListenerTurn(Weak::clone(&store), turn);
    // The strong reference ends within this line: a listener must not keep the handle open.
    while let Some(mut notifications) = store.upgrade().map(|store| store.dialect().listen()) {
        let mut lost = false;
        while !lost {
            let Some(pause) = sign_of_life(&store, turn, SIGN_OF_LIFE_EVERY) else {
                return;
            };
            lost = tokio::select! {
                () = &mut notifications => true,
                () = pause => false,
            };
        }
        drop(notifications);
        let Some(pause) = sign_of_life(&store, turn, AFTER_FAILURE) else {
            return;
        };
        pause.await;
    }
}

/// Gives a sign of life, and returns the pause until the next sign of life. Returns `None` when the
/// listener must end: the handle is closed, or another listener has replaced this listener.
fn sign_of_life<D: Dialect>(store: &Weak<Store<D>>, turn: u64, pause: Duration) -> Option<Sleep> {
    let store = store.upgrade()?;
    let clock = &store.dialect().context().clock;
    let mine = store.listener.extend(turn, clock.now() + pause);
    mine.then(|| clock.sleep(pause))
}

/// Notes on drop that this listener has ended, even when the end is a shutdown of the runtime.
struct ListenerTurn<D: Dialect>(Weak<Store<D>>, u64);

impl<D: Dialect> Drop for ListenerTurn<D> {
    fn drop(&mut self) {
        if let Some(store) = self.0.upgrade() {
            store.listener.finish(self.1);
        }
    }
}
