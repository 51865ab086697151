//! MySQL and MariaDB: the plain ways beside distlock, all against one server.

use std::{sync::Arc, time::Duration};

use distlock_core::SystemClock;
use distlock_harness::servers::mysql::{MySqlServer, Product};
use distlock_report::{Arm, LockerSubject, Options, Report, Workload, measure};
use distlock_sql::{MySql, ServerConfig};
use sqlx::MySqlConnection;

use crate::peers::{
    floor::Floor,
    plain::{NamedLocks, RowLocks},
    target::Target,
};

/// The number of connections of the arm with named locks. Each caller needs a connection of its
/// own, and a server limits the number of connections.
const MANY: u32 = 64;

/// Starts a private server that syncs its disk. `delay` is added to each direction.
pub(crate) fn start_private(product: Product, delay: Option<Duration>) -> anyhow::Result<Target> {
    let server = MySqlServer::start(product)?;
    let (address, url) = (server.address(), server.url());
    Target::private_server(server, address, &url, delay)
}

/// Measures the arms on the server at `url`.
pub(crate) async fn run(workload: Workload, options: Options, url: &str) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let config = ServerConfig::from_url(url)?;
    let plain = RowLocks::<sqlx::MySql>::create(url, config.pool_size).await?;
    let mut arms = vec![Arm::new("mysql-plain", plain)];
    arms.push(Arm::new(
        "mysql-get-lock",
        NamedLocks::<sqlx::MySql>::connect(url, MANY).await?,
    ));
    if workload.shares_one_name() {
        let floor = Floor::<MySqlConnection>::create(url).await?;
        arms.push(Arm::new("mysql-update", floor));
    }
    let store = MySql::open(config, Arc::new(SystemClock)).await?;
    let subject = LockerSubject::new(store.lock());
    let locker = subject.locker().clone();
    locker.ready().await?;
    arms.push(Arm::new("distlock-mysql", subject));
    let report = measure(&arms, workload, &options).await?;
    locker.close().await;
    Ok(report)
}
