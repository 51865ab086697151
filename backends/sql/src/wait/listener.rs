//! One listener per process and handle, where the store tells of releases.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use distlock_core::Sleep;

use super::wait_state::AFTER_FAILURE;
use crate::{dialect::Dialect, store::Store};

/// How often a listener says that it is there.
const STILL_LISTENING: Duration = Duration::from_secs(5);

/// Sees to it that somebody hears what the store tells.
pub(super) fn ensure_listening<D: Dialect>(store: &Arc<Store<D>>) {
    if let Some(turn) = store.listener.start(store.dialect().clock().now()) {
        let task = listen(Arc::downgrade(store), turn);
        store.track_task(tokio::spawn(task).abort_handle());
    }
}

/// Lets the store tell of releases, for as long as the handle is there.
async fn listen<D: Dialect>(store: Weak<Store<D>>, turn: u64) {
    let _place = ListenerTurn(Weak::clone(&store), turn);
    // The handle is not kept alive meanwhile.
    while let Some(mut told) = store.upgrade().map(|store| store.dialect().listen()) {
        let mut lost = false;
        while !lost {
            let Some(pause) = still_listening(&store, turn, STILL_LISTENING) else {
                return;
            };
            lost = tokio::select! {
                () = &mut told => true,
                () = pause => false,
            };
        }
        drop(told);
        let Some(pause) = still_listening(&store, turn, AFTER_FAILURE) else {
            return;
        };
        pause.await;
    }
}

/// A pause, after which the listener is heard of again. `None` when it is not needed any more.
fn still_listening<D: Dialect>(
    store: &Weak<Store<D>>,
    turn: u64,
    pause: Duration,
) -> Option<Sleep> {
    let store = store.upgrade()?;
    let clock = store.dialect().clock();
    let mine = store.listener.extend(turn, clock.now() + pause);
    mine.then(|| clock.sleep(pause))
}

/// Notes that nobody listens any more, also when the runtime is shut down.
struct ListenerTurn<D: Dialect>(Weak<Store<D>>, u64);

impl<D: Dialect> Drop for ListenerTurn<D> {
    fn drop(&mut self) {
        if let Some(store) = self.0.upgrade() {
            store.listener.finish(self.1);
        }
    }
}
