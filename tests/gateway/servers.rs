//! All scenarios of the matrix over each kind of server, and a restart of the server.

use std::time::Duration;

use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::PostgresServer,
    redis::RedisServer,
    zookeeper::ZooKeeper,
};

use crate::{
    matrix::{self, Place},
    scenarios,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scenario_passes_on_redis() {
    let mut server = tokio::task::block_in_place(RedisServer::start).unwrap();
    let place = Place::new("redis", &server.url(), &[server.address()]);
    Box::pin(place.play_all()).await;
    Box::pin(scenarios::store_restarts(place.world("restart"), || {
        server.restart()
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scenario_passes_on_postgres() {
    let mut server = tokio::task::block_in_place(PostgresServer::start).unwrap();
    let place = Place::new("postgres", &server.url(), &[server.address()]);
    Box::pin(place.play_all()).await;
    Box::pin(scenarios::store_restarts(place.world("restart"), || {
        server.restart()
    }))
    .await;
}

async fn check_mysql_product(backend: &'static str, product: Product) {
    let mut server = tokio::task::block_in_place(|| MySqlServer::start(product)).unwrap();
    let place = Place::new(backend, &server.url(), &[server.address()]);
    Box::pin(place.play_all()).await;
    Box::pin(scenarios::store_restarts(place.world("restart"), || {
        server.restart()
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scenario_passes_on_mariadb() {
    Box::pin(check_mysql_product("mariadb", Product::MariaDb)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scenario_passes_on_mysql() {
    Box::pin(check_mysql_product("mysql", Product::MySql)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scenario_passes_on_zookeeper() {
    let mut ensemble = tokio::task::block_in_place(ZooKeeper::start).unwrap();
    let url = format!("zookeeper://{}/app?session_timeout=5s", ensemble.servers());
    let servers: Vec<_> = (0..ensemble.len()).map(|at| ensemble.address(at)).collect();
    let mut place = Place::new("zookeeper", &url, &servers);
    // ZooKeeper keeps a dead node's lease and locks until the session of the node expires, and up
    // to one tick more.
    place.dead_for = Duration::from_secs(5) + Duration::from_millis(250);
    place.without = &[matrix::STOPPED_WITH_A_LOCK];
    Box::pin(place.play_all()).await;
    let restart = || {
        for at in 0..ensemble.len() {
            ensemble.kill(at);
        }
        for at in 0..ensemble.len() {
            ensemble.restart(at)?;
        }
        ensemble.wait_until_serving()
    };
    Box::pin(scenarios::store_restarts(place.world("restart"), restart)).await;
}
