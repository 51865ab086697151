//! The connections of one handle. A connection is opened when it is first needed; opening checks
//! the tables.
//!
//! A connection that its borrower does not give back is dropped, because its state is unknown.

use distlock_backend_kit::{Lender, Loan};
use distlock_core::{Epoch, Error, ErrorKind, Result};
use sqlx::PgConnection;

use super::{
    connect::{NewSession, connect, former_primary, with_connect_timeout},
    context::StoreContext,
    session::Session,
    tables,
    timeline::Timeline,
};
use crate::statement_error::StatementError;

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
