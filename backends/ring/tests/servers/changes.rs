//! Changes of the members.

use std::time::Duration;

use distlock_core::{
    AcquireRequest, Attempt, Clock as _, ErrorKind, Expect, Guard, HolderLabel, LockName, Locker,
    LossReason, OwnerId, RecordKey, Store, SystemClock, Ttl, at_most,
};
use distlock_harness::{eventually_async, servers::redis::RedisServer};
use distlock_ring::{Terms, add, init, remove, reset, show};
use futures_util::future::join_all;

use crate::common::{SHORT, drivers, open, redis_servers, url_of_servers};

const SOON: Duration = Duration::from_secs(10);

/// Takes each of these names once it is free, and returns the guards.
async fn take_all(locker: &Locker, names: &[String]) -> Vec<Guard> {
    let mut guards = Vec::new();
    for name in names {
        let lock = locker.lock(name).ttl(SHORT.max_lease * 2).wait(SOON);
        guards.push(lock.acquire().await.unwrap());
    }
    guards
}

async fn is_moving(store: &Store, name: &str) -> bool {
    match store.locker().lock(name).try_acquire().await {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            error.to_string().contains("moves to another member")
        }
    }
}

/// One in three names belongs to the member that leaves. Each of them is lost with the reason, is
/// blocked for a while, and is then granted with a higher token. No other name notices.
#[tokio::test(flavor = "multi_thread")]
async fn the_names_of_a_member_move_and_no_others() {
    let servers = redis_servers(3);
    let url = url_of_servers(&servers);
    // The reason is told in the last fifth of a lease.
    let terms = Terms {
        max_lease: SHORT.max_lease * 2,
        ..SHORT
    };
    init(url.as_str(), &drivers(), terms, true).await.unwrap();
    let store = open(&url).await.unwrap();
    let names: Vec<_> = (0..30).map(|number| format!("n{number}")).collect();
    let guards = take_all(&store.locker(), &names).await;
    let shown = remove(url.as_str(), &drivers(), "c").await.unwrap();
    assert_eq!(shown.pending.len(), 1, "{shown:?}");
    // A view is valid for 200 ms, and a lease for two seconds.
    let clock = SystemClock;
    let watched = guards
        .iter()
        .map(|guard| at_most(&clock, terms.max_lease * 2, guard.lost()));
    let lost: Vec<_> = join_all(watched).await.into_iter().flatten().collect();
    assert!((5..=15).contains(&lost.len()), "{lost:?}");
    assert!(
        lost.iter().all(|reason| *reason == LossReason::Moved),
        "{lost:?}"
    );
    let moved: Vec<_> = guards.iter().filter(|guard| !guard.is_valid()).collect();
    assert_eq!(moved.len(), lost.len());
    for guard in moved {
        let name = guard.name().as_str();
        let next = store
            .locker()
            .lock(name)
            .wait(SOON)
            .acquire()
            .await
            .unwrap();
        assert!(next.token() > guard.token(), "{name}: the token fell");
    }
    let kept = guards.iter().filter(|guard| guard.is_valid()).count();
    assert_eq!(kept + lost.len(), guards.len(), "no other lock was lost");
    store.close().await;
}

/// A client that has just started knows that a name moves, and when it is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_client_does_not_grant_what_an_old_one_holds() {
    let servers = redis_servers(3);
    let url = url_of_servers(&servers);
    init(url.as_str(), &drivers(), SHORT, true).await.unwrap();
    let old = open(&url).await.unwrap();
    let names: Vec<_> = (0..20).map(|number| format!("n{number}")).collect();
    let guards = take_all(&old.locker(), &names).await;
    remove(url.as_str(), &drivers(), "b").await.unwrap();
    // There and back: the name is in quarantine although its owner is the first one again.
    add(url.as_str(), &drivers(), "b").await.unwrap();
    let new = open(&url).await.unwrap();
    let mut moving = 0;
    for (name, guard) in names.iter().zip(&guards) {
        let taken = new.locker().lock(name).try_acquire().await;
        if let Ok(Attempt::Acquired(second)) = &taken {
            assert!(!guard.is_valid(), "{name} has two holders: {second:?}");
        }
        moving += usize::from(taken.is_err());
    }
    assert!(moving > 0, "no name moves");
    let shown = show(url.as_str(), &drivers()).await.unwrap();
    assert_eq!(shown.pending.len(), 2, "{shown:?}");
    old.close().await;
    new.close().await;
}

