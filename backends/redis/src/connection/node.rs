//! One server and the connection to it, made again when it broke.

use std::{future::Future, sync::Arc};

use distlock_core::Result;

use crate::{
    config::Endpoint,
    connection::{
        dialer::Dialer,
        lasting::Lasting,
        link::Link,
        standing::{Standing, Standings},
    },
};

/// A place a connection leads to.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    standing: Arc<Standing>,
    link: Lasting<Arc<Link>>,
}

impl Node {
    pub(crate) fn new(endpoint: Endpoint, standings: &Standings) -> Self {
        Self {
            standing: standings.of(&endpoint),
            endpoint,
            link: Lasting::default(),
        }
    }

    /// The connection, if there is one that works.
    pub(crate) fn live(&self) -> Option<Arc<Link>> {
        self.link.made().filter(|link| !link.is_broken())
    }

    /// The connection, made if there is none that works.
    pub(crate) async fn connect(&self, dialer: &Arc<Dialer>) -> Result<Arc<Link>> {
        self.link(dialer, |standing| {
            let (dialer, endpoint) = (Arc::clone(dialer), self.endpoint.clone());
            async move {
                let client = dialer.client(&endpoint)?;
                let address = endpoint.to_string();
                dialer.dial(&client, &address, standing).await
            }
        })
        .await
    }

    /// The connection; `dial` makes one if there is none that works.
    pub(crate) async fn link<F>(
        &self,
        dialer: &Dialer,
        dial: impl FnOnce(Arc<Standing>) -> F,
    ) -> Result<Arc<Link>>
    where
        F: Future<Output = Result<Link>> + Send + 'static,
    {
        let works = |link: &Arc<Link>| !link.is_broken();
        let make = || {
            let dialing = dial(Arc::clone(&self.standing));
            async move { dialing.await.map(Arc::new) }
        };
        self.link
            .get(&**dialer.clock(), dialer.longest(), works, make)
            .await
    }

    /// Lets go of the connection, and makes none any more.
    pub(crate) fn hang_up(&self) {
        self.link.close();
    }
}
