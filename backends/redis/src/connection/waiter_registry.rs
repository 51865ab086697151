//! The waiters of this process, by key, so that a push of the server reaches them.
//!
//! A wake-up that comes before its waiter listens is kept, so no wake-up is lost. No function here
//! may block, because the driver's task calls them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redis::Value;
use tokio::sync::Notify;

/// The waiters of one handle, by the key that they wait for.
#[derive(Debug, Default)]
pub(crate) struct WaiterRegistry {
    // A std mutex: it is held for map operations only, because the driver's push handler must not
    // block.
    by_key: Mutex<HashMap<Box<str>, Vec<Arc<Notify>>>>,
}

/// One registered waiter. Dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct RegisteredWaiter {
    waiters: Arc<WaiterRegistry>,
    key: Box<str>,
    wake: Arc<Notify>,
}

impl WaiterRegistry {
    /// Registers a waiter for a key. A wake-up that comes before the waiter listens is kept.
    pub(crate) fn register(self: &Arc<Self>, key: &str) -> RegisteredWaiter {
        let wake = Arc::new(Notify::new());
        self.map()
            .entry(key.into())
            .or_default()
            .push(Arc::clone(&wake));
        RegisteredWaiter {
            waiters: Arc::clone(self),
            key: key.into(),
            wake,
        }
    }

    /// Wakes the waiters of the keys in a push. A push without a list means that all keys may have
    /// changed.
    pub(crate) fn keys_changed(&self, data: &[Value]) {
        let Some(Value::Array(keys)) = data.first() else {
            self.wake_all();
            return;
        };
        let map = self.map();
        for key in keys {
            let key = match key {
                Value::BulkString(key) => str::from_utf8(key).ok(),
                Value::SimpleString(key) => Some(key.as_str()),
                _ => None,
            };
            let waiting = key.and_then(|key| map.get(key));
            waiting
                .into_iter()
                .flatten()
                .for_each(|wake| wake.notify_one());
        }
    }

    pub(crate) fn wake_all(&self) {
        self.map()
            .values()
            .flatten()
            .for_each(|wake| wake.notify_one());
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Box<str>, Vec<Arc<Notify>>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegisteredWaiter {
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Waits until the key may have changed.
    pub(crate) async fn notified(&self) {
        self.wake.notified().await;
    }
}

impl Drop for RegisteredWaiter {
    fn drop(&mut self) {
        let mut map = self.waiters.map();
        if let Some(waiting) = map.get_mut(&self.key) {
            waiting.retain(|wake| !Arc::ptr_eq(wake, &self.wake));
            if waiting.is_empty() {
                map.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn push(keys: &[&str]) -> Vec<Value> {
        let keys = keys
            .iter()
            .map(|key| Value::BulkString(key.as_bytes().to_vec()))
            .collect();
        vec![Value::Array(keys)]
    }

    #[test]
    fn a_push_wakes_only_the_waiters_of_its_key() {
        let waiters = Arc::new(WaiterRegistry::default());
        let (a, also_a, b) = (
            waiters.register("a"),
            waiters.register("a"),
            waiters.register("b"),
        );
        waiters.keys_changed(&push(&["a", "unknown"]));
        assert!(a.notified().now_or_never().is_some());
        assert!(also_a.notified().now_or_never().is_some());
        assert!(b.notified().now_or_never().is_none());
        // Two pushes leave only one wake-up.
        waiters.keys_changed(&push(&["b", "b"]));
        assert!(b.notified().now_or_never().is_some());
        assert!(b.notified().now_or_never().is_none());
    }

    #[test]
    fn a_flush_wakes_all_waiters() {
        let waiters = Arc::new(WaiterRegistry::default());
        let (a, b) = (waiters.register("a"), waiters.register("b"));
        waiters.keys_changed(&[Value::Nil]);
        assert!(a.notified().now_or_never().is_some() && b.notified().now_or_never().is_some());
    }

    #[test]
    fn a_dropped_waiter_is_forgotten() {
        let waiters = Arc::new(WaiterRegistry::default());
        drop((
            waiters.register("a"),
            waiters.register("a"),
            waiters.register("b"),
        ));
        assert!(waiters.map().is_empty());
    }
}
