//! One server's view: the number of its sessions, and the requests on their connections.

use std::{sync::Arc, time::Duration};

use distlock_core::{Locker, RecordKey, SystemClock};
use distlock_harness::servers::zookeeper::{Setup, ZooKeeper};
use distlock_zookeeper::ZooKeeper as Backend;
use tokio::task::JoinHandle;

use crate::{
    fixtures::{
        SOON, config, container, contenders, eventually, figure, hold, locker, now, raw_client,
        release_cleanly, waiters, within,
    },
    protocol_proxy::{ProtocolProxy, Request},
};

/// The longest session that this server's tick allows. A test cannot mistake the end of such a
/// session for its closing.
const LONG: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_requests_of_one_store() {
    let server = ZooKeeper::start_with(&Setup {
        servers: 1,
        tick: LONG / 20,
        ..Setup::default()
    })
    .unwrap();
    one_store_is_one_session(&server).await;
    closing_ends_the_session(&server).await;
    creation_and_listing_are_sent_together(&server).await;
    for swapped in [false, true] {
        nothing_is_adopted_from_an_older_session(&server, swapped).await;
    }
}

async fn long_store(server: &ZooKeeper) -> Backend {
    let mut config = config(&server.servers());
    config.session_timeout = LONG;
    let opened = Backend::open(config, Arc::new(SystemClock)).await;
    opened.expect("opens")
}

fn sessions(server: &ZooKeeper) -> u64 {
    figure(server, 0, "zk_global_sessions")
}

/// A store's locks, its records and its keeper threads share one session. The session ends with the
/// last of them, also without a call of `close`.
async fn one_store_is_one_session(server: &ZooKeeper) {
    assert_eq!(sessions(server), 0);
    let store = long_store(server).await;
    let lockers = [Locker::new(store.lock()), Locker::new(store.lock())];
    for (locker, name) in lockers.iter().zip(["a", "b"]) {
        locker.ready().await.unwrap();
        release_cleanly(hold(locker, name).await).await;
    }
    let key = RecordKey::new("a").unwrap();
    assert_eq!(store.records().get(&key).await.unwrap(), None);
    let again = store.lock().reopen().await.unwrap();
    again.health().await.unwrap();
    assert_eq!(sessions(server), 1);
    let start = now();
    drop((store, lockers, again));
    ends(server, "forgotten").await;
    assert!(
        now().since(start) < LONG / 2,
        "before the session times out"
    );
}

/// The servers learn of the end at once, and contenders behind the session's entries get their
/// locks.
async fn closing_ends_the_session(server: &ZooKeeper) {
    let open = async || {
        let locker = Locker::new(long_store(server).await.lock());
        locker.ready().await.expect("connects");
        locker
    };
    let [ahead, closed, behind] = [open().await, open().await, open().await];
    release_cleanly(hold(&closed, "nothing is held").await).await;
    assert_eq!(sessions(server), 3);
    let guard = hold(&ahead, "closed").await;
    let mut queue: Vec<JoinHandle<_>> = Vec::new();
    for (locker, place) in [(&closed, 1), (&behind, 2)] {
        queue.push(tokio::spawn(locker.lock("closed").wait(SOON * 2).acquire()));
        eventually("the contender is in the queue", async || {
            (waiters(&ahead, "closed").await == place).then_some(())
        })
        .await;
    }
    let start = now();
    closed.close().await;
    eventually("one session less", async || {
        (sessions(server) == 2).then_some(())
    })
    .await;
    release_cleanly(guard).await;
    let granted = queue.pop().expect("two are in the queue");
    let granted = within("the waiter gets the lock", granted)
        .await
        .unwrap()
        .unwrap();
    assert!(
        now().since(start) < LONG / 2,
        "before the session times out"
    );
    release_cleanly(granted).await;
    ahead.close().await;
    behind.close().await;
    ends(server, "closed").await;
    assert!(
        now().since(start) < LONG / 2,
        "before the sessions time out"
    );
}

async fn ends(server: &ZooKeeper, how: &str) {
    eventually(how, async || (sessions(server) == 0).then_some(())).await;
}

/// Neither request waits for the other's answer, so a free lock costs one round trip.
async fn creation_and_listing_are_sent_together(server: &ZooKeeper) {
    let proxy = ProtocolProxy::start(server.address(0)).await;
    let locker = locker(&server.reached_at(&[proxy.address])).await;
    release_cleanly(hold(&locker, "other").await).await;
    // The container exists.
    let client = raw_client(&server.servers()).await;
    release_cleanly(hold(&self::locker(&server.servers()).await, "together").await).await;
    assert!(contenders(&client, "together").await.is_empty());
    let before = proxy.requests().len();
    proxy.hold_answers(true);
    let acquiring = tokio::spawn(locker.lock("together").wait(SOON).acquire());
    eventually("both have come", async || {
        let requests = proxy.requests();
        let creation = requests.iter().skip(before).position(|it| it.creates())?;
        let [creation, next, ..] = requests[before + creation..] else {
            return None;
        };
        assert!(next.lists(), "{requests:?}");
        assert_eq!(next.connection, creation.connection, "{requests:?}");
        Some(())
    })
    .await;
    proxy.hold_answers(false);
    release_cleanly(within("acquired", acquiring).await.unwrap().unwrap()).await;
    locker.close().await;
}

/// A contender was created and the answer was lost. Before the client can ask, its session has
/// ended, or it was given another one while the old one lives on. The next contender belongs to the
/// new session.
async fn nothing_is_adopted_from_an_older_session(server: &ZooKeeper, swapped: bool) {
    let proxy = ProtocolProxy::start(server.address(0)).await;
    let locker = locker(&server.reached_at(&[proxy.address])).await;
    let client = raw_client(&server.servers()).await;
    release_cleanly(hold(&locker, "adopted").await).await;
    let old = proxy.session();
    proxy.lose_answer(Request::creates);
    let acquiring = tokio::spawn(locker.lock("adopted").wait(SOON).acquire());
    within("the answer is lost", proxy.lost_answer()).await;
    let left = contenders(&client, "adopted").await;
    assert_eq!(left.len(), 1, "{left:?}");
    if swapped {
        proxy.swap_session();
    } else {
        eventually("the session has ended", async || {
            proxy.end_session(&old).await.ok()
        })
        .await;
    }
    proxy.accept_again();
    let guard = within("acquired", acquiring).await.unwrap().unwrap();
    assert!(guard.is_valid());
    let held = contenders(&client, "adopted").await;
    assert_eq!(held.len(), 1, "{held:?}");
    assert_ne!(held, left);
    let path = format!("{}/{}", container("adopted"), held[0]);
    let stat = client.check_stat(&path).await.unwrap().expect("it is held");
    assert_ne!(stat.ephemeral_owner, old.id());
    assert_eq!(u64::try_from(stat.czxid).unwrap(), guard.token().get());
    release_cleanly(guard).await;
    assert!(contenders(&client, "adopted").await.is_empty());
    locker.close().await;
}
