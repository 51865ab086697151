//! Fixtures of the tests: configurations, clients, and helper functions for waiting.

use std::{future::Future, sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Clock as _, Guard, HolderLabel, LockName, Locker, Moment, OwnerId, SystemClock,
    Ttl, encode,
};
use distlock_harness::servers::zookeeper as servers;
use distlock_zookeeper::{ZooKeeper, ZooKeeperConfig};
use tokio::task::JoinHandle;
use zookeeper_client as zk;

/// The longest session that a tick of 250 ms allows.
pub(crate) const SESSION: Duration = Duration::from_secs(5);

/// The tick of the servers, unless a test sets another one.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// A time limit that is longer than an election on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Returns a configuration for `servers`, a text of the harness. If the servers need credentials,
/// the user and the password stand before the addresses.
pub(crate) fn config(servers: &str) -> ZooKeeperConfig {
    let mut config = ZooKeeperConfig::from_url_parts(&format!("//{servers}"), &[]).expect("a URL");
    config.session_timeout = SESSION;
    // The tick is set because the backend would otherwise open a second session to measure it, and
    // tests count sessions.
    config.tick_time = Some(TICK);
    config
}

pub(crate) async fn open_store(servers: &str) -> ZooKeeper {
    ZooKeeper::open(config(servers), Arc::new(SystemClock))
        .await
        .expect("opens")
}

/// Returns a locker whose keeper thread is connected.
pub(crate) async fn locker(servers: &str) -> Locker {
    let locker = Locker::new(open_store(servers).await.lock());
    locker.ready().await.expect("connects");
    locker
}

/// Opens a client of the ensemble that reads and writes nodes directly. If `servers` starts with a
/// user and a password, the client uses them.
pub(crate) async fn raw_client(servers: &str) -> zk::Client {
    let (connector, hosts) = match servers.rsplit_once('@') {
        Some((user, hosts)) => {
            let connector = zk::Client::connector().with_auth("digest", user.as_bytes());
            (connector, hosts)
        }
        None => (zk::Client::connector(), servers),
    };
    connector.connect(hosts).await.expect("connects")
}

/// Returns the path of the node that is the parent of a lock's contenders.
pub(crate) fn container_path(name: &str) -> String {
    format!("/distlock/locks/{}", encode(name))
}

/// Returns the names of a lock's contenders, in no order. Repeats the request until it succeeds,
/// because a server may close the connections of all its clients when one of them reconnects.
pub(crate) async fn contenders(client: &zk::Client, name: &str) -> Vec<String> {
    eventually("an answer", async || {
        client.sync("/").await.ok()?;
        match client.list_children(&container_path(name)).await {
            Ok(children) => Some(children),
            Err(zk::Error::NoNode) => Some(Vec::new()),
            Err(_) => None,
        }
    })
    .await
}

/// Releases a lock, and fails when the release is not clean.
pub(crate) async fn release_cleanly(guard: Guard) {
    let name = guard.name().clone();
    let released = guard.release().await;
    assert!(released.is_clean(), "{name:?}: {released:?}");
}

/// Acquires a lock, with a wait if another client holds it.
pub(crate) async fn hold(locker: &Locker, name: &str) -> Guard {
    let acquired = within("acquired", locker.lock(name).wait(SOON).acquire()).await;
    acquired.expect("acquires")
}

/// Starts a task that acquires the lock, and waits until that task is the only waiter in the queue.
/// The task returns the guard and the moment of the grant.
pub(crate) async fn enter_queue(locker: &Locker, name: &str) -> JoinHandle<(Guard, Moment)> {
    let wait_for_waiters = async |many: u32| {
        eventually("the contender is in the queue", async || {
            (count_waiters(locker, name).await == many).then_some(())
        })
        .await;
    };
    // An attempt without waiting may still be in the queue for a moment.
    wait_for_waiters(0).await;
    let acquiring = locker.lock(name).wait(SOON * 2).acquire();
    let waiting = tokio::spawn(async move {
        let guard = acquiring.await.expect("acquires");
        (guard, now())
    });
    wait_for_waiters(1).await;
    waiting
}

/// Starts the task of [`enter_queue`] for the lock of `guard`. The returned task panics if `guard`
/// is still valid when the task gets the lock.
pub(crate) async fn enter_queue_behind(
    guard: &Guard,
    locker: &Locker,
) -> JoinHandle<(Guard, Moment)> {
    let watch = guard.watch();
    let waiting = enter_queue(locker, guard.name().as_str()).await;
    tokio::spawn(async move {
        let next = waiting.await.expect("acquires");
        assert!(!watch.is_valid(), "two holders at once");
        next
    })
}

/// Returns the number of contenders behind the holder.
pub(crate) async fn count_waiters(locker: &Locker, name: &str) -> u32 {
    let info = locker.inspect(name).await.expect("answers");
    info.waiters.expect("is counted")
}

/// Returns a request with a new owner, in the form of core's client engine.
pub(crate) fn request(name: &str, ttl: Duration) -> AcquireRequest {
    AcquireRequest::new(
        LockName::new(name).expect("a name"),
        OwnerId::new(),
        Ttl::new(ttl).expect("a ttl"),
        HolderLabel::new("test").expect("a label"),
    )
}

/// Returns the number of requests that all servers have received from clients so far.
pub(crate) fn requests_received(ensemble: &servers::ZooKeeper) -> u64 {
    (0..ensemble.len())
        .map(|at| server_metric(ensemble, at, "zk_packets_received"))
        .sum()
}

/// Returns a number that a server reports about itself.
pub(crate) fn server_metric(ensemble: &servers::ZooKeeper, at: usize, name: &str) -> u64 {
    let answer = ensemble.ask(at, "mntr").expect("answers");
    let line = answer.lines().find_map(|line| line.strip_prefix(name));
    let figure = line.and_then(|figure| figure.trim().parse().ok());
    figure.unwrap_or_else(|| panic!("no {name} in {answer}"))
}

pub(crate) fn now() -> Moment {
    SystemClock.now()
}

pub(crate) async fn pause(time: Duration) {
    SystemClock.sleep(time).await;
}

/// Waits for `future`, and fails with `what` when it takes too long.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        output = future => output,
        () = pause(SOON * 2) => panic!("{what}: not within {:?}", SOON * 2),
    }
}

pub(crate) async fn eventually<T>(what: &str, condition: impl AsyncFnMut() -> Option<T>) -> T {
    let mut condition = condition;
    let end = now() + SOON;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(now() < end, "{what}: not within {SOON:?}");
        pause(Duration::from_millis(10)).await;
    }
}
