//! Connections that were idle, and that a firewall or load balancer on the way may have forgotten.
#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]
#![expect(clippy::print_stdout, reason = "it says what it measured")]

use std::time::{Duration, Instant};

use crate::common::{pause, redis, request, take};
use distlock_core::{DistLock, Lease, ReleaseOutcome};
use distlock_harness::{
    FaultProxy,
    servers::redis::{RedisCluster, RedisSentinels, RedisServer},
};
use distlock_redis::own_commands::Connections;

/// The device on the way forgets a connection after this time, which is longer than the one after
/// which the library tests a connection.
const FORGETS: Duration = Duration::from_secs(11);

/// The longest time that a request after idle time may take, together with a usual request.
const LONGEST: Duration = Duration::from_millis(500);

/// Acquires and releases a lock, and returns the time of the acquire.
async fn cycle(lock: &dyn DistLock) -> Duration {
    let wanted = request("a", Duration::from_secs(60));
    let start = Instant::now();
    let grant = take(lock, &wanted).await;
    let took = start.elapsed();
    let lease = Lease::new(wanted.name, wanted.owner, Some(grant.token));
    let released = lock.release(&lease).await.unwrap();
    assert!(
        matches!(released, ReleaseOutcome::Released { .. }),
        "{released:?}"
    );
    took
}

/// Sends a command of the test's own, and returns the time that it took.
async fn own_command(connections: &Connections) -> Duration {
    let start = Instant::now();
    let mut connection = connections.take().await.unwrap();
    let ping = redis::cmd("PING").exec_async(&mut connection).await;
    ping.unwrap();
    connections.give_back(connection);
    start.elapsed()
}

async fn forgetful(server: &RedisServer) -> FaultProxy {
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    proxy.forget_idle(FORGETS);
    proxy
}

/// The connections of clients that speak RESP3, as this library does.
fn connections(server: &RedisServer) -> Vec<String> {
    let clients = server.command(&["CLIENT", "LIST"]).unwrap();
    let ours = clients.lines().filter(|client| client.contains("resp=3"));
    ours.filter_map(|client| client.split(' ').next().map(str::to_owned))
        .collect()
}

/// The tested connections run into the limit at the same time, so one idle time serves all.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_after_idle_time_is_served_at_once() {
    // Nobody forgets a connection to this server.
    let reliable = RedisServer::start().unwrap();
    let direct = redis(&reliable.url()).await.unwrap().lock();

    let server = RedisServer::start().unwrap();
    let proxy = forgetful(&server).await;
    let single = redis(&server.url_at(proxy.address())).await.unwrap().lock();

    let own = Connections::new(&server.url_at(proxy.address())).unwrap();

    // The connections to the sentinels lead through proxies; the primary is asked directly.
    let servers = RedisSentinels::start().unwrap();
    let mut url = servers.url();
    let mut proxies = Vec::new();
    for sentinel in &servers.sentinels {
        let proxy = forgetful(sentinel).await;
        let (from, to) = (sentinel.address().to_string(), proxy.address().to_string());
        assert!(url.contains(&from), "{url}");
        url = url.replace(&from, &to);
        proxies.push(proxy);
    }
    let sentinel = redis(&url).await.unwrap().lock();

    let cluster = RedisCluster::start(3, 0).unwrap();
    let spread = redis(&cluster.url()).await.unwrap().lock();

    let stores = [
        ("direct", &direct),
        ("single", &single),
        ("sentinel", &sentinel),
        ("cluster", &spread),
    ];
    for (_, lock) in stores {
        cycle(&**lock).await;
    }
    own_command(&own).await;
    let before = connections(&reliable);
    pause(FORGETS + Duration::from_secs(1)).await;
    for (store, lock) in stores {
        let took = cycle(&**lock).await;
        println!("{store}: {took:?}");
        assert!(took < LONGEST, "{store}: {took:?}");
    }
    let took = own_command(&own).await;
    println!("own commands: {took:?}");
    assert!(took < LONGEST, "own commands: {took:?}");
    assert_eq!(connections(&reliable), before, "a good connection is kept");
    for (_, lock) in stores {
        lock.close().await;
    }
}
