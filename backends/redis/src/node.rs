//! One server and the connection to it, made again when it broke.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use distlock_core::{Epoch, Result};

use crate::{
    config::Endpoint,
    connection::{Dialer, Link},
    lasting::Lasting,
};

/// A place a connection leads to.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    // Std mutexes: held to look and to swap only.
    link: Mutex<Option<Arc<Link>>>,
    /// Its history, as it was when it was last connected.
    known: Mutex<Option<Epoch>>,
    /// One dials, the others wait for what comes of it.
    dialing: tokio::sync::Mutex<Option<Lasting<Link>>>,
}

impl Node {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            link: Mutex::default(),
            known: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
        }
    }

    /// The connection, if there is one that works.
    pub(crate) fn live(&self) -> Option<Arc<Link>> {
        self.slot()
            .as_ref()
            .filter(|link| !link.is_broken())
            .map(Arc::clone)
    }

    /// The connection, made if there is none that works.
    pub(crate) async fn connect(&self, dialer: &Arc<Dialer>) -> Result<Arc<Link>> {
        self.link(dialer, || {
            let (dialer, endpoint) = (Arc::clone(dialer), self.endpoint.clone());
            async move {
                let client = dialer.client(&endpoint)?;
                dialer.dial(&client, &endpoint.to_string()).await
            }
        })
        .await
    }

    /// The connection; `dial` makes one if there is none that works.
    pub(crate) async fn link<F>(
        &self,
        dialer: &Dialer,
        dial: impl FnOnce() -> F,
    ) -> Result<Arc<Link>>
    where
        F: Future<Output = Result<Link>> + Send + 'static,
    {
        if let Some(link) = self.live() {
            return Ok(link);
        }
        let mut dialing = self.dialing.lock().await;
        if let Some(link) = self.live() {
            return Ok(link);
        }
        let link =
            Lasting::outcome(&mut dialing, &**dialer.clock(), dialer.longest(), dial).await?;
        let link = Arc::new(link);
        *lock(&self.known) = Some(link.epoch().clone());
        *self.slot() = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Its history, as far as it is known.
    pub(crate) fn known_epoch(&self) -> Option<Epoch> {
        lock(&self.known).clone()
    }

    /// Lets go of the connection.
    pub(crate) fn hang_up(&self) {
        *self.slot() = None;
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        lock(&self.link)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
