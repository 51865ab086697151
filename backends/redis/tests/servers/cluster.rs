//! A cluster whose servers join, leave and fail, and servers that report different slot maps.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::common::{SOON, locker, redis, request, slot_migration::SlotMigration, take, within};
use distlock_core::{
    Attempt, DistLock, Epoch, ErrorKind, Guard, Health, Lease, Locker, ReleaseOutcome, Renewal,
    Renewed, Ttl, Verdict,
};
use distlock_harness::{
    FaultProxy, eventually_async, free_port,
    servers::redis::{RedisCluster, RedisServer},
};
use futures_util::future::join_all;

/// A time that is longer than moving a third of all slots on a busy machine.
const TTL: Duration = Duration::from_secs(20);

async fn hold(locker: &Locker, name: &str) -> Guard {
    let acquired = locker.lock(name).ttl(TTL).wait(SOON).acquire();
    acquired.await.unwrap()
}

/// Runs `redis-cli --cluster`, like an operator.
fn redis_cli_cluster(servers: &RedisCluster, arguments: &[&str]) {
    let output = servers.cli().arg("--cluster").args(arguments).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{arguments:?}: {said}");
}

/// Returns the index of the server that has a lock.
fn server_with(servers: &RedisCluster, name: &str) -> usize {
    let pattern = format!("*:lock:{name}");
    let has_it = |node: &RedisServer| !node.command(&["KEYS", &pattern]).unwrap().is_empty();
    servers.nodes.iter().position(has_it).unwrap()
}

/// A server that was started for a cluster and never joined it has an empty slot map, and answers
/// quickly.
#[tokio::test(flavor = "multi_thread")]
async fn the_map_of_a_server_outside_the_cluster_is_not_used() {
    let bus = format!("cluster-port {}", free_port().unwrap());
    let servers = RedisCluster::start(3, 0).unwrap();
    let password = format!("requirepass {}", servers.password());
    let alone = RedisServer::with(&["cluster-enabled yes", &bus, &password]).unwrap();
    let others = servers.url();
    let url = others.replace('@', &format!("@{},", alone.address()));
    for _ in 0..10 {
        let locker = locker(&url).await;
        let guard = locker.lock("a").wait(Duration::ZERO).acquire().await;
        assert!(guard.unwrap().release().await.is_clean());
        locker.close().await;
    }
    let url = alone.url().replace("redis://", "redis+cluster://");
    let refused = redis(&url).await.unwrap_err();
    assert!(refused.to_string().contains("no cluster"), "{refused}");
}

/// An operator moves all slots of a server away and removes it from the cluster. The server still
/// runs, and knows no later lock.
#[tokio::test(flavor = "multi_thread")]
async fn the_answers_of_a_server_that_left_the_cluster_are_not_used() {
    let servers = RedisCluster::start(3, 0).unwrap();
    let mut names = (0..).map(|n| format!("lock-{n}"));
    // Each client reads the slot map itself, from another server first. Each client has one lock
    // that moves and one that stays.
    let mut clients = Vec::new();
    for _ in 0..6 {
        let locker = locker(&servers.url()).await;
        let (mut moving, mut staying) = (None, None);
        while moving.is_none() || staying.is_none() {
            let name = names.next().unwrap();
            let guard = hold(&locker, &name).await;
            match server_with(&servers, &name) {
                0 => moving = Some(guard),
                _ => staying = Some(guard),
            }
        }
        clients.push((locker, [moving.unwrap(), staying.unwrap()]));
    }
    let id = |node: usize| servers.nodes[node].command(&["CLUSTER", "MYID"]).unwrap();
    let (at, leaving, staying) = (servers.nodes[1].address().to_string(), id(0), id(1));
    let mut move_all = vec!["reshard", &*at, "--cluster-from", &*leaving];
    move_all.extend(["--cluster-to", &*staying, "--cluster-slots", "16384"]);
    move_all.extend(["--cluster-pipeline", "100", "--cluster-yes"]);
    redis_cli_cluster(&servers, &move_all);
    redis_cli_cluster(&servers, &["del-node", &at, &leaving]);
    let slots = servers.nodes[0].command(&["CLUSTER", "SLOTS"]).unwrap();
    assert_eq!(slots, "", "it knows nothing any more");
    for (locker, guards) in &clients {
        for guard in guards {
            let extended = eventually_async("the lock is renewed", SOON, || async {
                guard.extend(TTL).await.ok()
            });
            extended.await.unwrap();
            // A renewal uses another connection than this read.
            let found = eventually_async("the lock is found", SOON, || async {
                locker.inspect(guard.name().as_str()).await.ok()
            });
            assert_eq!(found.await.unwrap().last_token, Some(guard.token()));
            assert!(guard.is_valid());
        }
    }
}

