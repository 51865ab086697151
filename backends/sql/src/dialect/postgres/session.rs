//! Checks that each connection has a session of the server to itself.
//!
//! A pooler in transaction mode lends a session for one transaction at a time. Our settings would
//! reach other clients and would be missing where they are needed, and no notification would
//! arrive. So such a pooler is refused.

use std::{
    collections::HashSet,
    fmt::Write as _,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};

use distlock_core::{Error, ErrorKind, Result};
use sqlx::{Connection as _, PgConnection};

use crate::driver_panics::catch_panics;

/// Identifies a session among all sessions that the server ever had: its process, and the start of
/// that process in microseconds since 1970.
pub(super) type SessionId = (i32, i64);

/// The sessions that the connections of one opened database have now.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(Arc<Mutex<KnownSessions>>);

#[derive(Debug, Default)]
struct KnownSessions {
    taken: HashSet<SessionId>,
    /// The sessions that were abandoned because no answer came. The server limits the time of
    /// everything they do, except for a commit that waits for a standby: if the standby is gone,
    /// such sessions would fill the server up.
    abandoned: HashSet<SessionId>,
}

/// A connection and the session that is its own.
#[derive(Debug)]
pub(super) struct Session {
    // The claim is dropped before the connection: a pooler may lend the session to our next
    // connection at once.
    claim: SessionClaim,
    connection: PgConnection,
}

#[derive(Debug)]
struct SessionClaim {
    sessions: Sessions,
    id: SessionId,
}

impl Sessions {
    /// Claims a session for one connection.
    ///
    /// # Errors
    ///
    /// Another connection has the same session.
    pub(super) fn claim(&self, id: SessionId, connection: PgConnection) -> Result<Session> {
        if !self.lock().taken.insert(id) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "two connections are given the same session: a pooler in transaction mode is in \
                    between; use its session \
                 mode, or the server itself",
            ));
        }
        Ok(Session {
            claim: SessionClaim {
                sessions: self.clone(),
                id,
            },
            connection,
        })
    }

    /// A query that ends the abandoned sessions that still wait for a standby, and the list of
    /// these sessions. It ends only sessions with our application name: a pooler may have lent one
    /// to another program meanwhile.
    pub(super) fn end_abandoned(&self) -> (String, Vec<SessionId>) {
        let left: Vec<_> = self.lock().abandoned.iter().copied().collect();
        let mut ids = String::from("(0, 0::int8)");
        for (process, started) in &left {
            let _ = write!(ids, ", ({process}, {started})");
        }
        let end = format!(
            "SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_get_activity(NULL) a
              WHERE (a.pid, (extract(epoch FROM a.backend_start) * 1000000)::int8) IN (VALUES {ids})
                AND a.wait_event = 'SyncRep' AND a.application_name = \
                    current_setting('application_name')"
        );
        (end, left)
    }

    /// Forgets these sessions, which the query has ended.
    pub(super) fn forget(&self, left: &[SessionId]) {
        self.lock().abandoned.retain(|id| !left.contains(id));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, KnownSessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Abandons the session, because no answer came.
    pub(super) fn abandon(self) {
        let SessionClaim { sessions, id } = &self.claim;
        sessions.lock().abandoned.insert(*id);
    }

    /// Closes the connection in good order.
    pub(super) async fn close(self) {
        let Self { claim, connection } = self;
        drop(claim);
        if let Err(error) = catch_panics(connection.close()).await {
            tracing::debug!(%error, "a connection did not close cleanly");
        }
    }
}

impl Drop for SessionClaim {
    fn drop(&mut self) {
        self.sessions.lock().taken.remove(&self.id);
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
