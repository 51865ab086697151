//! The main scenarios over the servers, one server each.

use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::PostgresServer,
    redis::RedisServer,
    zookeeper::ZooKeeper,
};

use crate::{scenarios, world::World};

async fn main_scenarios(backend: &str, url: &str) {
    let world = |name: &str| World::new(&format!("{backend}-{name}"), url);
    Box::pin(scenarios::takeovers(world("takeovers"))).await;
    Box::pin(scenarios::fifty_at_once(world("fifty"), &["n1", "n2"])).await;
    Box::pin(scenarios::killed_node(world("killed"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let mut server = tokio::task::block_in_place(RedisServer::start).unwrap();
    let url = server.url();
    Box::pin(main_scenarios("redis", &url)).await;
    let world = World::new("redis-restart", &url);
    Box::pin(scenarios::store_restarts(world, || server.restart())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let mut server = tokio::task::block_in_place(PostgresServer::start).unwrap();
    let url = server.url();
    Box::pin(main_scenarios("postgres", &url)).await;
    let world = World::new("postgres-restart", &url);
    Box::pin(scenarios::store_restarts(world, || server.restart())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    let server = tokio::task::block_in_place(|| MySqlServer::start(Product::MariaDb)).unwrap();
    let url = server.url();
    Box::pin(main_scenarios("mariadb", &url)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper() {
    let ensemble = tokio::task::block_in_place(ZooKeeper::start).unwrap();
    let url = format!("zookeeper://{}/app?session_timeout=5s", ensemble.servers());
    Box::pin(main_scenarios("zookeeper", &url)).await;
}
