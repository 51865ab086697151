//! The main scenarios over the servers, one server each.

use std::time::Duration;

use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::PostgresServer,
    redis::RedisServer,
    zookeeper::ZooKeeper,
};

use crate::{profiles, scenarios, world::World};

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

/// One node is in trouble, and the others are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_with_one_node_in_trouble() {
    let server = tokio::task::block_in_place(RedisServer::start).unwrap();
    let world = |name: &str| World::new(&format!("redis-{name}"), &server.url());
    Box::pin(scenarios::bystanders(world("bystanders"))).await;
    Box::pin(scenarios::stopped_node(world("stopped"))).await;
    Box::pin(scenarios::strict(world("strict"))).await;
    Box::pin(profiles::slow_profiles(world("profiles"))).await;
    let wired = world("link").wired(&[server.address()]);
    Box::pin(scenarios::bad_store_link(wired)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let mut server = tokio::task::block_in_place(PostgresServer::start).unwrap();
    let url = server.url();
    Box::pin(main_scenarios("postgres", &url)).await;
    Box::pin(scenarios::bystanders(World::new(
        "postgres-bystanders",
        &url,
    )))
    .await;
    let world = World::new("postgres-restart", &url);
    Box::pin(scenarios::store_restarts(world, || server.restart())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    let mut server = tokio::task::block_in_place(|| MySqlServer::start(Product::MariaDb)).unwrap();
    let url = server.url();
    Box::pin(main_scenarios("mariadb", &url)).await;
    let world = World::new("mariadb-restart", &url);
    Box::pin(scenarios::store_restarts(world, || server.restart())).await;
}

/// What it shares with MariaDB is shown there; here, that the same goes through at all, and what its own restart does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql() {
    let mut server = tokio::task::block_in_place(|| MySqlServer::start(Product::MySql)).unwrap();
    let url = server.url();
    Box::pin(scenarios::takeovers(World::new("mysql-takeovers", &url))).await;
    let world = World::new("mysql-restart", &url);
    Box::pin(scenarios::store_restarts(world, || server.restart())).await;
    let world = World::new("mysql-link", &url).wired(&[server.address()]);
    Box::pin(scenarios::bad_store_link(world)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper() {
    let mut ensemble = tokio::task::block_in_place(ZooKeeper::start).unwrap();
    let url = format!("zookeeper://{}/app?session_timeout=5s", ensemble.servers());
    Box::pin(scenarios::takeovers(World::new(
        "zookeeper-takeovers",
        &url,
    )))
    .await;
    let world = World::new("zookeeper-fifty", &url);
    Box::pin(scenarios::fifty_at_once(world, &["n1", "n2"])).await;
    // A dead node's lease lasts as long as its session there, and a little more until that is noticed.
    let long = url.replace("session_timeout=5s", "session_timeout=8s");
    let mut world = World::new("zookeeper-killed", &long);
    world.dead_for = Duration::from_secs(10);
    Box::pin(scenarios::killed_node(world)).await;
    let servers: Vec<_> = (0..ensemble.len()).map(|at| ensemble.address(at)).collect();
    let world = World::new("zookeeper-link", &url).wired(&servers);
    Box::pin(scenarios::bad_store_link(world)).await;
    let world = World::new("zookeeper-restart", &url);
    let restart = || {
        for at in 0..ensemble.len() {
            ensemble.kill(at);
        }
        for at in 0..ensemble.len() {
            ensemble.restart(at)?;
        }
        ensemble.wait_until_serving()
    };
    Box::pin(scenarios::store_restarts(world, restart)).await;
}
