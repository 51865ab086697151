//! The list of all scenarios, and the stores over which each scenario runs.
//!
//! | scenario | SQLite | Redis, Postgres, MariaDB, MySQL, ZooKeeper |
//! |---|---|---|
//! | takeovers, fifty at once, first wins, ping-pong, two of three, killed node, logout beside a lock, stale logout, bad peer link, deaf clients, strict beside a node that is cut off, bans, drain, resume, two fronts, idle goes first, slow profiles, after the save, acknowledged, several devices, strangers, fenced, seen from outside, each step once | yes | yes |
//! | strict, bystanders, stopped node | no: stopped | yes |
//! | stopped with a lock | no: stopped | yes, but ZooKeeper: session |
//! | bad store link | no: server | yes |
//! | killed with a lock | no: server; "killed holder" in its place | yes |
//! | store restarts | no: server | yes |
//! | forgotten writes | no: forgets | Redis with Sentinel alone: forgets |
//!
//! - *stopped*: a process that is stopped in the middle of a write keeps the SQLite file locked
//!   during the stop, so every other node waits too. That is a property of the file, not of the
//!   flow. `variants.rs` stops a login between its read and its write, over the memory store.
//! - *server*: a SQLite file has no server and no connection that could break.
//! - *forgets*: the other stores, as they are set up here, do not forget acknowledged writes. The
//!   tests of each backend show a failover of a cluster. For the flow, such a store is unreachable
//!   for a while; "store restarts" and "bad store link" show that.
//! - *session*: on ZooKeeper a lock ends only with its session, and the node's own lease ends with
//!   the same session. A node that was stopped for that long is fenced ("stopped node" shows that)
//!   and has nothing to write.
//!
//! Several scenarios over one server run at the same time, each with nodes and accounts of its own,
//! because a scenario mostly waits for leases. `SCENARIO=name` plays only that scenario.

use std::{net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::JoinSet};

use crate::{messages, orders, outside, profiles, saves, scenarios, senders, steps, world::World};

/// The number of scenarios that run at the same time.
const AT_ONCE: usize = 4;

pub(crate) const STOPPED_WITH_A_LOCK: &str = "late";

/// A store that is reached through servers.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) backend: &'static str,
    pub(crate) url: String,
    pub(crate) servers: Vec<SocketAddr>,
    /// The time for which the store keeps a dead node's locks, where that is longer than the lease.
    pub(crate) dead_for: Duration,
    /// Scenarios that do not apply to this store.
    pub(crate) without: &'static [&'static str],
}

type Scenario = Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! scenarios {
    ($place:ident: $($name:tt $(with $how:ident)? => $play:expr;)+) => {
        vec![$({
            let place = $place.clone();
            let play: Scenario = Box::pin(async move {
                let world = place.world($name)$(.$how(&place.servers))?;
                // A failed scenario panics. The report has no further use.
                let _ = $play(world).await;
            });
            ($name, play)
        }),+]
    };
}

impl Place {
    pub(crate) fn new(backend: &'static str, url: &str, servers: &[SocketAddr]) -> Self {
        Self {
            backend,
            url: url.to_owned(),
            servers: servers.to_vec(),
            dead_for: Duration::ZERO,
            without: &[],
        }
    }

    pub(crate) fn world(&self, name: &str) -> World {
        World::new(&format!("{}-{name}", self.backend), &self.url).dead_for(self.dead_for)
    }

    fn scenarios(&self) -> Vec<(&'static str, Scenario)> {
        // The longest scenarios begin first.
        scenarios! { self:
            "link" with wired => scenarios::bad_store_link;
            "stopped" => scenarios::stopped_node;
            "killed" => scenarios::killed_node;
            "lock" with wired => scenarios::killed_with_a_lock;
            STOPPED_WITH_A_LOCK with wired => scenarios::stopped_with_a_lock;
            "first" => scenarios::first_wins;
            "strict" => scenarios::strict;
            "cut" => scenarios::strict_cut_off;
            "deaf" => scenarios::deaf_clients;
            "peers" => scenarios::bad_peer_link;
            "logout" => scenarios::logout_beside_a_lock;
            "stale" => scenarios::stale_logout;
            "fifty" => |world| scenarios::fifty_at_once(world, &["n1", "n2", "n3"]);
            "bystanders" => scenarios::bystanders;
            "profiles" => profiles::slow_profiles;
            "saves" => saves::after_the_save;
            "takeovers" => scenarios::takeovers;
            "pingpong" => scenarios::ping_pong;
            "two" => scenarios::two_of_three;
            "banned" => orders::banned;
            "drained" => orders::drained;
            "resumed" => orders::resumed;
            "fronts" => orders::two_fronts;
            "idle" => orders::idle_goes_first;
            "acks" => messages::acknowledged;
            "devices" => messages::several_devices;
            "strangers" => senders::strangers;
            "fenced" => outside::fenced;
            "outside" => outside::seen_from_outside;
            "steps" => steps::each_step_once;
        }
    }

    /// Plays every scenario over this store.
    pub(crate) async fn play_all(&self) {
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let only = std::env::var("SCENARIO").ok();
        let mut playing = JoinSet::new();
        let scenarios = self.scenarios();
        if let Some(only) = &only {
            let is_known = scenarios.iter().any(|(name, _)| name == only);
            assert!(is_known, "SCENARIO={only} is no scenario");
        }
        for (name, play) in scenarios {
            if only.as_deref().is_some_and(|only| only != name) || self.without.contains(&name) {
                continue;
            }
            let turns = Arc::clone(&turns);
            playing.spawn(async move {
                // The semaphore is fair, so scenarios begin in the order of the list.
                let _turn = turns.acquire().await.unwrap();
                play.await;
            });
        }
        // All scenarios run even after one has failed: each reports its own failure.
        let mut failed = 0;
        while let Some(played) = playing.join_next().await {
            failed += usize::from(played.is_err());
        }
        assert_eq!(
            failed, 0,
            "scenarios over {} failed, see above",
            self.backend
        );
    }
}
