//! A leader without followers still answers its own clients until `syncLimit` has passed. No client
//! may trust its session for longer than the next leader and its followers keep the session.

use std::{net::Ipv4Addr, time::Duration};

use distlock_core::{Expect, Locker, RecordKey, Records, Written};
use distlock_harness::{
    Direction, FaultProxy,
    servers::zookeeper::{Ports, Setup, ZooKeeper},
};

use crate::fixtures::{
    SESSION, enter_queue_behind, eventually, hold, locker, now, open_store, release_cleanly, within,
};

/// The time for which a deposed leader still acts as leader: longer than a session and an election
/// on a busy machine together.
const SYNC_LIMIT: Duration = Duration::from_secs(40);

/// Three servers that reach each other through proxies. Each proxy can cut the connection on the
/// side of one server and keep the other side open.
struct Split {
    ensemble: ZooKeeper,
    leader: usize,
    /// The proxies in front of quorum ports.
    following: Vec<Route>,
    /// The proxies in front of election ports.
    electing: Vec<Route>,
}

/// The proxy through which one server reaches a port of another server.
struct Route {
    from: usize,
    to: usize,
    proxy: FaultProxy,
}

impl Route {
    /// Starts a proxy from each server to each other server, to the port that `port` selects.
    async fn start_all(ports: &[Ports], port: fn(&Ports) -> u16) -> Vec<Self> {
        let mut routes = Vec::new();
        for from in 0..ports.len() {
            for to in (0..ports.len()).filter(|to| *to != from) {
                let address = (Ipv4Addr::LOCALHOST, port(&ports[to])).into();
                let proxy = FaultProxy::start(address).await.unwrap();
                routes.push(Self { from, to, proxy });
            }
        }
        routes
    }

    fn detour(&self) -> (usize, usize, u16) {
        (self.from, self.to, self.proxy.address().port())
    }
}

impl Split {
    /// Starts an ensemble whose leader and followers reach each other only through proxies.
    ///
    /// For elections, a server with a larger id does not keep a connection that a server with a
    /// smaller id opens. The larger server opens another connection instead, to the smaller
    /// server's own address and past the proxy. So proxies refuse the connections of smaller
    /// servers.
    async fn start() -> Self {
        let ports = [(); 3].map(|()| Ports::pick().unwrap());
        let following = Route::start_all(&ports, |ports| ports.quorum).await;
        let electing = Route::start_all(&ports, |ports| ports.election).await;
        for route in electing.iter().filter(|route| route.from < route.to) {
            route.proxy.refuse();
        }
        let ticks = SYNC_LIMIT.as_millis() / 250;
        let ensemble = ZooKeeper::start_with(&Setup {
            detours: following.iter().map(Route::detour).collect(),
            election_detours: electing.iter().map(Route::detour).collect(),
            ports: Some(ports.to_vec()),
            settings: vec![format!("syncLimit={ticks}")],
            ..Setup::default()
        })
        .unwrap();
        // Both followers follow before any connection is cut.
        eventually("two follow", async || {
            (ensemble.followers().len() == 2).then_some(())
        })
        .await;
        let leader = ensemble.leader().unwrap();
        let split = Self {
            ensemble,
            leader,
            following,
            electing,
        };
        assert!(split.uses_only_proxies(), "an election is past the proxies");
        split
    }

    /// Returns whether the leader has an election connection to each follower through a proxy.
    fn uses_only_proxies(&self) -> bool {
        let leader = self.leader;
        self.followers().iter().all(|follower| {
            let (from, to) = (leader.max(*follower), leader.min(*follower));
            let mut routes = self.electing.iter();
            routes.any(|it| (it.from, it.to) == (from, to) && it.proxy.connections() > 0)
        })
    }

    fn followers(&self) -> [usize; 2] {
        [(self.leader + 1) % 3, (self.leader + 2) % 3]
    }

    /// Closes the followers' ends of the connections to the leader, and leaves the leader's ends
    /// open but silent. Election messages from and to the leader are lost. Both followers may
    /// connect to each other past the proxies.
    fn depose(&self) {
        let leader = self.leader;
        for route in &self.electing {
            if route.from == leader || route.to == leader {
                route.proxy.stop(Direction::ToServer);
                route.proxy.stop(Direction::ToClient);
            } else {
                route.proxy.pass();
            }
        }
        for route in &self.following {
            if route.to == leader {
                route.proxy.forsake_clients();
            }
        }
    }

