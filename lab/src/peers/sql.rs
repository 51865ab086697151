//! MySQL, MariaDB and Postgres: the plain ways beside distlock, all against one server.

use std::{sync::Arc, time::Duration};

use distlock_core::{DistLock, SystemClock};
use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::PostgresServer,
};
use distlock_report::{Arm, Options, Report, Workload};
use distlock_sql::{MySql, Postgres, ServerConfig};
use sqlx::{MySqlConnection, PgConnection};

use super::{
    floor::{Database, Floor},
    plain::{NamedLocks, PlainDatabase, RowLocks},
    target::{Target, measure_beside},
};

/// The number of connections of the arm with named locks. Each caller needs a connection of its
/// own, and a server limits the number of connections.
const MANY: u32 = 64;

/// Starts a private server that syncs its disk. `delay` is added to each direction.
pub(crate) fn start_mysql(product: Product, delay: Option<Duration>) -> anyhow::Result<Target> {
    let server = MySqlServer::start(product)?;
    let (address, url) = (server.address(), server.url());
    Target::private_server(server, address, &url, delay)
}

/// As [`start_mysql`].
pub(crate) fn start_postgres(delay: Option<Duration>) -> anyhow::Result<Target> {
    let server = PostgresServer::with(&["fsync=on"])?;
    let (address, url) = (server.address(), server.url());
    Target::private_server(server, address, &url, delay)
}

/// Measures the arms on the server at `url`.
pub(crate) async fn run_mysql(
    workload: Workload,
    options: Options,
    url: &str,
) -> anyhow::Result<Report> {
    let store = MySql::open(ServerConfig::from_url(url)?, Arc::new(SystemClock)).await?;
    let names = [
        "mysql-plain",
        "mysql-get-lock",
        "mysql-update",
        "distlock-mysql",
    ];
    run::<sqlx::MySql, MySqlConnection>(names, store.lock(), workload, options, url).await
}

/// As [`run_mysql`].
pub(crate) async fn run_postgres(
    workload: Workload,
    options: Options,
    url: &str,
) -> anyhow::Result<Report> {
    let store = Postgres::open(ServerConfig::from_url(url)?, Arc::new(SystemClock)).await?;
    let names = [
        "postgres-plain",
        "postgres-advisory",
        "postgres-update",
        "distlock-postgres",
    ];
    run::<sqlx::Postgres, PgConnection>(names, store.lock(), workload, options, url).await
}

/// `names` are those of the rows as locks, the named locks, the lower bound, and distlock.
async fn run<D: PlainDatabase, C: Database>(
    [rows, named, floor, ours]: [&str; 4],
    lock: Arc<dyn DistLock>,
    workload: Workload,
    options: Options,
    url: &str,
) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let connections = ServerConfig::from_url(url)?.pool_size;
    let mut arms = vec![
        Arm::new(rows, RowLocks::<D>::create(url, connections).await?),
        Arm::new(named, NamedLocks::<D>::connect(url, MANY).await?),
    ];
    if workload.shares_one_name() {
        arms.push(Arm::new(floor, Floor::<C>::create(url).await?));
    }
    measure_beside(arms, ours, lock, workload, &options).await
}
