//! The second handle on the store, with its own connections, that the keeper thread uses for
//! renewals, background releases and clean-up.
//!
//! This module owns the handle and opens it. Invariant: an open handle is never replaced. Renewals
//! must never use a caller's connection: when the caller's runtime is blocked, the connections of
//! that runtime are blocked too.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    clock::Clock,
    contract::DistLock,
    engine::{log, outage::pause_after},
    types::error::{Error, ErrorKind, Result},
};

/// The keeper's handle: not opened yet, failed to open, or open.
pub(crate) struct OwnConnection {
    state: watch::Sender<Option<Result<Arc<dyn DistLock>>>>,
}

impl OwnConnection {
    pub(super) fn new() -> Self {
        Self {
            state: watch::Sender::new(None),
        }
    }

    /// Waits for the result of the first try to open the handle.
    ///
    /// # Errors
    /// The error of that first try. After an error, the keeper still tries again in the background.
    pub(super) async fn ready(&self) -> Result<()> {
        let mut state = self.state.subscribe();
        match state.wait_for(Option::is_some).await {
            Ok(state) => match &*state {
                Some(Err(error)) => Err(error.clone()),
                Some(Ok(_)) | None => Ok(()),
            },
            Err(_) => Err(Error::new(
                ErrorKind::Internal,
                "the renewal thread is gone",
            )),
        }
    }

    /// Waits until the handle is open, and returns it. The wait has no end while opening fails.
    pub(crate) async fn handle(&self) -> Arc<dyn DistLock> {
        let mut state = self.state.subscribe();
        loop {
            if let Some(Ok(handle)) = &*state.borrow_and_update() {
                return Arc::clone(handle);
            }
            // The wait cannot fail, because the sender lives in `self`.
            let _ = state.changed().await;
        }
    }

    /// The handle, if it is open.
    pub(super) fn handle_if_open(&self) -> Option<Arc<dyn DistLock>> {
        match &*self.state.borrow() {
            Some(Ok(handle)) => Some(Arc::clone(handle)),
            Some(Err(_)) | None => None,
        }
    }

    /// The error of a renewal while the keeper's handle is not open. The error of the last try to
    /// open the handle is its cause.
    pub(super) fn not_open_error(&self) -> Error {
        let error = Error::new(
            ErrorKind::Unavailable,
            "the connection for renewals is not open",
        );
        match &*self.state.borrow() {
            Some(Err(cause)) => error.caused_by(cause.clone()),
            Some(Ok(_)) | None => error,
        }
    }

    /// Notes that the handle could not be opened.
    pub(super) fn note_failure(&self, error: Error) {
        self.state.send_replace(Some(Err(error)));
    }

    /// Opens the handle. After a failure, tries again with growing pauses until a try succeeds.
    pub(super) async fn open(&self, clock: &dyn Clock, backend: Arc<dyn DistLock>) {
        let mut failures = 0;
        loop {
            let error = match backend.reopen().await {
                Ok(handle) => {
                    self.state.send_replace(Some(Ok(handle)));
                    return;
                }
                Err(error) => error,
            };
            failures += 1;
            self.note_failure(error.clone());
            let own = || pause_after(failures);
            let pause = error.retry_pause().unwrap_or_else(own);
            log::write(move || {
                tracing::warn!(%error, "cannot open the connection for renewals, trying again");
            });
            clock.sleep(pause).await;
        }
    }
}