/// The names of a dead member are free again after it was removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_member_is_removed_and_comes_back() {
    let mut servers = redis_servers(3);
    let url = url_of_servers(&servers);
    init(url.as_str(), &drivers(), SHORT, true).await.unwrap();
    let store = open(&url).await.unwrap();
    let names: Vec<_> = (0..12).map(|number| format!("n{number}")).collect();
    drop(take_all(&store.locker(), &names).await);
    servers[1].kill();
    remove(url.as_str(), &drivers(), "b").await.unwrap();
    let guards = take_all(&store.locker(), &names).await;
    assert_eq!(guards.len(), names.len());
    for guard in guards {
        assert!(guard.release().await.is_clean());
    }
    // A member that does not answer cannot be added.
    let refused = add(url.as_str(), &drivers(), "b").await.unwrap_err();
    assert!(refused.to_string().contains("\"b\""), "{refused}");
    servers[1].restart().unwrap();
    let added = eventually_async("the server is back", SOON, || async {
        add(url.as_str(), &drivers(), "b").await.ok()
    });
    added.await.unwrap();
    let moving = eventually_async("the client has read the change", SOON, || async {
        let mut moving = 0;
        for name in &names {
            moving += usize::from(is_moving(&store, name).await);
        }
        (moving > 0).then_some(())
    });
    moving.await.unwrap();
    assert_eq!(take_all(&store.locker(), &names).await.len(), names.len());
    store.close().await;
}

/// A waiter that comes from the queue of another member, or from none, passes nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_name_moves_passes_nobody() {
    let servers = redis_servers(2);
    let url = url_of_servers(&servers);
    init(url.as_str(), &drivers(), SHORT, true).await.unwrap();
    let store = open(&url).await.unwrap();
    remove(url.as_str(), &drivers(), "b").await.unwrap();
    let names: Vec<_> = (0..20).map(|number| format!("n{number}")).collect();
    let moving = eventually_async("the client has read the change", SOON, || async {
        for name in &names {
            if is_moving(&store, name).await {
                return Some(name);
            }
        }
        None
    });
    let name = moving.await.unwrap();
    let ring = store.backend();
    let request = || {
        let (name, owner) = (LockName::new(name.as_str()).unwrap(), OwnerId::new());
        let (ttl, holder) = (SHORT.max_lease, HolderLabel::new("waiter").unwrap());
        let mut request = AcquireRequest::new(name, owner, Ttl::new(ttl).unwrap(), holder);
        request.in_order = true;
        request
    };
    let mut late = ring.contend(&request()).await.unwrap();
    let holder = take_all(&store.locker(), std::slice::from_ref(name)).await;
    let first = ring.contend(&request()).await.unwrap();
    for guard in holder {
        assert!(guard.release().await.is_clean());
    }
    let passed = late.attempt().await.unwrap();
    assert!(matches!(passed, Attempt::Busy(_)), "{passed:?}");
    first.leave().await.unwrap();
    late.leave().await.unwrap();
    store.close().await;
}

