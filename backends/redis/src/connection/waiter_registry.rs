//! The waiters of this process, by key, and the listener that passes the server's pushes on to
//! them.
//!
//! A wake-up that comes before its waiter listens is kept, so no wake-up is lost. No function here
//! may block, because the driver's task calls them. The driver's task for a connection owns the
//! listener. When the listener is dropped, for whatever reason, the connection is broken and every
//! waiter is woken.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use distlock_core::sync::Mutex;
use redis::{
    PushInfo, PushKind, Value,
    aio::{AsyncPushSender, SendError},
};
use tokio::sync::Notify;

/// The waiters of one handle, by the key that they wait for.
#[derive(Debug, Default)]
pub(crate) struct WaiterRegistry {
    // A blocking mutex: it is held for map operations only, because the driver's push handler must
    // not block.
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
        self.by_key
            .lock()
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
        let map = self.by_key.lock();
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
        self.by_key
            .lock()
            .values()
            .flatten()
            .for_each(|wake| wake.notify_one());
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
        let mut map = self.waiters.by_key.lock();
        if let Some(waiting) = map.get_mut(&self.key) {
            waiting.retain(|wake| !Arc::ptr_eq(wake, &self.wake));
            if waiting.is_empty() {
                map.remove(&self.key);
            }
        }
    }
}

/// State that a connection and the driver's task for it share.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    /// Set when the connection broke, and never reset.
    pub(super) broken: AtomicBool,
    /// Whether the attempt to connect succeeded. Then waiters may rely on this connection's pushes.
    pub(super) used: AtomicBool,
}

/// Receives the server's pushes. The listener is dropped together with the driver's task. When a
/// runtime is dropped, that drop is the only sign: no disconnection is reported, and no more pushes
/// arrive.
pub(super) struct PushListener {
    pub(super) state: Arc<ConnectionState>,
    pub(super) waiters: Arc<WaiterRegistry>,
}

impl AsyncPushSender for PushListener {
    // The driver calls this function in its own task, so the function must not block.
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Invalidate => self.waiters.keys_changed(&push.data),
            // After this push the driver's task ends and drops the listener.
            PushKind::Disconnection => self.state.broken.store(true, Ordering::Release),
            _ => {}
        }
        Ok(())
    }
}

impl Drop for PushListener {
    fn drop(&mut self) {
        self.state.broken.store(true, Ordering::Release);
        // The connection may have lost a push, so its waiters must look at their locks. No waiter
        // relies on an attempt to connect that failed, so such an attempt wakes nobody.
        if self.state.used.load(Ordering::Acquire) {
            self.waiters.wake_all();
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
        assert!(waiters.by_key.lock().is_empty());
    }
}
