//! The conformance suite on three lock servers, and parts of it on a mixture.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use distlock_conformance::{LockLayer, Subject, run};
use distlock_core::{
    AcquireRequest, Attempt, DistLock, FencingToken, Forced, Grant, LockName, LossFeed, LossReason,
    LossSender, Renew, Result, Store, SystemClock, at_most, sync::Mutex,
};
use distlock_harness::servers::{postgres::PostgresServer, redis::RedisServer};
use distlock_ring::{Terms, init, locate};

use crate::common::{LayeredDriver, drivers, lock_server, open, url_of};

/// The suite holds locks for 30 s.
const LONGEST: Duration = Duration::from_secs(60);

/// The parts of the suite in which it matters that members are of different kinds: reasons of a
/// loss, tokens, what a list of all members shows, how a lock is handed over, tickets, and shared
/// locks.
const OF_A_MIXTURE: [&str; 7] = [
    "loss::",
    "fencing::",
    "token_floor::",
    "inspect::",
    "handover::",
    "tickets::",
    "shared::",
];

/// Runs these parts of the suite; `CASE` names another part to run.
async fn conform(name: &'static str, url: String, parts: &[&str]) {
    let terms = Terms {
        max_lease: LONGEST,
        ..Terms::default()
    };
    init(url.as_str(), &drivers(), terms, true).await.unwrap();
    let subject = Subject::connect(name, move || {
        let url = url.clone();
        async move { open(&url).await }
    });
    let subject = subject.await.unwrap();
    let case = std::env::var("CASE").ok();
    let parts = case.as_deref().map_or(parts.to_vec(), |case| vec![case]);
    for part in parts {
        let results = run(&subject, Some(part)).await;
        let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
        let names: Vec<_> = failed.iter().map(|result| result.name).collect();
        assert!(failed.is_empty(), "failed: {names:?}\n{failed:#?}");
        assert!(!results.is_empty(), "no case of this name");
    }
}

/// The article's servers: they keep the locks in memory, and know nothing of each other.
#[tokio::test(flavor = "multi_thread")]
async fn three_lock_servers_conform() {
    let folder = tempfile::tempdir().unwrap();
    let mut urls = Vec::new();
    for name in ["first", "second", "third"] {
        urls.push(lock_server(folder.path(), name, LONGEST).await);
    }
    let ring_store = RedisServer::start().unwrap();
    let url = url_of(&ring_store.url(), urls.iter().map(String::as_str));
    conform("ring_lock_servers", url, &[""]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_server_redis_and_postgres_conform() {
    let folder = tempfile::tempdir().unwrap();
    let lock_server = lock_server(folder.path(), "mixed", LONGEST).await;
    let redis = RedisServer::start().unwrap();
    // The suite checks the doctor's report, and the harness starts Postgres without syncs.
    let postgres = PostgresServer::with(&["fsync=on"]).unwrap();
    let members = [&lock_server, &redis.url(), &postgres.url()];
    let url = url_of(&redis.url(), members.map(String::as_str));
    conform("ring_mixture", url, &OF_A_MIXTURE).await;
}

/// The losses that a store pushes to the holders of its locks.
static PUSHED: Mutex<BTreeMap<LockName, LossSender>> = Mutex::new(BTreeMap::new());

/// A lock whose store pushes a forced release.
#[derive(Clone, Debug)]
struct Pushes(Arc<dyn DistLock>);

#[async_trait]
impl LockLayer for Pushes {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.0)
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let attempt = self.0.try_acquire(request).await?;
        Ok(attempt.map(|mut grant| {
            let (sender, feed) = LossFeed::new();
            grant.loss = feed;
            PUSHED.lock().insert(request.name.clone(), sender);
            grant
        }))
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let forced = self.0.force_release(name, expected).await?;
        if let Some(sender) = PUSHED.lock().remove(name) {
            sender.lose(LossReason::ForceReleased);
        }
        Ok(forced)
    }
}

/// One member pushes that a lock was force-released, the second says it in the answer to a renewal,
/// and the third, Redis, cannot tell.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_has_one_reason_at_all_members() {
    let known = drivers().with(Arc::new(LayeredDriver {
        schemes: &["pushes"],
        layers: |store| {
            let lock = Pushes(store.backend()).into_lock();
            Store::with_clock(lock, store.records(), store.clock())
        },
    }));
    let redis = RedisServer::start().unwrap();
    let members = ["pushes:pushes", "memory:answers", &redis.url()];
    let url = url_of("memory:reasons", members);
    let url = url.as_str();
    init(url, &known, Terms::default(), true).await.unwrap();
    let holder = known.open(url).await.unwrap();
    let other = known.open(url).await.unwrap();
    assert!(!holder.backend().capabilities().tells_force_release);
    let (mut guards, mut reached) = (Vec::new(), BTreeSet::new());
    for number in 0..12 {
        let name = LockName::new(format!("n{number}")).unwrap();
        let member = locate(url, &known, &name).await.unwrap().member;
        let lock = holder.locker().lock(&name).ttl(Duration::from_secs(1));
        // Nothing but the push tells it then.
        let lock = if member == "a" {
            lock.renew(Renew::Manual)
        } else {
            lock
        };
        reached.insert(member);
        let guard = lock.acquire().await.unwrap();
        let forcing = other.locker();
        forcing.force_release(&name, guard.token()).await.unwrap();
        guards.push(guard);
    }
    assert_eq!(reached.len(), 3, "{reached:?}");
    for guard in guards {
        let lost = at_most(&SystemClock, Duration::from_secs(10), guard.lost()).await;
        assert_eq!(lost, Some(LossReason::Removed), "{}", guard.name());
    }
    holder.close().await;
    other.close().await;
}
