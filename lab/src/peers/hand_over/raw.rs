//! Connections for a run: distlock's store, and a connection for the server's smallest request.

use std::{path::Path, sync::Arc};

use distlock_core::{Store, SystemClock};
use distlock_sql::{MySql, Postgres, Product, ServerConfig};
use distlock_wire::v1::{CheckHealth, lock_service_client::LockServiceClient};
use sqlx::{Connection as _, MySqlConnection, PgConnection, SqliteConnection};
use tonic::transport::Channel;
use zookeeper_client::Client;

use crate::peers::{
    floor::{self, Database as _},
    raw_redis::RawRedis,
    redis, server, sqlite, zookeeper,
};

/// Opens distlock's store for a URL.
pub(in crate::peers) async fn open_store(url: &str) -> anyhow::Result<Store> {
    if let Some(servers) = zookeeper::servers_in_url(url) {
        let store = zookeeper::open(servers).await?;
        return Ok(Store::new(store.lock(), store.records()));
    }
    if url.starts_with("distlock:") {
        return Ok(distlock::open(url).await?);
    }
    let clock = Arc::new(SystemClock);
    if let Some(file) = url.strip_prefix("sqlite:") {
        let store = sqlite::open(Path::new(file)).await?;
        return Ok(Store::new(store.lock(), store.records()));
    }
    let (lock, records) = match Product::of(scheme(url)) {
        None => {
            let store = redis::open(url).await?;
            (store.lock(), store.records())
        }
        Some(Product::Postgres) => {
            let store = Postgres::open(ServerConfig::from_url(url)?, clock).await?;
            (store.lock(), store.records())
        }
        Some(_) => {
            let store = MySql::open(ServerConfig::from_url(url)?, clock).await?;
            (store.lock(), store.records())
        }
    };
    Ok(Store::new(lock, records))
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or(url)
}

/// A connection on which the time of the smallest request is measured.
pub(super) enum RawConnection {
    LockServer(LockServiceClient<Channel>),
    Sqlite(SqliteConnection),
    ZooKeeper(&'static Client),
    Redis(RawRedis),
    MySql(MySqlConnection),
    Postgres(PgConnection),
}

impl RawConnection {
    pub(super) async fn connect(url: &str) -> anyhow::Result<Self> {
        if let Some(servers) = zookeeper::servers_in_url(url) {
            return Ok(Self::ZooKeeper(zookeeper::connect_client(servers).await?));
        }
        if url.starts_with("distlock:") {
            return Ok(Self::LockServer(server::connect(url).await?));
        }
        if url.starts_with("sqlite:") {
            return Ok(Self::Sqlite(SqliteConnection::connect(url).await?));
        }
        Ok(match Product::of(scheme(url)) {
            None => Self::Redis(RawRedis::connect(url).await?),
            Some(Product::Postgres) => Self::Postgres(PgConnection::connect(url).await?),
            Some(_) => Self::MySql(MySqlConnection::connect(url).await?),
        })
    }

    /// Sends the server's smallest request and awaits its answer.
    pub(super) async fn ping(&mut self) -> anyhow::Result<()> {
        const SMALLEST: &str = "SELECT 1";
        match self {
            Self::LockServer(server) => drop(server.health(CheckHealth {}).await?),
            Self::Redis(redis) => redis.ping().await?,
            Self::ZooKeeper(client) => drop(client.check_stat("/").await?),
            Self::Sqlite(sqlite) => {
                sqlx::query(SMALLEST).execute(sqlite).await?;
            }
            Self::MySql(mysql) => mysql.run(SMALLEST).await?,
            Self::Postgres(postgres) => postgres.run(SMALLEST).await?,
        }
        Ok(())
    }

    /// Creates a row for [`make_durable_change`](Self::make_durable_change). Returns false for a
    /// store whose durable changes are not measured.
    pub(super) async fn prepare_changes(&mut self) -> anyhow::Result<bool> {
        match self {
            Self::LockServer(_) | Self::Redis(_) | Self::ZooKeeper(_) | Self::Sqlite(_) => {
                return Ok(false);
            }
            Self::MySql(mysql) => floor::create_row(mysql).await?,
            Self::Postgres(postgres) => floor::create_row(postgres).await?,
        }
        Ok(true)
    }

    /// Changes the row, and returns when the change is on the disk.
    pub(super) async fn make_durable_change(&mut self) -> anyhow::Result<()> {
        match self {
            Self::LockServer(_) | Self::Redis(_) | Self::ZooKeeper(_) | Self::Sqlite(_) => {}
            Self::MySql(mysql) => floor::update_row(mysql).await?,
            Self::Postgres(postgres) => floor::update_row(postgres).await?,
        }
        Ok(())
    }
}
