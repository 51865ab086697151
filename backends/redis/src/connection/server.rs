//! One server and the connection to it.
//!
//! A server has at most one working connection. The server makes another connection when the old
//! one is broken.

use std::sync::Arc;

use distlock_core::Result;

use crate::{
    config::Endpoint,
    connection::{
        connector::Connector,
        open_connection::Connection,
        server_epoch::{ServerEpoch, ServerEpochs},
        single_flight::SingleFlight,
    },
};

/// A server of a handle, with its address.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) endpoint: Endpoint,
    server_epoch: Arc<ServerEpoch>,
    connection: SingleFlight<Arc<Connection>>,
}

impl Server {
    pub(crate) fn new(endpoint: Endpoint, server_epochs: &ServerEpochs) -> Self {
        Self {
            server_epoch: server_epochs.of(&endpoint),
            endpoint,
            connection: SingleFlight::default(),
        }
    }

    /// Returns the connection if it works and was not idle.
    pub(crate) fn live(&self) -> Option<Arc<Connection>> {
        self.connection
            .latest()
            .filter(|connection| connection.is_ready())
    }

    /// Returns the connection, after a test if it was idle, and makes one if none works. Concurrent
    /// callers share the attempt.
    pub(crate) async fn connect(&self, connector: &Arc<Connector>) -> Result<Arc<Connection>> {
        let works = |connection: &Arc<Connection>| connection.is_ready();
        let idle = self.connection.latest();
        let idle = idle.filter(|connection| !connection.is_broken());
        let make = || {
            let (connector, endpoint) = (Arc::clone(connector), self.endpoint.clone());
            let server_epoch = Arc::clone(&self.server_epoch);
            async move {
                if let Some(idle) = idle
                    && idle.is_alive().await
                {
                    return Ok(idle);
                }
                let connection = connector.connect(&endpoint, server_epoch).await?;
                Ok(Arc::new(connection))
            }
        };
        let longest = connector.max_connect_time();
        self.connection
            .get(&**connector.clock(), longest, works, make)
            .await
    }

    /// Closes the connection. After this no other connection is made.
    pub(crate) fn close(&self) {
        self.connection.close();
    }
}
