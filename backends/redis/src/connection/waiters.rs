//! Who waits for what in this process, and how a push of the server finds them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redis::Value;
use tokio::sync::Notify;

/// The waiters of one handle, by the key of the lock they wait for.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    // A std mutex: it is held for map operations only, and the driver's push handler must not wait.
    by_key: Mutex<HashMap<Box<str>, Vec<Arc<Notify>>>>,
}

/// A place among them. It is given up when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    waiters: Arc<Waiters>,
    key: Box<str>,
    wake: Arc<Notify>,
}

impl Waiters {
    /// Joins. A wake-up that comes before anybody listens is kept.
    pub(crate) fn join(self: &Arc<Self>, key: &str) -> Place {
        let wake = Arc::new(Notify::new());
        self.map()
            .entry(key.into())
            .or_default()
            .push(Arc::clone(&wake));
        Place {
            waiters: Arc::clone(self),
            key: key.into(),
            wake,
        }
    }

    /// The server says that these keys changed; nothing in the list = everything did.
    pub(crate) fn invalidated(&self, data: &[Value]) {
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

impl Place {
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Waits for a wake-up.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl Drop for Place {
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
    fn a_push_wakes_who_waits_for_that_key_and_nobody_else() {
        let waiters = Arc::new(Waiters::default());
        let (a, also_a, b) = (waiters.join("a"), waiters.join("a"), waiters.join("b"));
        waiters.invalidated(&push(&["a", "unknown"]));
        assert!(a.woken().now_or_never().is_some());
        assert!(also_a.woken().now_or_never().is_some());
        assert!(b.woken().now_or_never().is_none());
        // Kept once, however often it came.
        waiters.invalidated(&push(&["b", "b"]));
        assert!(b.woken().now_or_never().is_some());
        assert!(b.woken().now_or_never().is_none());
    }

    #[test]
    fn a_flush_wakes_everybody() {
        let waiters = Arc::new(Waiters::default());
        let (a, b) = (waiters.join("a"), waiters.join("b"));
        waiters.invalidated(&[Value::Nil]);
        assert!(a.woken().now_or_never().is_some() && b.woken().now_or_never().is_some());
    }

    #[test]
    fn who_leaves_is_forgotten() {
        let waiters = Arc::new(Waiters::default());
        drop((waiters.join("a"), waiters.join("a"), waiters.join("b")));
        assert!(waiters.map().is_empty());
    }
}
