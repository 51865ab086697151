//! MySQL and MariaDB, on real servers.
#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]

#[path = "../common/batches.rs"]
mod batches;
mod clock;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod counts;
mod failover;
mod fake_servers;
mod faults;
mod fence;
#[path = "../common/fake_servers.rs"]
mod garbage;
mod hosts;
mod many_tasks;
mod open;
mod schema;
#[path = "../common/servers.rs"]
mod servers;
mod store_queue;
#[path = "../common/store_queue.rs"]
mod store_queue_cases;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Arc;

use distlock_core::{Locker, Result, Store, SystemClock};
use distlock_harness::{
    FaultProxy,
    servers::mysql::{MySqlServer, Product},
};
use distlock_kv::KvLock;
use distlock_sql::{MySql, ServerConfig};

/// Runs each test on both products, each time with a new server.
macro_rules! on_both {
    ($($name:ident => $test:ident;)*) => {$(
        mod $name {
            use distlock_harness::servers::mysql::Product;

            #[tokio::test(flavor = "multi_thread")]
            async fn mariadb() {
                super::$test(Product::MariaDb).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn mysql() {
                super::$test(Product::MySql).await;
            }
        }
    )*};
}
pub(crate) use on_both;

fn start(product: Product) -> MySqlServer {
    MySqlServer::start(product).expect("starts")
}

/// The ids of the server's TCP sessions. The server's own client uses no TCP.
fn sessions(server: &MySqlServer) -> Vec<String> {
    // MySQL's table of sessions fails on statements that are not text.
    let shown = server.sql("SHOW PROCESSLIST").unwrap();
    let lines = shown.lines().filter_map(|line| {
        let [id, _, host, database, ..] = *line.split('\t').collect::<Vec<_>>() else {
            return None;
        };
        (host.starts_with("127.0.0.1") && database == "distlock").then(|| id.to_owned())
    });
    lines.collect()
}

/// A server, a proxy before it, and the address of the proxy.
async fn behind_a_proxy(product: Product) -> (MySqlServer, FaultProxy, String) {
    let server = start(product);
    let proxy = FaultProxy::start(server.address()).await.expect("listens");
    let port = |address: std::net::SocketAddr| format!(":{}/", address.port());
    let (its, ours) = (port(server.address()), port(proxy.address()));
    let url = server.url().replace(&its, &ours);
    (server, proxy, url)
}

async fn mysql(url: &str) -> Result<MySql> {
    MySql::open(ServerConfig::from_url(url)?, Arc::new(SystemClock)).await
}

async fn open(url: String) -> Result<Store> {
    let mysql = mysql(&url).await?;
    Ok(Store::new(mysql.lock(), mysql.records()))
}

async fn over_records(url: String) -> Result<Store> {
    let records = open(url).await?.records();
    Ok(Store::new(
        Arc::new(KvLock::new(Arc::clone(&records))?),
        records,
    ))
}

/// A locker whose keeper thread has connected.
async fn locker(url: &str) -> Locker {
    let locker = Locker::new(mysql(url).await.expect("opens").lock());
    locker.ready().await.expect("connects");
    locker
}
