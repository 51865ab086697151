//! The conformance suite on five members, on members of different products, and with one of three
//! members dead from the start.

use distlock_conformance::Subject;
use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::PostgresServer,
    redis::RedisServer,
};
use distlock_quorum::init;

use crate::common::{conforms, drivers, open, redis_servers, url_of, url_of_servers};

async fn conform(name: &'static str, url: String) {
    let subject = Subject::connect(name, move || {
        let url = url.clone();
        async move { open(&url).await }
    });
    conforms(subject.await.unwrap()).await;
}

/// Both memories must grant, also the one where the caller waits. It reserves a free lock for the
/// first in its queue.
#[tokio::test(flavor = "multi_thread")]
async fn two_memories_and_a_dead_server_conform() {
    let mut server = RedisServer::start().unwrap();
    let members = ["memory:live-a", "memory:live-b", &server.url()];
    let url = url_of(members, "60s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    server.kill();
    conform("quorum_memory_with_a_dead_member", url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_servers_conform() {
    let servers = redis_servers(5);
    let url = url_of_servers(&servers, "60s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    conform("quorum_redis_of_five", url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_of_which_one_is_dead_conform() {
    let mut servers = redis_servers(3);
    let url = url_of_servers(&servers, "60s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    servers[1].kill();
    conform("quorum_redis_with_a_dead_member", url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_mariadb_and_postgres_conform() {
    let redis = RedisServer::start().unwrap();
    let mariadb = MySqlServer::start(Product::MariaDb).unwrap();
    // The suite checks the doctor's report, and the harness starts Postgres without syncs.
    let postgres = PostgresServer::with(&["fsync=on"]).unwrap();
    let urls = [redis.url(), mariadb.url(), postgres.url()];
    let url = url_of(urls.iter().map(String::as_str), "60s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    conform("quorum_mixture", url).await;
}
