//! Postgres: the plain ways beside distlock, all against one server.

use std::{sync::Arc, time::Duration};

use distlock_core::SystemClock;
use distlock_harness::servers::postgres::PostgresServer;
use distlock_report::{Arm, LockerSubject, Options, Report, Workload, measure};
use distlock_sql::{Postgres, ServerConfig};
use sqlx::PgConnection;

use crate::peers::{
    floor::Floor,
    plain::{NamedLocks, RowLocks},
    target::Target,
};

/// The number of connections of the arm with advisory locks. Each caller needs a connection of its
/// own, and a server limits the number of connections.
const MANY: u32 = 64;

/// Starts a private server that syncs its disk. `delay` is added to each direction.
pub(crate) fn start_private(delay: Option<Duration>) -> anyhow::Result<Target> {
    let server = PostgresServer::with(&["fsync=on"])?;
    let (address, url) = (server.address(), server.url());
    Target::private_server(server, address, &url, delay)
}

/// Measures the arms on the server at `url`.
pub(crate) async fn run(workload: Workload, options: Options, url: &str) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let config = ServerConfig::from_url(url)?;
    let plain = RowLocks::<sqlx::Postgres>::create(url, config.pool_size).await?;
    let mut arms = vec![Arm::new("postgres-plain", plain)];
    let advisory = NamedLocks::<sqlx::Postgres>::connect(url, MANY).await?;
    arms.push(Arm::new("postgres-advisory", advisory));
    if workload.shares_one_name() {
        let floor = Floor::<PgConnection>::create(url).await?;
        arms.push(Arm::new("postgres-update", floor));
    }
    let store = Postgres::open(config, Arc::new(SystemClock)).await?;
    let subject = LockerSubject::new(store.lock());
    let locker = subject.locker().clone();
    locker.ready().await?;
    arms.push(Arm::new("distlock-postgres", subject));
    let report = measure(&arms, workload, &options).await?;
    locker.close().await;
    Ok(report)
}
