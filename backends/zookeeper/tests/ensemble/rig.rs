//! What the tests work with.

use std::{future::Future, sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Clock as _, Guard, HolderLabel, LockName, Locker, Moment, OwnerId, SystemClock,
    Ttl, encode,
};
use distlock_harness::servers::zookeeper as servers;
use distlock_zookeeper::{ZooKeeper, ZooKeeperConfig};
use tokio::task::JoinHandle;
use zookeeper_client as zk;

/// What a tick of 250 ms allows at the most.
pub(crate) const SESSION: Duration = Duration::from_secs(5);

/// The tick of the servers, unless a test says otherwise.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// Within this everything happens that needs no more than an election on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// `servers` as the harness gives them: with the user and the password before the addresses, if
/// they want one.
pub(crate) fn config(servers: &str) -> ZooKeeperConfig {
    let mut config = ZooKeeperConfig::from_url_parts(&format!("//{servers}"), &[]).expect("a URL");
    config.session_timeout = SESSION;
    // Told, so that no session is opened to find it out: tests look at the sessions that are
    // opened.
    config.tick_time = Some(TICK);
    config
}

pub(crate) async fn open(servers: &str) -> ZooKeeper {
    ZooKeeper::open(config(servers), Arc::new(SystemClock))
        .await
        .expect("opens")
}

/// A locker whose renewal thread is connected.
pub(crate) async fn locker(servers: &str) -> Locker {
    let locker = Locker::new(open(servers).await.lock());
    locker.ready().await.expect("connects");
    locker
}

/// A client that knows nothing of locks, and shows the user that stands before the addresses.
pub(crate) async fn stranger(servers: &str) -> zk::Client {
    let (connector, hosts) = match servers.rsplit_once('@') {
        Some((user, hosts)) => {
            let connector = zk::Client::connector().with_auth("digest", user.as_bytes());
            (connector, hosts)
        }
        None => (zk::Client::connector(), servers),
    };
    connector.connect(hosts).await.expect("connects")
}

/// Where the contenders of a name are.
pub(crate) fn container(name: &str) -> String {
    format!("/distlock/locks/{}", encode(name))
}

/// The contenders of a name, in no order. A server may drop its clients when one of them comes back with requests of an
/// older connection on their way, so this asks again.
pub(crate) async fn contenders(client: &zk::Client, name: &str) -> Vec<String> {
    eventually("an answer", async || {
        client.sync("/").await.ok()?;
        match client.list_children(&container(name)).await {
            Ok(children) => Some(children),
            Err(zk::Error::NoNode) => Some(Vec::new()),
            Err(_) => None,
        }
    })
    .await
}

/// A release that must be clean.
pub(crate) async fn give_back(guard: Guard) {
    let name = guard.name().clone();
    let released = guard.release().await;
    assert!(released.is_clean(), "{name:?}: {released:?}");
}

pub(crate) async fn hold(locker: &Locker, name: &str) -> Guard {
    let acquired = within("held", locker.lock(name).wait(SOON).acquire()).await;
    acquired.expect("acquires")
}

/// Stands in the queue, alone behind the holder; answers with the guard and the moment it was granted.
pub(crate) async fn line_up(locker: &Locker, name: &str) -> JoinHandle<(Guard, Moment)> {
    let stand = async |many: u32| {
        eventually("in the queue", async || {
            (waiters(locker, name).await == many).then_some(())
        })
        .await;
    };
    // Whoever asked and did not wait has gone.
    stand(0).await;
    let acquiring = locker.lock(name).wait(SOON * 2).acquire();
    let waiting = tokio::spawn(async move {
        let guard = acquiring.await.expect("acquires");
        (guard, now())
    });
    stand(1).await;
    waiting
}

/// As [`line_up`], behind a guard that must not believe in its lock any more when the next one gets it.
pub(crate) async fn line_up_behind(guard: &Guard, locker: &Locker) -> JoinHandle<(Guard, Moment)> {
    let watch = guard.watch();
    let waiting = line_up(locker, guard.name().as_str()).await;
    tokio::spawn(async move {
        let next = waiting.await.expect("acquires");
        assert!(!watch.is_valid(), "two at once");
        next
    })
}

pub(crate) async fn waiters(locker: &Locker, name: &str) -> u32 {
    let info = locker.inspect(name).await.expect("answers");
    info.waiters.expect("is counted")
}

/// A request as the core makes it.
pub(crate) fn request(name: &str, ttl: Duration) -> AcquireRequest {
    AcquireRequest::new(
        LockName::new(name).expect("a name"),
        OwnerId::new(),
        Ttl::new(ttl).expect("a ttl"),
        HolderLabel::new("test").expect("a label"),
    )
}

/// Requests that all servers have had from clients so far.
pub(crate) fn requests(ensemble: &servers::ZooKeeper) -> u64 {
    (0..ensemble.len())
        .map(|at| figure(ensemble, at, "zk_packets_received"))
        .sum()
}

/// What a server tells about itself.
pub(crate) fn figure(ensemble: &servers::ZooKeeper, at: usize, name: &str) -> u64 {
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
