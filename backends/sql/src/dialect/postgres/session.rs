//! Whether each connection has a session of the server to itself.
//!
//! A pooler in transaction mode lends a session for one transaction at a time. What we have set in it would reach others and
//! be missing where it is needed, and nobody would be told of releases, so such a pooler is refused.

use std::{
    collections::HashSet,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};

use distlock_core::{Error, ErrorKind, Result};
use sqlx::{Connection as _, PgConnection};

/// A session of the server, among all it ever had: its process, and when that was started, in microseconds since 1970.
pub(super) type SessionId = (i32, i64);

/// The sessions that the connections of one opened database have now.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(Arc<Mutex<HashSet<SessionId>>>);

/// A connection and the session that is its own.
#[derive(Debug)]
pub(super) struct Session {
    // Given up before the connection is: a pooler may lend the session to our next connection at once.
    seat: Seat,
    connection: PgConnection,
}

#[derive(Debug)]
struct Seat {
    sessions: Sessions,
    id: SessionId,
}

impl Sessions {
    /// Notes whose session this is.
    ///
    /// # Errors
    /// When another connection has the same one.
    pub(super) fn seat(&self, id: SessionId, connection: PgConnection) -> Result<Session> {
        if !self.lock().insert(id) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "two connections are given the same session: a pooler in transaction mode is in between; use its session \
                 mode, or the server itself",
            ));
        }
        Ok(Session {
            seat: Seat {
                sessions: self.clone(),
                id,
            },
            connection,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<SessionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Ends it in good order.
    pub(super) async fn close(self) {
        let Self { seat, connection } = self;
        drop(seat);
        if let Err(error) = connection.close().await {
            tracing::debug!(%error, "a connection did not close cleanly");
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.id);
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}
