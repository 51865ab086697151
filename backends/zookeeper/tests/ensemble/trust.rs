//! The time for which a session is trusted: at most two thirds of the granted timeout, counted from
//! the sending of the last committed write.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    Attempt, Clock as _, DistLock, Lease, Locker, ManualClock, Renewal, Renewed, SystemClock, Ttl,
    Verdict,
};
use distlock_harness::{
    Direction, FaultProxy,
    servers::zookeeper::{Ports, Setup, ZooKeeper},
};
use distlock_zookeeper::ZooKeeper as Backend;
use tokio::task::JoinHandle;

use crate::{
    fixtures::{
        SESSION, config, enter_queue_behind, eventually, hold, locker, now, release_cleanly,
        request, within,
    },
    protocol_proxy::ProtocolProxy,
};

/// The longest time that a session is trusted.
fn max_trust() -> Duration {
    SESSION * 2 / 3
}

/// A TTL that is longer than any session, so that the session limits the lease.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_trusted_for_two_thirds_of_what_was_granted() {
    let server = ZooKeeper::start_with(&Setup {
        servers: 1,
        ..Setup::default()
    })
    .unwrap();
    a_shorter_granted_timeout_counts(&server).await;
    a_lock_is_invalid_two_thirds_after_a_cut(&server).await;
    a_lease_counts_from_the_sending_of_its_proof(&server).await;
}

/// The servers grant a shorter timeout than the configuration requests, and the granted timeout
/// counts.
async fn a_shorter_granted_timeout_counts(server: &ZooKeeper) {
    let mut config = config(&server.servers());
    config.session_timeout = SESSION * 12;
    let store = Backend::open(config, Arc::new(SystemClock)).await.unwrap();
    let lock = store.lock();
    let longest = lock.capabilities().max_lease.unwrap();
    assert_eq!(lock.capabilities().session_timeout, Some(SESSION));
    assert!(longest <= max_trust(), "{longest:?}");
    let ttl = lock.capabilities().default_ttl;
    assert!(ttl <= longest, "{ttl:?} is more than {longest:?}");
    let locker = Locker::new(lock);
    let guard = within("acquired", locker.lock("less").ttl(LONG).acquire()).await;
    let guard = guard.unwrap();
    // Each renewal extends the lease to about the same length, even when the session is no longer
    // new.
    for _ in 0..20 {
        let granted = guard.ttl().duration();
        assert!(granted <= longest, "{guard:?} of {longest:?}");
        assert!(granted >= longest * 4 / 5, "{guard:?} of {longest:?}");
        assert!(guard.remaining() <= granted, "{guard:?}");
        SystemClock.sleep(SESSION / 20).await;
        guard.extend(LONG).await.unwrap();
    }
    let health = locker.health().await.unwrap();
    let found = health
        .findings
        .iter()
        .find(|finding| finding.check == "session timeout")
        .expect("it was looked at");
    assert_eq!(found.verdict, Verdict::Warn, "{found:?}");
    assert!(found.detail.contains("5s instead of 60s"), "{found:?}");
    release_cleanly(guard).await;
    locker.close().await;
}

/// The connection is cut right after the grant. Two thirds of the session timeout later the lock is
/// invalid.
async fn a_lock_is_invalid_two_thirds_after_a_cut(server: &ZooKeeper) {
    let proxy = FaultProxy::start(server.address(0)).await.unwrap();
    let clock = ManualClock::new();
    let lock = open_with_clock(&server.reached_at(&[proxy.address()]), &clock).await;
    let locker = Locker::builder(lock).clock(Arc::new(clock.clone())).build();
    locker.ready().await.unwrap();
    let acquired = within("acquired", locker.lock("cut").ttl(LONG).acquire()).await;
    let guard = acquired.unwrap();
    proxy.stop(Direction::ToServer);
    proxy.stop(Direction::ToClient);
    // The guard is still valid after the first part of that time. So the guard ends only because
    // the trust ends.
    clock.advance(max_trust() / 4);
    assert!(guard.is_valid());
    clock.advance(max_trust() - max_trust() / 4);
    assert!(!guard.is_valid(), "{guard:?}");
    within("the loss is reported", guard.lost()).await;
}