/// A shard fails over, and only grants are sent there. The renewals of another shard's locks must
/// report the same epoch as the grants.
#[tokio::test(flavor = "multi_thread")]
async fn all_operations_of_a_process_report_the_same_epoch() {
    let servers = RedisCluster::start(3, 1).unwrap();
    let locker = locker(&servers.url()).await;
    let mut names = (0..).map(|n| format!("lock-{n}"));
    let mut on_shard = [None, None];
    while let Some(shard) = on_shard.iter().position(Option::is_none) {
        let name = names.next().unwrap();
        let guard = hold(&locker, &name).await;
        if server_with(&servers, &name) == shard {
            on_shard[shard] = Some(name);
        }
        assert!(guard.release().await.is_clean());
    }
    let [moved, stays] = on_shard.map(Option::unwrap);
    let before = hold(&locker, &stays).await;
    let old = before.epoch();
    let primary = servers.nodes[0].command(&["CLUSTER", "MYID"]).unwrap();
    let replica = servers.nodes[3..].iter().find(|node| {
        let nodes = node.command(&["CLUSTER", "NODES"]).unwrap();
        let own = nodes.lines().find(|line| line.contains("myself"));
        own.unwrap().contains(&primary)
    });
    let replica = replica.unwrap();
    // A takeover needs no votes of other servers, so it cannot fail for lack of votes.
    let takeover = replica.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    assert_eq!(takeover.unwrap(), "OK");
    eventually_async("the former primary follows it", SOON, || async {
        (servers.nodes[0].info("role").unwrap() == "slave").then_some(())
    })
    .await
    .unwrap();
    let granted = hold(&locker, &moved).await;
    let new = granted.epoch();
    assert_ne!(new, old);
    for round in 0..2 {
        before.extend(TTL).await.unwrap();
        assert_eq!(before.epoch(), new, "round {round}");
    }
    for guard in [before, granted] {
        assert!(guard.release().await.is_clean());
    }
}

/// The answer after a redirect has the epoch of the server that gave it, even if the client has
/// sent no other request.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirected_grant_reports_the_current_epoch() {
    let servers = RedisCluster::start(3, 0).unwrap();
    // The server joins without a slot, so no slot map names it.
    let bus = format!("cluster-port {}", free_port().unwrap());
    let settings = [
        "cluster-enabled yes",
        "cluster-node-timeout 3000",
        // The server stays a primary although it has no slots.
        "cluster-allow-replica-migration no",
        &bus,
        &format!("requirepass {}", servers.password()),
    ];
    let joined = RedisServer::with(&settings).unwrap();
    let (host, port) = ("127.0.0.1", joined.port().to_string());
    let bus = bus.split(' ').nth(1).unwrap();
    let meet = servers.nodes[0].command(&["CLUSTER", "MEET", host, &port, bus]);
    assert_eq!(meet.unwrap(), "OK");
    eventually_async("everybody knows it", SOON, || async {
        let all = || servers.nodes.iter().chain([&joined]);
        let ids = all().map(|node| node.command(&["CLUSTER", "MYID"]).unwrap());
        let ids: Vec<_> = ids.collect();
        let knows_all = |node: &RedisServer| {
            let known = node.command(&["CLUSTER", "NODES"]).unwrap();
            let info = node.command(&["CLUSTER", "INFO"]).unwrap();
            info.contains("cluster_state:ok") && ids.iter().all(|id| known.contains(id))
        };
        all().all(knows_all).then_some(())
    })
    .await
    .unwrap();
    let from = {
        let guard = hold(&locker(&servers.url()).await, "a").await;
        let from = server_with(&servers, "a");
        assert!(guard.release().await.is_clean());
        &servers.nodes[from]
    };
    let keys = from.command(&["KEYS", "*:counter"]).unwrap();
    let key = keys.lines().next().unwrap();
    let move_key = |from: &RedisServer, to: &RedisServer| {
        let moving = SlotMigration::begin(from, to, key);
        moving.move_keys(&[key]);
        moving.end();
    };
    // Another client loads the script on this server. Otherwise this client would send the script's
    // source and then read the slot map again.
    move_key(from, &joined);
    acquire_and_release(&*redis(&servers.url()).await.unwrap().lock()).await;
    move_key(&joined, from);
    let store = redis(&servers.url()).await.unwrap();
    let lock = store.lock();
    let old = acquire_and_release(&*lock).await;
    move_key(from, &joined);
    let new = acquire_and_release(&*lock).await;
    assert_ne!(new, old, "of the server that it was redirected to");
    // Operations on other buckets report the same epoch.
    for name in ["b", "c", "d"] {
        let next = take(&*lock, &request(name, TTL)).await;
        assert_eq!(next.epoch, new);
    }
}

