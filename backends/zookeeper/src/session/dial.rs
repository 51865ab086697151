//! Opens a client of the ensemble. No error may contain a password.

use std::time::Duration;

use distlock_backend_kit::Credentials;
use distlock_core::{Error, Result};
use zookeeper_client as zk;

use super::StoreContext;
use crate::error::{Access, translate};

/// The longest time without an answer after which the client gives a connection up, also in a long
/// session. The client sends a ping on a connection that was silent for up to half of this time, so
/// a router that forgets silent connections does not forget this one. Without the limit, the client
/// would ping in a session of an hour every two minutes, and notice a dead connection after a
/// quarter of an hour.
const LONGEST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a client of the servers at `endpoints` with these credentials, whose session requests this
/// timeout.
pub(crate) async fn dial(
    context: &StoreContext,
    endpoints: &[String],
    session_timeout: Duration,
    credentials: &Credentials,
) -> Result<zk::Client> {
    let connector = zk::Client::connector()
        .with_session_timeout(session_timeout)
        // A holder trusts its lock for at most two thirds of the session timeout without an answer.
        // The client must find another server well before that time is over.
        .with_connection_timeout((session_timeout / 4).min(LONGEST_CONNECTION_TIMEOUT))
        .with_fail_eagerly();
    let connector = context.login.prepare(connector, credentials).await;
    let servers = endpoints.join(",");
    let dialled = match &context.config.tls {
        None => connector.connect(&servers).await,
        #[cfg(feature = "tls")]
        Some(_) => connector.secure_connect(&servers).await,
        #[cfg(not(feature = "tls"))]
        Some(_) => Err(zk::Error::Unimplemented),
    };
    dialled.map_err(|error| -> Error { translate(error, Access::Read).during("connect") })
}
