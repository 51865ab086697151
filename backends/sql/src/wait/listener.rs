//! One listener for each process and handle, where the store notifies of releases.
//!
//! The listener runs as a singleton task and keeps the handle open for no longer than one step.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use distlock_core::Sleep;

use super::wait_state::AFTER_FAILURE;
use crate::{dialect::Dialect, store::Store};

/// How often a listener gives a sign of life.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(5);

/// Makes sure that a task receives the store's notifications.
pub(super) fn ensure_listening<D: Dialect>(store: &Arc<Store<D>>) {
    if let Some(turn) = store.listener.start(store.dialect().clock().now()) {
        let task = listen(Arc::downgrade(store), turn);
        store.track_task(tokio::spawn(task).abort_handle());
    }
}

/// Receives the store's notifications for as long as the handle exists.
async fn listen<D: Dialect>(store: Weak<Store<D>>, turn: u64) {
    let _running = ListenerTurn(Weak::clone(&store), turn);
    // The strong reference is dropped here: a listener must not keep the handle open.
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

/// A pause after which the listener gives its next sign of life. `None` when this listener is not
/// needed any more.
fn sign_of_life<D: Dialect>(store: &Weak<Store<D>>, turn: u64, pause: Duration) -> Option<Sleep> {
    let store = store.upgrade()?;
    let clock = store.dialect().clock();
    let mine = store.listener.extend(turn, clock.now() + pause);
    mine.then(|| clock.sleep(pause))
}

/// Notes that this listener has ended, also when the runtime is shut down.
struct ListenerTurn<D: Dialect>(Weak<Store<D>>, u64);

impl<D: Dialect> Drop for ListenerTurn<D> {
    fn drop(&mut self) {
        if let Some(store) = self.0.upgrade() {
            store.listener.finish(self.1);
        }
    }
}
