//! What an operator sees of late actions.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use distlock_kickout::{
    Boot, Code, DeliverRequest, DeliverResult, KickRequest, KickResult, Message, Session,
    SessionKey,
};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::cluster::{Cluster, PATIENCE, told, uid};

/// Counters by their names.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Seen {
    fn count(&self, name: &str) -> u64 {
        let all = self.0.lock().unwrap();
        all.get(name).map_or(0, |counter| counter.load(SeqCst))
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut all = self.0.lock().unwrap();
        Counter::from_arc(all.entry(key.name().to_owned()).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Runs on one thread, so what the node does by itself is counted too.
#[tokio::test]
async fn every_late_kick_and_delivery_is_counted() {
    let seen = Seen::default();
    let _recorder = metrics::set_default_local_recorder(&seen);
    let cluster = Cluster::new();
    let n1 = cluster.node("n1").await;
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
        let request = DeliverRequest::new(anna.clone(), session.key().clone(), message, PATIENCE);
        let kick = n1.kick.clone();
        tokio::spawn(async move { kick.handle_deliver(request).await })
    };
    let kicks = || seen.count("distlock_stale_kick_refused_total");
    let deliveries = || seen.count("distlock_stale_delivery_refused_total");

    // It is in the queue when its session ends.
    let queued = deliver(&phone);
    tokio::task::yield_now().await;
    assert_eq!(kick(phone.key()), KickResult::Kicked);
    assert_eq!((kicks(), deliveries()), (0, 0));
    told(&phone).await;
    assert_eq!(queued.await.unwrap(), DeliverResult::NotCurrent);
    assert_eq!(deliveries(), 1);
    // It ended before.
    assert_eq!(kick(phone.key()), KickResult::AlreadyGone);
    assert_eq!(deliver(&phone).await.unwrap(), DeliverResult::NotCurrent);
    assert_eq!((kicks(), deliveries()), (1, 2));
    let mut before = phone.key().clone();
    before.boot = Boot::new(before.boot.get() - 1);
    assert_eq!(kick(&before), KickResult::BootMismatch);
    assert_eq!(kicks(), 2);
    // A newer one is left alone.
    phone.logout().await;
    let again = n1.admit(&anna, "phone").await;
    let before = kicks();
    assert_eq!(kick(phone.key()), KickResult::Newer(again.generation()));
    assert_eq!(kicks(), before + 1);
}
