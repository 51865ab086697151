//! The connections of one handle. A connection is opened when it is first needed; opening checks
//! the tables.
//!
//! A connection that its borrower does not give back is dropped, because its state is unknown.
//!
//! No two connections share a session of the server. A pooler in transaction mode lends a session
//! to a client for one transaction at a time. The settings of a connection would then apply to
//! other clients, and would be missing in the next transaction of this connection. No notification
//! would arrive. So such a pooler is refused.

use std::{
    collections::HashSet,
    fmt::Write as _,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use distlock_backend_kit::{Lender, Loan};
use distlock_core::{Clock, Epoch, Error, ErrorKind, Moment, Result, at_most, sync::Mutex};
use sqlx::{Connection as _, PgConnection};

use super::{
    connect::{NewSession, connect, former_primary, with_connect_timeout},
    context::{StoreContext, Timeline, Timelines},
    rows::column,
    tables,
};
use crate::{
    network::{TEST_AFTER, TEST_LIMIT},
    statement_error::{StatementError, catch_panics},
};

/// A few connections. Each connection is lent to one caller at a time.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    lender: Lender<Session>,
    /// Whether a commit on these connections must be on the disk before the server answers.
    durable: bool,
}

/// A lent connection. [`LentConnection::give_back`] returns the connection to the pool. Otherwise
/// the connection is dropped, because its state is unknown.
pub(super) struct LentConnection<'a> {
    connection: Session,
    loan: Loan<'a, Session>,
}

impl ConnectionPool {
    pub(super) fn new(size: u32, durable: bool) -> Self {
        Self {
            lender: Lender::new(size, Vec::new()),
            durable,
        }
    }

    /// Waits until a connection is free, and lends it. Opens a new connection if none is open or
    /// the open one is dead.
    pub(super) async fn lend(&self, context: &StoreContext) -> Result<LentConnection<'_>> {
        let timeout = context.config.statement_timeout;
        let loan = self.lender.lend(&*context.common.clock, timeout).await?;
        if let Some(mut connection) = loan.take_idle() {
            // Another connection may have met the new primary, while this one's server still takes
            // writes. Both would grant the same lock.
            if connection.is_usable(&*context.common.clock).await
                && !connection.is_former(&context.timelines)
            {
                return Ok(LentConnection { connection, loan });
            }
            // The others were opened to the same server, by the same way.
            loan.drop_idle();
        }
        let connection = open(context, self.durable).await?;
        Ok(LentConnection { connection, loan })
    }

    pub(super) async fn close(&self) {
        for connection in self.lender.close() {
            connection.close().await;
        }
    }
}

impl LentConnection<'_> {
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Returns the connection to the pool, unless `outcome` shows that the connection cannot be
    /// used again.
    pub(super) fn give_back<T>(
        self,
        outcome: Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        let broken = outcome.as_ref().err();
        if let Some(failed) = broken.filter(|failed| failed.meaning.reconnect) {
            self.loan.drop_idle();
            if failed.is_timeout() {
                self.connection.abandon();
            }
        } else {
            self.loan.give_back(self.connection);
        }
        outcome
    }
}

/// Opens a connection, checks the tables and notes the epoch.
async fn open(context: &StoreContext, durable: bool) -> Result<Session> {
    let opening = async {
        let NewSession {
            mut session,
            schema,
        } = connect(context, durable).await?;
        let tables = tables::ready(&mut session, context, &schema).await?;
        // While the tables were read, another connection may have met a later primary.
        if session
            .timeline()
            .is_some_and(|it| !context.timelines.note(it))
        {
            return Err(former_primary());
        }
        // A hosted server may hide its timeline. Then the epoch changes only if the name of the
        // tables' history changes, and a failover does not change that name.
        context.epochs.note(Epoch::new(match session.timeline() {
            Some(Timeline { system, number }) => format!("{system}-{number}-{tables}"),
            None => tables,
        }));
        let known = context.schema.get_or_init(|| schema.clone());
        if *known != schema {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "the tables are in the schema {known:?}, and there are some in {schema:?} now"
                ),
            ));
        }
        Ok(session)
    };
    let opening = with_connect_timeout(context, opening);
    context.gate.connect(&*context.common.clock, opening).await
}

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
        if !self.0.lock().taken.insert(id) {
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
        let left: Vec<_> = self.0.lock().abandoned.iter().copied().collect();
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
        self.0.lock().abandoned.retain(|id| !left.contains(id));
    }
}

impl Session {
    /// Drops the connection, and notes its session as abandoned because no answer came.
    pub(super) fn abandon(self) {
        let SessionClaim { sessions, id } = &self.claim;
        sessions.0.lock().abandoned.insert(*id);
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
        let answer = at_most(clock, TEST_LIMIT, catch_panics(test)).await;
        self.tested = now;
        let read_only = answer.and_then(|row| column::<bool>(&row.ok()?, 0).ok());
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
        self.sessions.0.lock().taken.remove(&self.id);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use distlock_core::{ManualClock, SystemClock};
    use distlock_harness::servers::postgres::PostgresServer;

    use super::*;
    use crate::{config::ServerConfig, network::TEST_AFTER};

    /// Lends a connection. Returns the number of its process on the server.
    async fn process(pool: &ConnectionPool, context: &StoreContext) -> Result<i32> {
        let mut lent = pool.lend(context).await?;
        let asking = sqlx::query_scalar("SELECT pg_backend_pid()");
        let process = asking.fetch_one(lent.connection()).await.unwrap();
        lent.give_back(Ok(())).unwrap();
        Ok(process)
    }

    #[tokio::test]
    async fn an_idle_connection_that_answers_the_test_is_lent_again() {
        let server = PostgresServer::start().unwrap();
        let config = ServerConfig::from_url(&server.url()).unwrap();
        let clock = ManualClock::new();
        let context = StoreContext::new(config, Arc::new(clock.clone())).unwrap();
        let pool = ConnectionPool::new(1, true);
        let first = process(&pool, &context).await.unwrap();
        clock.advance(TEST_AFTER * 2);
        assert_eq!(process(&pool, &context).await.unwrap(), first);

        // A connection that the server has ended fails the test.
        let end = format!("SELECT pg_terminate_backend({first}, 5000)");
        server.sql(&end).unwrap();
        clock.advance(TEST_AFTER * 2);
        assert_ne!(process(&pool, &context).await.unwrap(), first);
    }

    /// Another connection finds a later timeline while a connection of the pool is idle.
    #[tokio::test]
    async fn an_open_connection_to_a_former_primary_is_not_lent_again() {
        let server = PostgresServer::start().unwrap();
        let address = server.address().to_string();
        let both = server
            .url()
            .replace(&address, &format!("{address},{address}"));
        for (url, is_refused) in [(server.url(), false), (both, true)] {
            let config = ServerConfig::from_url(&url).unwrap();
            let context = StoreContext::new(config, Arc::new(SystemClock)).unwrap();
            let pool = ConnectionPool::new(1, true);
            let first = process(&pool, &context).await.unwrap();
            assert_eq!(process(&pool, &context).await.unwrap(), first);

            let system = "SELECT system_identifier FROM pg_control_system()";
            assert!(context.timelines.note(&Timeline {
                system: server.sql(system).unwrap(),
                number: "FFFFFFFF".to_owned(),
            }));
            let lent = process(&pool, &context).await;
            if is_refused {
                let error = lent.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                let whole = format!("{error:?}");
                assert!(whole.contains("former primary"), "{whole}");
                continue;
            }
            // The only server is the right one, also after it was restored from an older copy.
            assert_ne!(lent.unwrap(), first);
        }
    }
}
