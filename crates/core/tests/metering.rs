//! The metrics and spans of a locker, as docs/metrics.md lists them.

mod support;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use distlock_core::{ErrorKind, Locker, SystemClock, sync::Mutex};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use support::{Script, eventually};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber,
};

const TTL: Duration = Duration::from_secs(60);

/// A recorder that keeps every metric by its name and labels: for a counter its value, for a
/// histogram the number of samples, for a gauge the bits of its `f64`.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Seen {
    fn slot(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let name = format!("{} {}", key.name(), labels.join(" "));
        self.0.lock().entry(name).or_default().clone()
    }

    fn count(&self, name: &str) -> u64 {
        let all = self.0.lock();
        all.get(name).map_or(0, |slot| slot.load(SeqCst))
    }

    fn gauge(&self, name: &str) -> f64 {
        f64::from_bits(self.count(name))
    }
}

struct Samples(Arc<AtomicU64>);

impl HistogramFn for Samples {
    fn record(&self, value: f64) {
        assert!((0.0..60.0).contains(&value), "{value} s");
        self.0.fetch_add(1, SeqCst);
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.slot(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.slot(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Samples(self.slot(key))))
    }
}

/// A subscriber that collects every span with its fields.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name().starts_with("distlock.")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        let mut all = self.0.lock();
        all.push(fields.0);
        Id::from_u64(all.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

// This file has one test, because a process has one recorder.
#[tokio::test]
async fn a_locker_records_its_metrics_and_spans() {
    let (seen, spans) = (Seen::default(), Spans::default());
    metrics::set_global_recorder(seen.clone()).unwrap();
    let _watched = subscriber::set_default(spans.clone());
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let total = |operation: &str, result: &str| {
        seen.count(&format!(
            "distlock_{operation}_total backend=scripted result={result}"
        ))
    };
    let held = || seen.gauge("distlock_held backend=scripted");

    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    assert_eq!((total("acquire", "acquired"), held()), (1, 1.0));
    assert_eq!(seen.count("distlock_acquire_seconds backend=scripted"), 1);
    let busy = locker.lock("a").try_acquire().await.unwrap();
    assert!(busy.acquired().is_none());
    assert_eq!(total("acquire", "busy"), 1);
    let short = Duration::from_millis(10);
    let late = locker.lock("a").wait(short).acquire().await;
    assert!(late.is_err());
    assert_eq!(total("acquire", "timeout"), 1);

    guard.extend(TTL).await.unwrap();
    assert_eq!(total("renew", "renewed"), 1);
    store.0.renew.refuse.store(1, SeqCst);
    assert!(guard.extend(TTL).await.is_err());
    assert_eq!(total("renew", "failed"), 1);
    assert!(guard.release().await.is_clean());
    assert_eq!((total("release", "clean"), held()), (1, 0.0));

    let guard = locker.lock("b").ttl(TTL).acquire().await.unwrap();
    store.0.delete("b");
    assert!(guard.extend(TTL).await.is_err());
    // The loss is counted by the first thread that notices it. The keeper thread may be the first,
    // so the test waits for the count.
    let lost = || seen.count("distlock_lost_total backend=scripted reason=removed");
    eventually("the loss is counted", || (lost(), held()) == (1, 0.0)).await;

    // The span escapes the quotation marks and the right-to-left override of a lock name. Otherwise
    // the name could imitate another field, or change the order of the characters on a terminal.
    let name = "c\u{202e} backend=\"d\"";
    drop(locker.lock(name).ttl(TTL).acquire().await.unwrap());
    eventually("released in the background", || !store.0.is_held(name)).await;
    assert_eq!((total("release", "background"), held()), (1, 0.0));

    *store.0.refuse_with.lock() = Some(ErrorKind::AccessDenied);
    store.0.acquire.refuse.store(1, SeqCst);
    let refused = locker.lock("e").acquire().await;
    assert!(refused.is_err());
    let counts = ["error", "timeout", "acquired"].map(|result| total("acquire", result));
    assert_eq!(counts, [1, 1, 3]);
    locker.close().await;

    // With a store that keeps a queue, a guard has no local turn. Its lock was lost all the same if
    // the first release of the dropped guard finds it gone.
    let queueing = Script::open_queueing(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(queueing.clone()));
    let guard = locker.lock("f").ttl(TTL).acquire().await.unwrap();
    queueing.0.delete("f");
    drop(guard);
    eventually("the loss is counted", || lost() == 2).await;
    locker.close().await;

    let spans = spans.0.lock();
    assert_eq!(
        *spans,
        [
            "distlock.acquire lock=\"a\" backend=\"scripted\"",
            "distlock.acquire lock=\"a\" backend=\"scripted\"",
            "distlock.release lock=\"a\" backend=\"scripted\"",
            "distlock.acquire lock=\"b\" backend=\"scripted\"",
            r#"distlock.acquire lock="c\u{202e} backend=\"d\"" backend="scripted""#,
            "distlock.acquire lock=\"e\" backend=\"scripted\"",
            "distlock.acquire lock=\"f\" backend=\"scripted\"",
        ]
    );
}
