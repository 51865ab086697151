//! A backend that records which methods are called. With such a backend a case shows that no
//! request has reached the store.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::{DistLock, Result, sync::Mutex};

use crate::lock_layer::LockLayer;

/// A backend that passes its calls on to another backend. It records the name of each called method
/// that sends a request to the store, but not `reopen` and `close`.
#[derive(Clone, Debug)]
pub(crate) struct RecordingBackend {
    backend: Arc<dyn DistLock>,
    called: Arc<Mutex<Vec<&'static str>>>,
}

impl RecordingBackend {
    /// Records the calls to this backend.
    pub(crate) fn new(backend: Arc<dyn DistLock>) -> Self {
        Self {
            backend,
            called: Arc::default(),
        }
    }

    /// The methods that were called so far.
    pub(crate) fn called_methods(&self) -> Vec<&'static str> {
        self.called.lock().clone()
    }
}

#[async_trait]
impl LockLayer for RecordingBackend {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.backend)
    }

    async fn before(&self, method: &'static str) -> Result<()> {
        self.called.lock().push(method);
        Ok(())
    }

    async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            backend: self.backend.reopen().await?,
            called: Arc::clone(&self.called),
        })
    }
}