/// While the ring store is away, a client uses its view to its end, and then grants nothing.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_ring_store_nothing_is_granted() {
    let mut servers = redis_servers(3);
    let url = {
        let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
        crate::common::url_of(&urls[0], urls[1..].iter().map(String::as_str))
    };
    init(url.as_str(), &drivers(), SHORT, true).await.unwrap();
    let store = open(&url).await.unwrap();
    drop(take_all(&store.locker(), &["first".to_owned()]).await);
    servers[0].kill();
    let refused = eventually_async("the view ends", SOON, || async {
        store.locker().lock("second").try_acquire().await.err()
    });
    let error = refused.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // Nor does anybody take a lock for free that its new owner may have granted.
    let unseen = store.locker().inspect("first").await.unwrap_err();
    assert_eq!(unseen.kind(), ErrorKind::Unavailable, "{unseen}");
    servers[0].restart().unwrap();
    take_all(&store.locker(), &["second".to_owned()]).await;
    store.close().await;
}

/// The ring store loses the view in mid-flight. A new view grants nothing that may be held.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_view_stops_all_grants() {
    let servers = redis_servers(3);
    let url = {
        let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
        crate::common::url_of(&urls[0], urls[1..].iter().map(String::as_str))
    };
    init(url.as_str(), &drivers(), SHORT, true).await.unwrap();
    let store = open(&url).await.unwrap();
    let _held = take_all(&store.locker(), &["held".to_owned()]).await;
    servers[0].command(&["FLUSHALL"]).unwrap();
    let refused = open(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
    init(url.as_str(), &drivers(), SHORT, false).await.unwrap();
    let new = open(&url).await.unwrap();
    for name in ["held", "other"] {
        assert!(is_moving(&new, name).await, "{name}");
    }
    let shown = show(url.as_str(), &drivers()).await.unwrap();
    assert!(shown.pending[0].left > Duration::from_secs(60), "{shown:?}");
    // The client that runs reads another ring's view.
    let refused = eventually_async("the client reads the new view", SOON, || async {
        store.locker().lock("other").try_acquire().await.err()
    });
    let error = refused.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    store.close().await;
    new.close().await;
}

/// The ring store goes back to an earlier view, as after a restore of an old backup.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_view_that_comes_back_stops_all_grants() {
    let servers = redis_servers(3);
    let url = url_of_servers(&servers);
    init(url.as_str(), &drivers(), SHORT, true).await.unwrap();
    let store = open(&url).await.unwrap();
    let (records, key) = (store.records(), RecordKey::new("distlock-ring").unwrap());
    let read = async || records.get(&key).await.unwrap().unwrap();
    let earlier = read().await;
    remove(url.as_str(), &drivers(), "c").await.unwrap();
    let names: Vec<_> = (0..10).map(|number| format!("n{number}")).collect();
    let moving = eventually_async("the client has read the change", SOON, || async {
        for name in &names {
            if is_moving(&store, name).await {
                return Some(());
            }
        }
        None
    });
    moving.await.unwrap();
    let expect = Expect::Version(read().await.version);
    records.put(&key, &earlier.value, expect).await.unwrap();
    let locker = store.locker();
    let refused = eventually_async("the client reads the earlier view", SOON, || async {
        let error = locker.lock("n0").try_acquire().await.err()?;
        error.to_string().contains("gone back").then_some(())
    });
    refused.await.unwrap();
    // Also when its quarantine, and the leases of the view that is lost, are over.
    SystemClock.sleep(SHORT.max_lease * 3 / 2).await;
    let error = locker.lock("n0").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("gone back"), "{error}");
    // The next change of an operator has a higher number.
    remove(url.as_str(), &drivers(), "b").await.unwrap();
    assert_eq!(take_all(&locker, &names).await.len(), names.len());
    // An operator who knows of the backup sees to it that new clients grant nothing either.
    reset(url.as_str(), &drivers()).await.unwrap();
    let new = open(&url).await.unwrap();
    assert!(is_moving(&new, "n0").await);
    let shown = show(url.as_str(), &drivers()).await.unwrap();
    assert!(shown.pending[0].left > Duration::from_secs(60), "{shown:?}");
    store.close().await;
    new.close().await;
}
