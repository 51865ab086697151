//! The requests of idle nodes, by the store's own counters.

use std::time::Duration;

use distlock_checker::Rules;
use distlock_harness::servers::{postgres::PostgresServer, redis::RedisServer};

use crate::{
    client::Client,
    http::get,
    scenarios::start,
    world::{World, pause},
};

/// Requests per second that an idle node may send.
const A_NODE_A_SECOND: u64 = 50;
/// Two passes of each node over its sessions.
const WINDOW: Duration = Duration::from_secs(6);
/// Nodes that have just started read the whole directory.
const WINDOWS: u32 = 10;
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Three nodes with a few sessions, and further accounts that have logged out.
async fn idle_nodes(url: &str) -> (World, Vec<Client>) {
    let mut world = World::new("idle", url);
    world.rules.sweep = Rules::default().sweep;
    start(&mut world, &NODES).await;
    let mut clients = Vec::new();
    for number in 0..30 {
        let uid = world.uid(&format!("u{number}"));
        let client = world.log_in(&uid, "phone", NODES[number % 3]).await;
        // Every second account logs out.
        if number % 2 == 0 {
            clients.push(client);
        }
    }
    (world, clients)
}

/// Waits until the counter grows in one window by no more than the documented number.
async fn is_soon_idle(counter: impl Fn() -> u64) {
    let most = A_NODE_A_SECOND * NODES.len() as u64 * WINDOW.as_secs();
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
async fn redis_is_asked_little_also_by_the_page() {
    let server = tokio::task::block_in_place(RedisServer::start).unwrap();
    let (world, _clients) = idle_nodes(&server.url()).await;
    let counter = || -> u64 {
        let field = server.info("total_commands_processed").unwrap();
        field.parse().unwrap()
    };
    is_soon_idle(counter).await;
    let (before, scans) = (counter(), server.calls("scan").unwrap());
    let admin = world.node("n1").admin;
    for _ in 0..10 {
        let page = get(admin, "/page/state").await;
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        assert!(NODES.iter().all(|node| page.contains(node)), "{page}");
    }
    let each = (counter() - before) / 10;
    assert!(
        each <= A_NODE_A_SECOND,
        "{each} commands for a look at the page"
    );
    assert_eq!(
        server.calls("scan").unwrap(),
        scans,
        "the keys are not looked through"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_asked_little() {
    let server = tokio::task::block_in_place(PostgresServer::start).unwrap();
    let (_world, _clients) = idle_nodes(&server.url()).await;
    let counter = || -> u64 {
        let sum = "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database";
        server.sql(sum).unwrap().trim().parse().unwrap()
    };
    is_soon_idle(counter).await;
}
