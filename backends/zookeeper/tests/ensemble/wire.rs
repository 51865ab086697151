//! The view of one server: the number of sessions, and the requests on each connection.

use std::{sync::Arc, time::Duration};

use distlock_core::{Locker, RecordKey, SystemClock};
use distlock_harness::servers::zookeeper::{Setup, ZooKeeper};
use distlock_zookeeper::ZooKeeper as Backend;
use tokio::task::JoinHandle;

use crate::{
    fixtures::{
        SOON, config, container_path, contenders, count_waiters, eventually, hold, locker, now,
        raw_client, release_cleanly, server_metric, within,
    },
    protocol_proxy::{ProtocolProxy, Request},
};

/// The longest session that this server's tick allows. A test ends long before such a session
/// expires, so a session that ends during a test was closed.
const LONG: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn one_store_has_one_session_and_sends_few_requests() {
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
        no_node_of_an_older_session_is_adopted(&server, swapped).await;
    }
}

async fn open_with_long_session(server: &ZooKeeper) -> Backend {
    let mut config = config(&server.servers());
    config.session_timeout = LONG;
    let opened = Backend::open(config, Arc::new(SystemClock)).await;
    opened.expect("opens")
}

fn count_sessions(server: &ZooKeeper) -> u64 {
    server_metric(server, 0, "zk_global_sessions")
}

/// A store's locks, its records and its keeper threads share one session. The session ends when the
/// last of them is dropped, even without a call of `close`.
async fn one_store_is_one_session(server: &ZooKeeper) {
    assert_eq!(count_sessions(server), 0);
    let store = open_with_long_session(server).await;
    let lockers = [Locker::new(store.lock()), Locker::new(store.lock())];
    for (locker, name) in lockers.iter().zip(["a", "b"]) {
        locker.ready().await.unwrap();
        release_cleanly(hold(locker, name).await).await;
    }
    let key = RecordKey::new("a").unwrap();
    assert_eq!(store.records().get(&key).await.unwrap(), None);
    let again = store.lock().reopen().await.unwrap();
    again.health().await.unwrap();
    assert_eq!(count_sessions(server), 1);
    let start = now();
    drop((store, lockers, again));
    wait_for_no_session(server, "forgotten").await;
    assert!(
        now().since(start) < LONG / 2,
        "before the session times out"
    );
}

/// The servers learn of the end at once, and contenders behind the entries of the session get their
/// locks.
async fn closing_ends_the_session(server: &ZooKeeper) {
    let open = async || {
        let locker = Locker::new(open_with_long_session(server).await.lock());
        locker.ready().await.expect("connects");
        locker
    };
    let [ahead, closed, behind] = [open().await, open().await, open().await];
    release_cleanly(hold(&closed, "nothing is held").await).await;
    assert_eq!(count_sessions(server), 3);
    let guard = hold(&ahead, "closed").await;
    let mut queue: Vec<JoinHandle<_>> = Vec::new();
    for (locker, place) in [(&closed, 1), (&behind, 2)] {
        queue.push(tokio::spawn(locker.lock("closed").wait(SOON * 2).acquire()));
        eventually("the contender is in the queue", async || {
            (count_waiters(&ahead, "closed").await == place).then_some(())
        })
        .await;
    }
    let start = now();
    closed.close().await;
    eventually("one session less", async || {
        (count_sessions(server) == 2).then_some(())
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
    wait_for_no_session(server, "closed").await;
    assert!(
        now().since(start) < LONG / 2,
        "before the sessions time out"
    );
}

async fn wait_for_no_session(server: &ZooKeeper, how: &str) {
    eventually(how, async || (count_sessions(server) == 0).then_some(())).await;
}

/// The creation and the listing are sent without waiting for an answer in between, so a free lock
/// costs one round trip.
async fn creation_and_listing_are_sent_together(server: &ZooKeeper) {
    let proxy = ProtocolProxy::start(server.address(0)).await;
    let locker = locker(&server.reached_at(&[proxy.address])).await;
    release_cleanly(hold(&locker, "other").await).await;
    // The container is created here, so that the later creation needs no further request.
    let client = raw_client(&server.servers()).await;
    release_cleanly(hold(&self::locker(&server.servers()).await, "together").await).await;
    assert!(contenders(&client, "together").await.is_empty());
    let before = proxy.requests().len();
    proxy.hold_answers(true);
    let acquiring = tokio::spawn(locker.lock("together").wait(SOON).acquire());
    eventually("both have come", async || {
        let requests = proxy.requests();
        let creation = requests
            .iter()
            .skip(before)
            .position(|it| it.is_creation())?;
        let [creation, next, ..] = requests[before + creation..] else {
            return None;
        };
        assert!(next.is_listing(), "{requests:?}");
        assert_eq!(next.connection, creation.connection, "{requests:?}");
        Some(())
    })
    .await;
    proxy.hold_answers(false);
    release_cleanly(within("acquired", acquiring).await.unwrap().unwrap()).await;
    locker.close().await;
}

/// A contender's node was created and the answer was lost. Before the client can look for the node,
/// its session ends, or a server gives the client another session while the old one lives on. The
/// client must not take over the old node: the next node belongs to the new session.
async fn no_node_of_an_older_session_is_adopted(server: &ZooKeeper, swapped: bool) {
    let proxy = ProtocolProxy::start(server.address(0)).await;
    let locker = locker(&server.reached_at(&[proxy.address])).await;
    let client = raw_client(&server.servers()).await;
    release_cleanly(hold(&locker, "adopted").await).await;
    let old = proxy.newest_session();
    proxy.lose_next_answer(Request::is_creation);
    let acquiring = tokio::spawn(locker.lock("adopted").wait(SOON).acquire());
    within("the answer is lost", proxy.wait_for_lost_answer()).await;
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
    let path = format!("{}/{}", container_path("adopted"), held[0]);
    let stat = client.check_stat(&path).await.unwrap().expect("it is held");
    assert_ne!(stat.ephemeral_owner, old.id());
    assert_eq!(u64::try_from(stat.czxid).unwrap(), guard.token().get());
    release_cleanly(guard).await;
    assert!(contenders(&client, "adopted").await.is_empty());
    locker.close().await;
}
