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

use distlock_core::{ErrorKind, Locker, ManualClock, Renew, SystemClock, sync::Mutex};
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
struct Seen(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>, LastSamples);

/// The last sample of every histogram, by its name without labels.
type LastSamples = Arc<Mutex<BTreeMap<String, f64>>>;

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

    /// The last sample of a histogram in seconds, rounded to milliseconds.
    fn sample(&self, name: &str) -> f64 {
        (self.1.lock()[name] * 1000.0).round() / 1000.0
    }

    fn gauge(&self, name: &str) -> f64 {
        f64::from_bits(self.count(name))
    }
}

struct Samples {
    name: String,
    count: Arc<AtomicU64>,
    last: LastSamples,
}

impl HistogramFn for Samples {
    fn record(&self, value: f64) {
        assert!((0.0..60.0).contains(&value), "{value} s");
        self.last.lock().insert(self.name.clone(), value);
        self.count.fetch_add(1, SeqCst);
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
        Histogram::from_arc(Arc::new(Samples {
            name: key.name().to_owned(),
            count: self.slot(key),
            last: Arc::clone(&self.1),
        }))
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

    let all = std::mem::take(&mut *spans.0.lock());
    assert_eq!(
        all,
        [
            "distlock.acquire lock=\"a\" backend=\"scripted\"",
            "distlock.acquire lock=\"a\" backend=\"scripted\"",
            "distlock.release lock=\"a\" backend=\"scripted\" token=1",
            "distlock.acquire lock=\"b\" backend=\"scripted\"",
            r#"distlock.acquire lock="c\u{202e} backend=\"d\"" backend="scripted""#,
            "distlock.acquire lock=\"e\" backend=\"scripted\"",
            "distlock.acquire lock=\"f\" backend=\"scripted\"",
        ]
    );
    count_those_that_wait(&seen).await;
    measure_holds_and_slack(&seen).await;
    count_by_group(&seen).await;
}

/// Checks that a call counts as waiting for as long as it waits, for a task of its own process and
/// for another process.
async fn count_those_that_wait(seen: &Seen) {
    let store = Script::open(Arc::new(SystemClock));
    let [own, other] = [(); 2].map(|()| Locker::new(Arc::new(store.clone())));
    let before = seen.count("distlock_acquire_contended_total backend=scripted");
    let contended = || seen.count("distlock_acquire_contended_total backend=scripted") - before;
    let waiting = || seen.gauge("distlock_waiting backend=scripted");
    let guard = own.lock("a").ttl(TTL).acquire().await.unwrap();
    assert_eq!((contended(), waiting()), (0, 0.0));
    for locker in [&own, &other] {
        let busy = locker.lock("a").wait(Duration::ZERO).acquire().await;
        assert_eq!(busy.unwrap_err().kind(), ErrorKind::Timeout);
        assert!(
            locker
                .lock("a")
                .try_acquire()
                .await
                .unwrap()
                .acquired()
                .is_none()
        );
    }
    assert_eq!((contended(), waiting()), (0, 0.0));

    let wait = |locker: &Locker| tokio::spawn(locker.lock("a").ttl(TTL).acquire());
    let gives_up = wait(&own);
    eventually("a task waits", || waiting() == 1.0).await;
    let also_gives_up = wait(&other);
    eventually("another process waits", || waiting() == 2.0).await;
    gives_up.abort();
    also_gives_up.abort();
    eventually("nobody waits", || waiting() == 0.0).await;
    assert_eq!(contended(), 2);

    // The next task waits first for the task before it, and then, with its turn, for the other
    // process. It is one call.
    let waits = wait(&other);
    eventually("one waits at the store", || waiting() == 1.0).await;
    let waits_behind = wait(&other);
    eventually("one waits behind it", || waiting() == 2.0).await;
    waits.abort();
    let acquires = store.0.acquire.calls.load(SeqCst);
    eventually("the next one asks", || {
        store.0.acquire.calls.load(SeqCst) > acquires
    })
    .await;
    eventually("one waits", || waiting() == 1.0).await;
    assert!(guard.release().await.is_clean());
    let guard = waits_behind.await.unwrap().unwrap();
    assert_eq!((contended(), waiting()), (4, 0.0));
    assert!(guard.release().await.is_clean());
    own.close().await;
    other.close().await;
}

/// Checks the times for which a lock was held, and what its renewals left of its lease.
async fn measure_holds_and_slack(seen: &Seen) {
    let clock = Arc::new(ManualClock::new());
    let store = Script::open(clock.clone());
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(clock.clone())
        .build();
    let seconds = Duration::from_secs;
    let renewals = |result: &str| {
        seen.count(&format!(
            "distlock_renew_total backend=scripted result={result}"
        ))
    };
    let before = ["renewed", "late"].map(renewals);
    let counted = || {
        let now = ["renewed", "late"].map(renewals);
        (now[0] - before[0], now[1] - before[1])
    };
    let slack = || seen.sample("distlock_renew_slack_seconds");
    let wanted = locker.lock("a").ttl(seconds(20)).renew(Renew::Manual);
    let guard = wanted.clone().acquire().await.unwrap();
    // The deadline is a tenth of the lease before its end.
    clock.advance(seconds(10));
    guard.extend(seconds(20)).await.unwrap();
    assert_eq!((slack(), counted()), (8.0, (1, 0)));
    clock.advance(seconds(14));
    guard.extend(seconds(20)).await.unwrap();
    assert_eq!((slack(), counted()), (4.0, (1, 1)));
    // A caller that shortens its lease to less than a quarter is not late.
    guard.extend(seconds(4)).await.unwrap();
    assert_eq!((slack(), counted()), (3.6, (2, 1)));
    // Nor is one that makes a short lease longer.
    guard.extend(seconds(20)).await.unwrap();
    assert_eq!((slack(), counted()), (3.6, (3, 1)));
    assert!(guard.release().await.is_clean());
    assert_eq!(seen.sample("distlock_hold_seconds"), 24.0);

    let guard = wanted.acquire().await.unwrap();
    clock.advance(seconds(5));
    store.0.delete("a");
    assert!(guard.extend(seconds(20)).await.is_err());
    eventually("the lost lock was held for 5 s", || {
        seen.sample("distlock_hold_seconds") == 5.0
    })
    .await;
    drop(guard);
    locker.close().await;
}

/// Checks that the metrics of a locker with groups have the label that the program makes, and that
/// a program with too many groups does not fill its recorder.
async fn count_by_group(seen: &Seen) {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::builder(Arc::new(store.clone()))
        .metrics_group(|name| name.split(':').next().unwrap())
        .build();
    let of = |metric: &str, group: &str, label: &str| {
        format!("distlock_{metric} backend=scripted group={group}{label}")
    };
    let total = |metric: &str, group: &str, result: &str| {
        seen.count(&of(metric, group, &format!(" result={result}")))
    };
    let ungrouped = seen.count("distlock_acquire_total backend=scripted result=acquired");
    let acquire = |name: &str| locker.lock(name).ttl(TTL).acquire();
    let first = acquire("order:42").await.unwrap();
    let second = acquire("order:43").await.unwrap();
    let user = acquire("user:42").await.unwrap();
    assert!(
        locker
            .lock("user:42")
            .try_acquire()
            .await
            .unwrap()
            .acquired()
            .is_none()
    );
    let held = |group: &str| seen.gauge(&of("held", group, ""));
    assert_eq!((held("order"), held("user")), (2.0, 1.0));
    let acquired = |group: &str| total("acquire_total", group, "acquired");
    assert_eq!((acquired("order"), acquired("user")), (2, 1));
    assert_eq!(total("acquire_total", "user", "busy"), 1);

    assert!(first.release().await.is_clean());
    store.0.delete("order:43");
    assert!(second.extend(TTL).await.is_err());
    let lost = || seen.count(&of("lost_total", "order", " reason=removed"));
    eventually("the loss is counted", || {
        (lost(), held("order")) == (1, 0.0)
    })
    .await;
    drop(second);
    assert_eq!(seen.count(&of("hold_seconds", "order", "")), 2);
    let next = tokio::spawn(acquire("user:42"));
    let waiting = || seen.gauge(&of("waiting", "user", ""));
    eventually("a task waits", || waiting() == 1.0).await;
    assert!(user.release().await.is_clean());
    drop(next.await.unwrap().unwrap());
    assert_eq!(total("release_total", "user", "handed_over"), 1);
    eventually("the release is counted", || {
        total("release_total", "user", "clean") == 1
    })
    .await;
    let released = [("order", "clean"), ("user", "background")];
    assert_eq!(
        released.map(|(group, result)| total("release_total", group, result)),
        [1, 1]
    );

    // 98 further groups have a place.
    for number in 0..100 {
        let guard = acquire(&format!("g{number}:1")).await.unwrap();
        assert!(guard.release().await.is_clean());
    }
    let counts = ["g97", "g98", "other"].map(acquired);
    assert_eq!(counts, [1, 0, 2]);
    let guard = acquire("order:44").await.unwrap();
    assert!(guard.release().await.is_clean());
    assert_eq!(acquired("order"), 3);
    let all = seen.count("distlock_acquire_total backend=scripted result=acquired");
    assert_eq!(all, ungrouped, "a lock counts once");
    locker.close().await;
    let keys = seen.0.lock();
    assert!(keys.keys().all(|key| !key.contains(':')), "{keys:?}");
}