/// The answer to a proof comes late. A lease that depends on the proof counts from the sending of
/// the proof, not from its answer.
async fn a_lease_counts_from_the_sending_of_its_proof(server: &ZooKeeper) {
    // A later renewal still accepts a proof of this age.
    let late = SESSION / 13;
    let proxy = ProtocolProxy::start(server.address(0)).await;
    let proofs = || proxy.requests().iter().filter(|it| it.is_multi()).count();
    let clock = ManualClock::new();
    let lock = open_with_clock(&server.reached_at(&[proxy.address]), &clock).await;
    let request = request("late", LONG);
    let Attempt::Acquired(grant) = lock.try_acquire(&request).await.unwrap() else {
        panic!("nobody else wants it");
    };
    let lease = Lease::new(request.name, request.owner, Some(grant.token));
    // After this time a renewal needs a new proof.
    clock.advance(max_trust() / 2);
    let before = proofs();
    proxy.hold_answers(true);
    let renewing = renew(&lock, &lease);
    eventually("it is sent", async || (proofs() > before).then_some(())).await;
    clock.advance(late);
    proxy.hold_answers(false);
    let valid_for = within("answered", renewing).await.unwrap();
    assert!(valid_for <= max_trust(), "{valid_for:?}");
    let valid_for = within("answered", renew(&lock, &lease)).await.unwrap();
    assert_eq!(proofs(), before + 1, "the proof is shared");
    assert!(valid_for <= max_trust() - late, "{valid_for:?}");
    // The lock is released first, because `close` would wait for the end of the lease, and the
    // test's clock does not advance by itself.
    lock.release(&lease).await.unwrap();
    within("closed", lock.close()).await;
}

/// Opens a store that uses the test's clock.
async fn open_with_clock(servers: &str, clock: &ManualClock) -> Arc<dyn DistLock> {
    let config = config(servers);
    let store = Backend::open(config, Arc::new(clock.clone())).await;
    store.unwrap().lock()
}

fn renew(lock: &Arc<dyn DistLock>, lease: &Lease) -> JoinHandle<Duration> {
    let (lock, lease) = (Arc::clone(lock), lease.clone());
    tokio::spawn(async move {
        let renewal = Renewal::plain(Ttl::new(LONG).unwrap());
        match lock.renew(&lease, &renewal).await.unwrap() {
            Renewed::Extended { valid_for, .. } => valid_for,
            lost => panic!("{lost:?}"),
        }
    })
}

/// A follower that has lost its leader still answers reads for a while. Such an answer proves
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_alone_proves_nothing() {
    // The first server reaches the others only through proxies. The first server never leads,
    // because it has the lowest number.
    let ports = [(); 3].map(|()| Ports::pick().unwrap());
    let mut proxies = Vec::new();
    for other in &ports[1..] {
        let quorum = (std::net::Ipv4Addr::LOCALHOST, other.quorum).into();
        proxies.push(FaultProxy::start(quorum).await.unwrap());
    }
    let detours = proxies.iter().zip(1..);
    let ensemble = ZooKeeper::start_with(&Setup {
        detours: detours
            .map(|(proxy, other)| (0, other, proxy.address().port()))
            .collect(),
        ports: Some(ports.to_vec()),
        // A follower without a leader still serves for twice the session timeout.
        settings: vec!["syncLimit=40".into()],
        ..Setup::default()
    })
    .unwrap();
    assert!(ensemble.followers().contains(&0));
    let others = ensemble.reached_at(&[ensemble.address(1), ensemble.address(2)]);
    let ours = locker(&ensemble.server(0)).await;
    let theirs = locker(&others).await;
    let guard = hold(&ours, "a").await;
    let next = enter_queue_behind(&guard, &theirs).await;
    let cut = now();
    for proxy in &proxies {
        proxy.stop(Direction::ToServer);
        proxy.stop(Direction::ToClient);
    }
    within("the loss is reported", guard.lost()).await;
    // The session is trusted for two thirds of its timeout. The remaining third is for a busy
    // machine.
    assert!(now().since(cut) < SESSION, "{:?}", now().since(cut));
    assert!(ensemble.followers().contains(&0), "it still answers reads");
    let (next, _) = within("the session has expired", next).await.unwrap();
    assert!(next.token() > guard.token());
    release_cleanly(next).await;
}