/// Acquires a lock and releases it. Returns the epoch of the grant.
async fn acquire_and_release(lock: &dyn DistLock) -> Epoch {
    let request = request("a", TTL);
    let grant = take(lock, &request).await;
    let lease = Lease::new(request.name, request.owner, Some(grant.token));
    lock.release(&lease).await.unwrap();
    grant.epoch
}

/// While a slot migrates to a new server, a client cannot make that server track keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_survives_the_migration_of_its_slot() {
    let servers = RedisCluster::start(3, 0).unwrap();
    let (holder, waiter) = (locker(&servers.url()).await, locker(&servers.url()).await);
    let name = "waited-for";
    let guard = holder.lock(name).ttl(TTL * 30).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock(name).wait(SOON * 3).acquire());
    let from = server_with(&servers, name);
    let (old, new) = (&servers.nodes[from], &servers.nodes[(from + 1) % 3]);
    eventually_async("the server tracks the key", SOON, || async {
        (old.info("tracking_total_keys").unwrap() == "1").then_some(())
    })
    .await
    .unwrap();

    let key = old.command(&["KEYS", &format!("*:lock:{name}")]).unwrap();
    let moving = SlotMigration::begin(old, new, &key);
    let keys = old.command(&["CLUSTER", "GETKEYSINSLOT", &moving.slot, "100"]);
    moving.move_keys(&keys.unwrap().lines().collect::<Vec<_>>());
    // After the source of the script was sent to the new server, the waiter finds the lock held
    // there.
    eventually_async("found held at the new place", SOON, || async {
        (new.calls("asking").unwrap() >= 2).then_some(())
    })
    .await
    .unwrap();

    assert!(guard.release().await.is_clean());
    moving.end();
    let guard = within(SOON / 4, "the waiter wakes up", waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(guard.release().await.is_clean());
}

/// Servers that do not know their own names give only a port in a redirect, in one of two
/// notations.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_with_only_a_port_is_followed() {
    let servers = RedisCluster::start(3, 0).unwrap();
    for (kind, redirect) in [("hostname", " ?:"), ("unknown-endpoint", " :")] {
        for node in &servers.nodes {
            let set = ["CONFIG", "SET", "cluster-preferred-endpoint-type", kind];
            assert_eq!(node.command(&set).unwrap(), "OK");
        }
        let lock = redis(&servers.url()).await.unwrap().lock();
        let wanted = request(kind, TTL * 30);
        take(&*lock, &wanted).await;
        let from = server_with(&servers, kind);
        let (old, new) = (&servers.nodes[from], &servers.nodes[(from + 1) % 3]);
        let key = old.command(&["KEYS", &format!("*:lock:{kind}")]).unwrap();
        let moving = SlotMigration::begin(old, new, &key);
        let keys = old.command(&["CLUSTER", "GETKEYSINSLOT", &moving.slot, "100"]);
        moving.move_keys(&keys.unwrap().lines().collect::<Vec<_>>());
        let sent_away = old.command(&["GET", &key]).unwrap();
        assert!(sent_away.contains(redirect), "{sent_away}");
        let other = request(kind, TTL);
        assert!(matches!(
            lock.try_acquire(&other).await.unwrap(),
            Attempt::Busy(_)
        ));
        let lease = Lease::new(wanted.name.clone(), wanted.owner, None);
        let released = lock.release(&lease).await.unwrap();
        assert!(matches!(released, ReleaseOutcome::Released { .. }));
        moving.end();
    }
}

