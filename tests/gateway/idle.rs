//! Counts the requests of idle nodes with the counters of the store.

use std::time::Duration;

use distlock_checker::Rules;
use distlock_harness::servers::{postgres::PostgresServer, redis::RedisServer};

use crate::{
    client::Client,
    http::get,
    scenarios::start,
    world::{World, pause},
};

/// The most requests per second that an idle node may send.
const MAX_REQUESTS_PER_SECOND: u64 = 50;
/// The time of one count: each node passes over its sessions twice in it.
const WINDOW: Duration = Duration::from_secs(6);
/// The most counts. Nodes that have just started read the whole directory, so the first counts are
/// higher.
const WINDOWS: u32 = 10;
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Starts three nodes with a few sessions. The clients of further accounts broke their connections.
async fn idle_nodes(url: &str) -> (World, Vec<Client>) {
    let mut world = World::new("idle", url);
    world.rules.sweep = Rules::default().sweep;
    start(&mut world, &NODES).await;
    let mut clients = Vec::new();
    for number in 0..30 {
        let uid = world.uid(&format!("u{number}"));
        let client = world.log_in(&uid, "phone", NODES[number % 3]).await;
        // Every second account keeps its client; the other clients are dropped.
        if number % 2 == 0 {
            clients.push(client);
        }
    }
    (world, clients)
}

/// Waits until the counter grows by no more than the documented number of requests within one
/// window.
async fn wait_until_idle(counter: impl Fn() -> u64) {
    let most = MAX_REQUESTS_PER_SECOND * NODES.len() as u64 * WINDOW.as_secs();
    let mut counted = Vec::new();
    for _ in 0..WINDOWS {
        let before = counter();
        pause(WINDOW).await;
        let grown = counter() - before;
        counted.push(grown);
        if grown <= most {
            #[expect(clippy::print_stderr, reason = "a figure for whoever asks for it")]
            {
                eprintln!(
                    "{} nodes, requests in each {WINDOW:?}: {counted:?}",
                    NODES.len()
                );
            }
            return;
        }
    }
    panic!(
        "{} idle nodes have sent {counted:?} in each {WINDOW:?}, more than {most}",
        NODES.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_nodes_and_the_page_send_few_requests_to_redis() {
    let server = tokio::task::block_in_place(RedisServer::start).unwrap();
    let (world, _clients) = idle_nodes(&server.url()).await;
    let counter = || -> u64 {
        let field = server.info("total_commands_processed").unwrap();
        field.parse().unwrap()
    };
    wait_until_idle(counter).await;
    let (before, scans) = (counter(), server.calls("scan").unwrap());
    let admin = world.node("n1").admin;
    for _ in 0..10 {
        let page = get(admin, "/page/state").await;
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        assert!(NODES.iter().all(|node| page.contains(node)), "{page}");
    }
    let each = (counter() - before) / 10;
    assert!(
        each <= MAX_REQUESTS_PER_SECOND,
        "{each} commands for a look at the page"
    );
    assert_eq!(
        server.calls("scan").unwrap(),
        scans,
        "the keys are not looked through"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_nodes_send_few_requests_to_postgres() {
    let server = tokio::task::block_in_place(PostgresServer::start).unwrap();
    let (_world, _clients) = idle_nodes(&server.url()).await;
    let counter = || -> u64 {
        let sum = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database";
        server.sql(sum).unwrap().trim().parse().unwrap()
    };
    wait_until_idle(counter).await;
}
