//! A TTL that is longer than the longest lease of the store: the guard shows the granted TTL, and
//! the locker logs one warning.

use std::{fmt::Debug, sync::Arc, time::Duration};

use crate::support::Script;
use distlock_core::{Locker, SystemClock, sync::Mutex};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

const MOST: Duration = Duration::from_secs(4);
const LONGER: Duration = Duration::from_secs(60);

/// A subscriber that collects each warning as one line.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Warnings {
    fn take_all(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

#[tokio::test]
async fn a_ttl_beyond_the_longest_lease_is_logged_once_per_locker() {
    let warnings = Warnings::default();
    let _here = tracing::subscriber::set_default(warnings.clone());
    let store = Script::with_capabilities(Arc::new(SystemClock), |capabilities| {
        capabilities.max_lease = Some(MOST);
        capabilities.session_timeout = Some(MOST * 2);
    });
    let locker = Locker::new(Arc::new(store.clone()));
    // The requested TTL equals the longest lease of the store, so nothing is logged.
    drop(locker.lock("a").ttl(MOST).acquire().await.unwrap());
    assert_eq!(warnings.take_all(), Vec::<String>::new());
    // A clone shares the "was warned" flag of its locker, and an extension checks its TTL in the
    // same way as an acquire.
    let guard = locker
        .clone()
        .lock("b")
        .ttl(LONGER)
        .acquire()
        .await
        .unwrap();
    drop(locker.lock("c").ttl(LONGER).acquire().await.unwrap());
    guard.extend(LONGER * 2).await.unwrap();
    let warned = warnings.take_all();
    assert_eq!(warned.len(), 1, "{warned:?}");
    for part in ["60s", "4s", "session_timeout=8s"] {
        assert!(warned[0].contains(part), "{part}: {warned:?}");
    }
    assert!(guard.release().await.is_clean());
    // Another locker logs its own warning.
    let other = Locker::new(Arc::new(store));
    drop(other.lock("d").ttl(LONGER).try_acquire().await.unwrap());
    assert_eq!(warnings.take_all().len(), 1);
    let whole = Locker::new(Arc::new(Script::open(Arc::new(SystemClock))));
    drop(whole.lock("a").ttl(LONGER).acquire().await.unwrap());
    assert_eq!(warnings.take_all(), Vec::<String>::new());
}
