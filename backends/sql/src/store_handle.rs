//! Opens handles on a store and starts the reaper of each.

use std::{sync::Arc, time::Duration};

use crate::{dialect::Dialect, reaper, store::Store};

/// The first handle, for locks and for records.
pub(crate) fn open_store<D: Dialect>(dialect: D) -> Arc<Store<D>> {
    start(Store::new(dialect, 2), reaper::first_pause())
}

/// One more handle, for locks or for records. It reaps as well: the runtime that the first handle
/// was opened on may end before this one.
pub(crate) fn reopen_store<D: Dialect>(dialect: D) -> Arc<Store<D>> {
    let pause = reaper::pause(&dialect);
    start(Store::new(dialect, 1), pause)
}

fn start<D: Dialect>(store: Arc<Store<D>>, pause: Duration) -> Arc<Store<D>> {
    let task = reaper::reap_periodically(Arc::downgrade(&store), pause);
    store.track_task(tokio::spawn(task).abort_handle());
    store
}
