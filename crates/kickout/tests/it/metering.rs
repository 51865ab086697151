//! Metrics of late actions, and account names in the log.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use distlock_core::{Expect, RecordKey, sync::Mutex};
use distlock_harness::LogCapture;
use distlock_kickout::{
    Boot, Code, DeliverRequest, DeliverResult, KickRequest, KickResult, Message, OnExceed, Policy,
    Session, SessionKey,
};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tracing::Level;

use crate::cluster::{Cluster, TEST_TIMEOUT, eventually, notice_of, uid};

/// Counters by their names.
#[derive(Clone, Default)]
struct CountingRecorder(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl CountingRecorder {
    fn count(&self, name: &str) -> u64 {
        let all = self.0.lock();
        all.get(name).map_or(0, |counter| counter.load(SeqCst))
    }
}

impl Recorder for CountingRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut all = self.0.lock();
        Counter::from_arc(all.entry(key.name().to_owned()).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// The recorder works only on its own thread. The test runs on one thread, so the recorder also
/// counts the node's background work.
#[tokio::test]
async fn every_late_kick_and_delivery_is_counted() {
    let seen = CountingRecorder::default();
    let _recorder = metrics::set_default_local_recorder(&seen);
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let kick = |key: &SessionKey| {
        let request = KickRequest::new(
            anna.clone(),
            key.clone(),
            phone.generation(),
            Code::AdminKick,
            uuid::Uuid::nil(),
            n1.kick.node().clone(),
        );
        n1.kick.handle_kick(&request).unwrap()
    };
    let deliver = |session: &Session| {
        let message = Message::new(uid("otto"), "hello");
        let request =
            DeliverRequest::new(anna.clone(), session.key().clone(), message, TEST_TIMEOUT);
        let kick = n1.kick.clone();
        tokio::spawn(async move { kick.handle_deliver(request).await })
    };
    let kicks = || seen.count("distlock_stale_kick_refused_total");
    let deliveries = || seen.count("distlock_stale_delivery_refused_total");

    // This message is in the queue when its session ends.
    let queued = deliver(&phone);
    tokio::task::yield_now().await;
    assert_eq!(kick(phone.key()), KickResult::Kicked);
    assert_eq!((kicks(), deliveries()), (0, 0));
    notice_of(&phone).await;
    assert_eq!(queued.await.unwrap(), DeliverResult::NotCurrent);
    assert_eq!(deliveries(), 1);
    // The session ended before the kick.
    assert_eq!(kick(phone.key()), KickResult::AlreadyGone);
    assert_eq!(deliver(&phone).await.unwrap(), DeliverResult::NotCurrent);
    assert_eq!((kicks(), deliveries()), (1, 2));
    let mut before = phone.key().clone();
    before.boot = Boot::new(before.boot.get() - 1);
    assert_eq!(kick(&before), KickResult::BootMismatch);
    assert_eq!(kicks(), 2);
    // The kick is older than this session, so the session survives.
    phone.logout().await;
    let again = n1.admit(&anna, "phone").await;
    let before = kicks();
    assert_eq!(kick(phone.key()), KickResult::Newer(again.generation()));
    assert_eq!(kicks(), before + 1);
}

/// An account's name may have characters that reverse the order of text in a terminal. The log must
/// escape them.
#[tokio::test]
async fn an_account_name_cannot_forge_the_log() {
    let logged = LogCapture::new(Level::WARN);
    let _watched = logged.watch();
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna\u{202e}nimda");
    let phone = n1.admit(&anna, "phone").await;
    let key = RecordKey::new(format!("sess/{anna}")).unwrap();
    let records = cluster.memory.records();
    let entry = records.get(&key).await.unwrap().unwrap();
    let expect = Expect::Version(entry.version);
    records.put(&key, b"garbage", expect).await.unwrap();
    for problem in ["is not compared", "cannot be swept"] {
        eventually(problem, || async {
            logged.lines().iter().any(|line| line.contains(problem))
        })
        .await;
    }
    phone.logout().await;
    for line in logged.lines() {
        assert!(!line.contains('\u{202e}'), "{line:?}");
    }
}

/// Two nodes with different policies would end each other's sessions.
#[tokio::test]
async fn different_policies_of_nodes_are_logged() {
    let logged = LogCapture::new(Level::WARN);
    let _watched = logged.watch();
    let cluster = Cluster::new();
    let _n1 = cluster.start_node("n1").await;
    let _same = cluster.start_node("same").await;
    let differs = || {
        let mut lines = logged.lines();
        lines.retain(|line| line.contains("different policies"));
        lines
    };
    let policy = Policy::single().on_exceed(OnExceed::Deny);
    let n2 = cluster
        .start_node_with("n2", |builder| builder.policy(policy))
        .await;
    for other in ["n1", "same"] {
        let words = ["n2", "single, deny", other, "single, evict_oldest"];
        let named = |line: &String| words.iter().all(|word| line.contains(word));
        eventually("the others to be named", || async {
            differs().iter().any(named)
        })
        .await;
    }
    let nodes = n2.kick.nodes().await.unwrap();
    let policies: Vec<_> = nodes.iter().map(|it| it.policy.as_str()).collect();
    assert_eq!(
        policies,
        [
            "single, evict_oldest",
            "single, deny",
            "single, evict_oldest"
        ]
    );
}