/// A migration may take long or stop halfway. A free lock is then on no server, and the counter of
/// its bucket is on one of the two.
#[tokio::test(flavor = "multi_thread")]
async fn locks_are_acquired_renewed_and_released_while_their_slot_migrates() {
    let servers = RedisCluster::start(3, 0).unwrap();
    let lock = redis(&servers.url()).await.unwrap().lock();
    let mut of_bucket: BTreeMap<String, Vec<(String, Lease)>> = BTreeMap::new();
    let mut names = (0..).map(|n| format!("lock-{n}"));
    let (bucket, mut held) = loop {
        let name = names.next().unwrap();
        let request = request(&name, TTL * 30);
        let grant = take(&*lock, &request).await;
        let pattern = format!("*:lock:{name}");
        let mut found = servers.nodes.iter();
        let key = found.find_map(|node| {
            let key = node.command(&["KEYS", &pattern]).unwrap();
            (!key.is_empty()).then_some(key)
        });
        let key = key.unwrap();
        let bucket = key.split_inclusive("}:").next().unwrap().to_owned();
        let lease = Lease::new(request.name, request.owner, Some(grant.token));
        let neighbours = of_bucket.entry(bucket.clone()).or_default();
        neighbours.push((key, lease));
        if neighbours.len() == 3 {
            break (bucket.clone(), of_bucket.remove(&bucket).unwrap());
        }
    };
    let (key, freed) = held.remove(2);
    assert!(matches!(
        lock.release(&freed).await.unwrap(),
        ReleaseOutcome::Released { .. }
    ));

    let from = server_with(&servers, held[0].1.name.as_str());
    let (old, new) = (&servers.nodes[from], &servers.nodes[(from + 1) % 3]);
    let moving = SlotMigration::begin(old, new, &key);
    // The counter is still on the old server, which creates no new keys in this slot.
    let name = freed.name.as_str();
    let refused = lock.try_acquire(&request(name, TTL)).await.unwrap_err();
    assert!(
        refused.did_not_happen() && refused.is_retryable(),
        "{refused}"
    );
    moving.move_keys(&[&format!("{bucket}counter"), &held[0].0]);
    let wanted = request(name, TTL * 30);
    let grant = take(&*lock, &wanted).await;
    assert!(Some(grant.token) > freed.token, "{grant:?} after {freed:?}");
    held.push((
        key,
        Lease::new(wanted.name, wanted.owner, Some(grant.token)),
    ));
    // Each server has one of the held locks. The other server must not grant that lock again.
    for (_, lease) in &held {
        let wanted = request(lease.name.as_str(), TTL);
        let answer = lock.try_acquire(&wanted).await.unwrap();
        let Attempt::Busy(Some(holder)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(holder.token, lease.token);
        let mut contender = lock.contend(&wanted).await.unwrap();
        let answer = contender.attempt().await.unwrap();
        assert!(matches!(answer, Attempt::Busy(_)), "{answer:?}");
    }
    // The locks of this batch are on both servers.
    let renewal = Renewal::plain(Ttl::new(TTL * 30).unwrap());
    let renewed = held.iter().map(|(_, lease)| lock.renew(lease, &renewal));
    for renewed in join_all(renewed).await {
        assert!(matches!(renewed.unwrap(), Renewed::Extended { .. }));
    }
    for outcome in join_all(held.iter().map(|(_, lease)| lock.release(lease))).await {
        assert!(matches!(outcome.unwrap(), ReleaseOutcome::Released { .. }));
    }
    moving.end();
    for (_, lease) in &held {
        take(&*lock, &request(lease.name.as_str(), TTL)).await;
    }
    lock.close().await;
}

/// A cluster has unserved slots. A list of the locks in the other slots must be refused, because it
/// is incomplete.
#[tokio::test(flavor = "multi_thread")]
async fn unserved_slots_are_reported_and_lists_are_refused() {
    let servers = RedisCluster::start(3, 0).unwrap();
    for node in &servers.nodes {
        let serve = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        assert_eq!(node.command(&serve).unwrap(), "OK");
    }
    let lock = redis(&servers.url()).await.unwrap().lock();
    let kept = request("kept", TTL * 30);
    take(&*lock, &kept).await;
    let slots = |health: Health| {
        let mut findings = health.findings.into_iter();
        let finding = findings.find(|finding| finding.check == "slots").unwrap();
        (finding.verdict, finding.detail)
    };
    assert_eq!(slots(lock.health().await.unwrap()).0, Verdict::Pass);
    assert_eq!(lock.list("", None, 10).await.unwrap().len(), 1);
    // A slot without a lock of this test becomes the unserved slot.
    let at = server_with(&servers, "kept");
    let key = servers.nodes[at].command(&["KEYS", "*:lock:kept"]).unwrap();
    let slot = servers.nodes[at].command(&["CLUSTER", "KEYSLOT", &key]);
    let slot: u16 = slot.unwrap().parse().unwrap();
    let other = if slot < 8192 { "16000" } else { "5" };
    for node in &servers.nodes {
        assert_eq!(node.command(&["CLUSTER", "DELSLOTS", other]).unwrap(), "OK");
    }
    let (verdict, detail) = slots(lock.health().await.unwrap());
    assert_eq!(verdict, Verdict::Fail);
    assert!(detail.contains("nobody serves 1 of 16384"), "{detail}");
    let refused = lock.list("", None, 10).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(
        refused.to_string().contains("nobody serves 1 "),
        "{refused}"
    );
    let info = lock.inspect(&kept.name).await.unwrap();
    assert!(info.held.is_some(), "{info:?}");
    lock.close().await;
}

/// The error names the servers that the user named, and not only an address of an old map.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_cluster_is_named_as_in_the_url() {
    let mut servers = RedisCluster::start(3, 0).unwrap();
    let url = servers.nodes[0]
        .url()
        .replace("redis://", "redis+cluster://");
    let lock = redis(&url).await.unwrap().lock();
    take(&*lock, &request("a", TTL)).await;
    servers.nodes.iter_mut().for_each(RedisServer::kill);
    // The outcome of a request on a connection that breaks is unknown.
    let refused = eventually_async("it is refused", SOON, || async {
        let attempt = lock.try_acquire(&request("b", TTL)).await;
        attempt
            .err()
            .filter(|error| error.kind() == ErrorKind::Unavailable)
    });
    let refused = refused.await.unwrap().to_string();
    let seed = servers.nodes[0].address();
    let says = format!("no server of redis+cluster://{seed} answers, and none of 2 more");
    assert!(refused.contains(&says), "{refused}");
    lock.close().await;
}

