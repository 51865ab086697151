//! Scenarios with the locks on a majority of three Redis servers and the records in another store.
//! A server that dies, comes back empty and is admitted again disturbs no login.

use std::time::Duration;

use distlock_checker::{Invariant, Report};
use distlock_harness::{
    Process,
    servers::{postgres::PostgresServer, redis::RedisServer},
};

use distlock_kickout::Uid;

use crate::{
    client::Client,
    scenarios::{self, start},
    steps,
    world::{SOON, World, now_us, pause},
};

/// Three servers, and the URL of the quorum.
struct Members {
    servers: Vec<RedisServer>,
    url: String,
}

impl Members {
    /// Starts the servers and makes a quorum of them.
    fn start() -> Self {
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
        let named = ["a", "b", "c"].iter().zip(&servers);
        let members = named.map(|(name, server)| format!("member={name}={}&", server.url()));
        // A member that has lost its memory is silent for 1.25 times the longest lease.
        let url = format!("quorum:?{}max_lease=8s", members.collect::<String>());
        let world = World::new("init", &url);
        let mut init = world.tool(&url);
        let mut made = Process::spawn(init.args(["quorum", "init"])).unwrap();
        let status = made.wait(SOON).unwrap();
        assert!(status.success(), "{}", made.output());
        Self { servers, url }
    }

    fn world(&self, name: &str, records: &str) -> World {
        World::new(name, &self.url).records_in(records)
    }
}

/// Takeovers before, while and after a member is gone. The servers die one after the other. Each is
/// admitted again before the next one dies.
async fn members_restart(mut world: World, mut members: Members) -> Report {
    start(&mut world, &["n1", "n2"]).await;
    let (anna, quiet) = (world.uid("anna"), world.uid("quiet"));
    // The leases of the nodes are a second old.
    pause(Duration::from_secs(1)).await;
    let mut last = Some(take_turns(&world, &anna, None).await);
    for at in 0..members.servers.len() {
        members.servers[at].kill();
        last = Some(take_turns(&world, &anna, last).await);
        world.log_in_and_out(&quiet, "n2", 5).await;
        tokio::task::block_in_place(|| members.servers[at].restart()).unwrap();
        let since = now_us();
        while tokio::task::block_in_place(|| voting(&world)) < members.servers.len() {
            assert!(now_us() - since < 60_000_000, "{at} is not admitted again");
            last = Some(take_turns(&world, &anna, last).await);
        }
    }
    let clients = last.into_iter().collect();
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// The number of members that vote.
fn voting(world: &World) -> usize {
    let mut show = world.tool(&world.url);
    let mut show = Process::spawn(show.args(["quorum", "show", "--json"])).unwrap();
    let status = show.wait(SOON).unwrap();
    assert!(status.success(), "no majority votes: {}", show.output());
    show.output().matches(r#""votes_in_ms":0"#).count()
}

/// Two devices take over from each other on two nodes.
async fn take_turns(world: &World, anna: &Uid, before: Option<Client>) -> Client {
    let first = world.log_in(anna, "phone", "n1").await;
    let second = world.log_in(anna, "pc", "n2").await;
    for mut old in [before, Some(first)].into_iter().flatten() {
        old.wait_for_notice().await;
    }
    second
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_move_between_nodes_with_records_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let records = format!("sqlite:{}", folder.path().join("records.db").display());
    let members = tokio::task::block_in_place(Members::start);
    Box::pin(scenarios::takeovers(members.world("takeovers", &records))).await;
    Box::pin(scenarios::killed_node(members.world("killed", &records))).await;
    Box::pin(members_restart(members.world("restart", &records), members)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_move_between_nodes_with_records_in_postgres() {
    let server = tokio::task::block_in_place(PostgresServer::start).unwrap();
    let (records, members) = (server.url(), tokio::task::block_in_place(Members::start));
    Box::pin(scenarios::ping_pong(members.world("pingpong", &records))).await;
    Box::pin(scenarios::first_wins(members.world("first", &records))).await;
    Box::pin(steps::each_step_once(members.world("steps", &records))).await;
    Box::pin(members_restart(members.world("restart", &records), members)).await;
}
