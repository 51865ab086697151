//! The keeper's own handle on the store.
//!
//! This module owns the handle and its opening. Invariant: once a handle is open, it stays the
//! same one. Renewals never use a caller's connection: the caller's runtime may be blocked, and its
//! connections with it.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{
    contract::DistLock,
    engine::{clock::Clock, log},
    types::error::{Error, ErrorKind, Result},
};

/// The handle once it is open; an error while opening it fails.
pub(crate) struct OwnConnection {
    state: watch::Sender<Option<Result<Arc<dyn DistLock>>>>,
}

impl OwnConnection {
    pub(super) fn new() -> Self {
        Self {
            state: watch::Sender::new(None),
        }
    }

    /// Waits for the first result of opening the handle.
    ///
    /// # Errors
    /// The error of that first try. The keeper tries again in the background all the same.
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

    /// The handle; waits while it is being opened.
    pub(crate) async fn handle(&self) -> Arc<dyn DistLock> {
        let mut state = self.state.subscribe();
        loop {
            if let Some(Ok(handle)) = &*state.borrow_and_update() {
                return Arc::clone(handle);
            }
            // The sender lives in `self`, so this cannot fail.
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

    /// The error of a renewal while the keeper's own handle on the store is not open. An error of
    /// opening that handle is its cause.
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

    /// Opens the handle, and tries again until that succeeds.
    pub(super) async fn open(&self, clock: &dyn Clock, backend: Arc<dyn DistLock>) {
        let mut pause = Duration::from_millis(100);
        loop {
            match backend.reopen().await {
                Ok(handle) => {
                    self.state.send_replace(Some(Ok(handle)));
                    return;
                }
                Err(error) => {
                    self.note_failure(error.clone());
                    log::write(move || {
                        tracing::warn!(
                            %error,
                            "cannot open the connection for renewals, trying again",
                        );
                    });
                }
            }
            clock.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }
}