/// A third of the locks has no server. The others are served as before, even for new clients, and
/// no epoch changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_one_primary_opens_and_serves_the_other_slots() {
    let mut servers = RedisCluster::start(3, 0).unwrap();
    for node in &servers.nodes {
        let serve = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        assert_eq!(node.command(&serve).unwrap(), "OK");
    }
    let before = locker(&servers.url()).await;
    let mut names = (0..).map(|n| format!("lock-{n}"));
    let (mut dead, mut alive) = (Vec::new(), Vec::new());
    while dead.is_empty() || alive.len() < 2 {
        let name = names.next().unwrap();
        let guard = hold(&before, &name).await;
        match server_with(&servers, &name) {
            0 => dead.push(name),
            _ => alive.push(name),
        }
        assert!(guard.release().await.is_clean());
    }
    let (dead, held, spare) = (&dead[0], &alive[0], &alive[1]);
    let guard = hold(&before, held).await;
    let epoch = guard.epoch();
    let at = servers.nodes[0].address().to_string();
    servers.nodes[0].kill();
    // This is true before and after the other servers have noticed the failure.
    let noticed = |node: &RedisServer| {
        let nodes = node.command(&["CLUSTER", "NODES"]).unwrap();
        nodes.lines().any(|line| line.contains("master,fail "))
    };
    for waits in [false, true] {
        if waits {
            eventually_async("the others noticed it", SOON, || async {
                servers.nodes[1..].iter().all(noticed).then_some(())
            })
            .await
            .unwrap();
        }
        let after = locker(&servers.url()).await;
        let found = after.inspect(held).await.unwrap();
        assert_eq!(found.last_token, Some(guard.token()));
        let refused = after.lock(dead).wait(Duration::ZERO).acquire().await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains(&at), "{refused}");
        // An incomplete list must be refused.
        let refused = after.list("").await.unwrap_err();
        assert!(refused.to_string().contains(&at), "{refused}");
        let health = after.health().await.unwrap();
        let mut findings = health.findings.iter();
        let slots = findings.find(|found| found.check == "slots").unwrap();
        assert_eq!(slots.verdict, Verdict::Fail, "{health:?}");
        assert!(slots.detail.contains(&at), "{health:?}");
        for locker in [&before, &after] {
            let taken = hold(locker, spare).await;
            assert_eq!(
                locker.inspect(spare).await.unwrap().last_token,
                Some(taken.token())
            );
            taken.extend(TTL).await.unwrap();
            assert!(taken.release().await.is_clean());
        }
        let taken = hold(&before, spare).await;
        guard.extend(TTL).await.unwrap();
        for guard in [&taken, &guard] {
            assert_eq!(guard.epoch(), epoch, "a primary is gone, and no history");
        }
        assert!(taken.release().await.is_clean());
    }
    // The server starts again: held locks stay valid, and every client reports the same epoch
    // again.
    servers.nodes[0].restart().unwrap();
    let after = locker(&servers.url()).await;
    let taken = eventually_async("it serves again", SOON, || async {
        let taken = after.lock(dead).ttl(TTL).wait(Duration::ZERO).acquire();
        taken.await.ok()
    })
    .await
    .unwrap();
    assert_eq!(
        before.inspect(dead).await.unwrap().last_token,
        Some(taken.token())
    );
    eventually_async("one history", SOON, || async {
        guard.extend(TTL).await.unwrap();
        taken.extend(TTL).await.unwrap();
        (guard.epoch() == taken.epoch()).then_some(())
    })
    .await
    .unwrap();
    assert_ne!(guard.epoch(), epoch);
    assert!(guard.is_valid());
}