    fn leader_address(&self) -> String {
        self.ensemble.server(self.leader)
    }

    fn follower_addresses(&self) -> String {
        let others = self.followers().map(|at| self.ensemble.address(at));
        self.ensemble.reached_at(&others)
    }

    fn old_leader_still_leads(&self) -> bool {
        self.ensemble.mode(self.leader).as_deref() == Some("leader")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_trusts_a_leader_that_was_deposed() {
    let split = Split::start().await;
    let ours = locker(&split.leader_address()).await;
    let theirs = locker(&split.follower_addresses()).await;
    let store = open_store(&split.leader_address()).await;
    let other_store = open_store(&split.follower_addresses()).await;
    let guard = hold(&ours, "a").await;
    let next = enter_queue_behind(&guard, &theirs).await;
    let (old_records, new_records) = (store.records(), other_store.records());
    let key = RecordKey::new("r").unwrap();
    let Written::Stored(first) = put(&*old_records, &key, b"old", Expect::Absent).await else {
        panic!("nobody else writes");
    };
    split.depose();
    let cut = now();
    within("the loss is reported", guard.lost()).await;
    assert!(now().since(cut) < SESSION, "{:?}", now().since(cut));
    assert!(
        split.old_leader_still_leads(),
        "otherwise the test shows nothing"
    );
    // While the old leader still answers, the new leader serves writes that the old leader does not
    // learn of.
    eventually("the new leader serves", async || {
        let put = new_records.put(&key, b"new", Expect::Version(first)).await;
        matches!(put, Ok(Written::Stored(_))).then_some(())
    })
    .await;
    assert!(
        split.old_leader_still_leads(),
        "otherwise the test shows nothing"
    );
    let read = old_records.get(&key).await;
    assert!(
        read.as_ref().map_or(true, |entry| {
            entry.as_ref().is_some_and(|entry| entry.value == b"new")
        }),
        "the old value was read beside a deposed leader: {read:?}"
    );
    let (next, granted) = within("the session has expired", next).await.unwrap();
    assert!(next.token() > guard.token());
    assert!(
        granted.since(cut) < SYNC_LIMIT,
        "while the old leader still answers"
    );
    release_cleanly(next).await;
}

async fn put(records: &dyn Records, key: &RecordKey, value: &[u8], expect: Expect) -> Written {
    within("written", records.put(key, value, expect))
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_trusts_a_leader_whose_followers_were_started_again() {
    let mut split = Split::start().await;
    let ours = locker(&split.leader_address()).await;
    let guard = hold(&ours, "a").await;
    split.depose();
    let cut = now();
    for follower in split.followers() {
        split.ensemble.restart(follower).unwrap();
    }
    let watch = guard.watch();
    within("the loss is reported", guard.lost()).await;
    assert!(now().since(cut) < SESSION, "{:?}", now().since(cut));
    assert!(
        split.old_leader_still_leads(),
        "otherwise the test shows nothing"
    );
    split.ensemble.wait_until_serving().unwrap();
    let theirs = locker(&split.follower_addresses()).await;
    let next = hold(&theirs, "a").await;
    assert!(!watch.is_valid() && next.token() > guard.token());
    release_cleanly(next).await;
}

/// The client's requests reach the server, and the answers are lost. A client that no longer trusts
/// its session must not keep that session alive by further requests.
#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_do_not_keep_a_session_alive() {
    const SHORT: Duration = Duration::from_secs(3);
    let ensemble = ZooKeeper::start().unwrap();
    let proxy = FaultProxy::start(ensemble.address(0)).await.unwrap();
    let mut config = crate::fixtures::config(&ensemble.reached_at(&[proxy.address()]));
    config.session_timeout = SHORT;
    let clock = std::sync::Arc::new(distlock_core::SystemClock);
    let store = distlock_zookeeper::ZooKeeper::open(config, clock)
        .await
        .unwrap();
    let ours = Locker::new(store.lock());
    ours.ready().await.unwrap();
    let theirs = locker(&ensemble.servers()).await;
    let guard = hold(&ours, "a").await;
    let next = enter_queue_behind(&guard, &theirs).await;
    proxy.stop(Direction::ToClient);
    let cut = now();
    within("the loss is reported", guard.lost()).await;
    let (next, granted) = within("the lock is free", next).await.unwrap();
    let took = granted.since(cut);
    let bound = SHORT * 5 / 3 + crate::fixtures::TICK;
    assert!(took <= bound, "{took:?}, not within {bound:?}");
    release_cleanly(next).await;
}
