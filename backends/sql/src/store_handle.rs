//! Opens handles on a store and starts the reaper of each.

use std::{sync::Arc, time::Duration};

use crate::{dialect::Dialect, reaper, store::Store};

/// The first handle on a store, with the parts locks and records.
pub(crate) fn open_store<D: Dialect>(dialect: D) -> Arc<Store<D>> {
    start(Store::new(dialect, 2), reaper::first_pause())
}

/// One more handle on a store, for locks or for records. This handle reaps too, because the runtime
/// of the first handle may end before the runtime of this handle.
pub(crate) fn reopen_store<D: Dialect>(dialect: D) -> Arc<Store<D>> {
    let pause = reaper::pause(&dialect);
    start(Store::new(dialect, 1), pause)
}

fn start<D: Dialect>(store: Arc<Store<D>>, pause: Duration) -> Arc<Store<D>> {
    let task = reaper::reap_periodically(Arc::downgrade(&store), pause);
    store.track_task(tokio::spawn(task).abort_handle());
    store
}