/// All servers accept connections and none answers. A batch must not wait for one attempt to
/// connect for each of its locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_cluster_costs_one_time_out_for_all_locks() {
    let servers = RedisCluster::start(3, 0).unwrap();
    let mut proxies = Vec::new();
    for node in &servers.nodes {
        let proxy = FaultProxy::start(node.address()).await.unwrap();
        let port = proxy.address().port().to_string();
        let announce = ["CONFIG", "SET", "cluster-announce-port", &port];
        assert_eq!(node.command(&announce).unwrap(), "OK");
        proxies.push(proxy);
    }
    let ports = proxies.iter().map(|proxy| proxy.address().port());
    let ports: Vec<_> = ports.map(|port| port.to_string()).collect();
    eventually_async("everybody knows of the proxies", SOON, || async {
        let knows = |node: &RedisServer| {
            let slots = node.command(&["CLUSTER", "SLOTS"]).unwrap();
            ports
                .iter()
                .all(|port| slots.lines().any(|line| line == port))
        };
        servers.nodes.iter().all(knows).then_some(())
    })
    .await
    .unwrap();
    let seeds: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let (password, seeds) = (servers.password(), seeds.join(","));
    let url = format!("redis+cluster://:{password}@{seeds}");
    let lock = redis(&url).await.unwrap().lock();
    // The slots are different and close together, so the locks share a batch queue.
    let (mut requests, mut slots) = (Vec::new(), BTreeSet::new());
    let mut names = (0..).map(|n| format!("lock-{n}"));
    while requests.len() < 16 {
        let name = names.next().unwrap();
        let request = request(&name, TTL);
        take(&*lock, &request).await;
        let node = &servers.nodes[server_with(&servers, &name)];
        let key = node.command(&["KEYS", &format!("*:lock:{name}")]).unwrap();
        let slot = node.command(&["CLUSTER", "KEYSLOT", &key]).unwrap();
        let slot: u16 = slot.parse().unwrap();
        if slot < 1024 && slots.insert(slot) {
            requests.push(request);
        }
    }
    proxies.iter().for_each(FaultProxy::black_hole);
    // This first request detects that no server answers.
    let asked = lock.inspect(&requests[0].name).await;
    assert!(asked.unwrap_err().is_retryable());
    let asked = join_all(requests.iter().map(|request| lock.try_acquire(request)));
    for refused in within(SOON, "all are refused", asked).await {
        assert!(refused.unwrap_err().is_retryable());
    }
    within(SOON, "the store is closed", lock.close()).await;
}
