//! Checks that no two connections share a session of the server.
//!
//! A pooler in transaction mode lends a session to a client for one transaction at a time. The
//! settings of a connection would then apply to other clients, and would be missing in the next
//! transaction of this connection. No notification would arrive. So such a pooler is refused.

use std::{
    collections::HashSet,
    fmt::Write as _,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};

use distlock_core::{Clock, Error, ErrorKind, Moment, Result};
use sqlx::{Connection as _, PgConnection};

use super::{
    rows::column,
    timeline::{Timeline, Timelines},
};
use crate::{
    driver_panics::catch_panics,
    network::{TEST_AFTER, TEST_LIMIT},
};

/// Whether the server refuses every write: it is a standby, or an administrator made it read-only.
pub(super) const TAKES_NO_WRITES: &str =
    "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'";

/// Identifies a session among all past and present sessions of the server: the number of its
/// process, and the start of that process in microseconds since 1970.
pub(super) type SessionId = (i32, i64);

/// The present sessions of all connections of one opened store.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(Arc<Mutex<KnownSessions>>);

#[derive(Debug, Default)]
struct KnownSessions {
    taken: HashSet<SessionId>,
    /// The sessions whose answers did not come within the time limit. The server stops every
    /// statement of such a session after a while, except for a commit that waits for a standby. If
    /// the standby is unreachable, such sessions would use up all connections of the server.
    abandoned: HashSet<SessionId>,
}

/// A connection, with its claim on its session.
#[derive(Debug)]
pub(super) struct Session {
    // The claim must be dropped before the connection: when the connection closes, a pooler may
    // give the session to this process's next connection at once.
    claim: SessionClaim,
    connection: PgConnection,
    /// Whether the server took no writes when the session was set up.
    read_only: bool,
    /// The server's timeline when the session was set up; `None` if the server hides it.
    timeline: Option<Timeline>,
    /// The time of the last test that the server answers.
    tested: Moment,
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
    /// [`ErrorKind::InvalidConfig`] when another connection of this store has the same session.
    pub(super) fn claim(
        &self,
        id: SessionId,
        connection: PgConnection,
        read_only: bool,
        timeline: Option<Timeline>,
        tested: Moment,
    ) -> Result<Session> {
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
            read_only,
            timeline,
            tested,
        })
    }

    /// A query that ends those abandoned sessions that still wait for a standby, and the list of
    /// all abandoned sessions. The query ends only sessions with distlock's application name: a
    /// pooler may have given an abandoned session to another program.
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

    /// Removes these sessions from the abandoned sessions, after the query of
    /// [`Self::end_abandoned`] has run.
    pub(super) fn forget(&self, left: &[SessionId]) {
        self.lock().abandoned.retain(|id| !left.contains(id));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, KnownSessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Drops the connection, and notes its session as abandoned because no answer came.
    pub(super) fn abandon(self) {
        let SessionClaim { sessions, id } = &self.claim;
        sessions.lock().abandoned.insert(*id);
    }

    /// The server's timeline; `None` if the server hides it.
    pub(super) const fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    /// Whether another connection has found a later timeline since: this session's server is a
    /// former primary. It may still take writes.
    pub(super) fn is_former(&self, timelines: &Timelines) -> bool {
        let timeline = self.timeline.as_ref();
        timeline.is_some_and(|it| timelines.has_later_than(it))
    }

    /// Whether the connection can be lent: its server answered a short time ago or answers now, and
    /// takes writes as before. See [`TEST_AFTER`].
    pub(super) async fn is_usable(&mut self, clock: &dyn Clock) -> bool {
        let now = clock.now();
        if now.since(self.tested) <= TEST_AFTER {
            return true;
        }
        // Plain text takes one round trip. The first use of a prepared statement takes two, which
        // a slow link cannot answer within the limit.
        let test = sqlx::raw_sql(TAKES_NO_WRITES).fetch_one(&mut self.connection);
        let answer = tokio::select! {
            answer = catch_panics(test) => answer.ok(),
            () = clock.sleep(TEST_LIMIT) => None,
        };
        self.tested = now;
        let read_only = answer.and_then(|row| column::<bool>(&row, 0).ok());
        read_only == Some(self.read_only)
    }

    /// Closes the connection with a message to the server.
    pub(super) async fn close(self) {
        let Self {
            claim, connection, ..
        } = self;
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
