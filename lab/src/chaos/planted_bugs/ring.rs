//! Clients of a ring with a planted bug, each as a layer around honest parts: around the records of
//! the ring store, which tell the view, or around the locks of the ring.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use distlock::{
    Clock as _, DistLock, Entry, LossReason, Moment, RecordKey, Records, Registry, Store,
    SystemClock,
    backend::{Driver, DriverOption, DriverUrl, Drivers, Lease, Renewal, Renewed, TargetParts},
};
use distlock_conformance::{LockLayer, RecordsLayer};
use distlock_core::sync::Mutex;
use serde_json::Value;

use super::kinds::StoreBug;

/// The record with the view.
const VIEW: &str = "distlock-ring";

/// Time for which a client uses a view: longer than any quarantine of a run.
const FAR_TOO_LONG: Duration = Duration::from_secs(4);

/// Opens a ring whose client takes another view from the ring store than the store has.
pub(super) async fn with_wrong_view(bug: StoreBug, url: &str) -> Result<Store> {
    let honest = Registry::builtin();
    let wrong = WrongViews {
        honest: honest.drivers().clone(),
        bug,
    };
    Ok(honest.with(wrong).drivers().open(url).await?)
}

/// Opens Redis servers whose records have a layer with the bug. Only the records of the ring store
/// are used.
#[derive(Clone, Debug)]
struct WrongViews {
    honest: Drivers,
    bug: StoreBug,
}

#[async_trait]
impl Driver for WrongViews {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["redis"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &[]
    }

    fn options(&self) -> &'static [DriverOption] {
        &[]
    }

    fn check(&self, parts: TargetParts, _: &Drivers) -> distlock::Result<()> {
        self.honest.check_parts(parts)
    }

    async fn open(&self, parts: TargetParts, _: &Drivers) -> distlock::Result<Store> {
        let store = self.honest.open_parts(parts).await?;
        let records = WrongView {
            inner: store.records(),
            bug: self.bug,
            kept: Arc::default(),
        };
        let clock = Arc::new(SystemClock);
        Ok(Store::with_clock(
            store.backend(),
            records.into_records(),
            clock,
        ))
    }
}

/// Records of a ring store that tell a wrong view.
#[derive(Clone, Debug)]
struct WrongView {
    inner: Arc<dyn Records>,
    bug: StoreBug,
    /// The view that is used for too long, and when it was read.
    kept: Arc<Mutex<Option<(Moment, Entry)>>>,
}

impl WrongView {
    /// Returns the kept view, as it would be told now.
    fn kept(&self) -> Option<Entry> {
        let (read, mut entry) = self.kept.lock().clone()?;
        let passed = SystemClock.now().since(read);
        if passed > FAR_TOO_LONG {
            return None;
        }
        entry.age = entry.age.map(|age| age + passed);
        entry.store_time = entry.store_time.map(|time| time + passed);
        Some(entry)
    }
}

#[async_trait]
impl RecordsLayer for WrongView {
    fn below(&self) -> &Arc<dyn Records> {
        &self.inner
    }

    async fn reopen(&self) -> distlock::Result<Self> {
        Ok(Self {
            inner: self.inner.reopen().await?,
            ..self.clone()
        })
    }

    async fn get(&self, key: &RecordKey) -> distlock::Result<Option<Entry>> {
        let read = SystemClock.now();
        if key.as_str() != VIEW {
            return self.inner.get(key).await;
        }
        if let Some(kept) = self.kept() {
            return Ok(Some(kept));
        }
        let mut told = self.inner.get(key).await?;
        if let Some(entry) = &mut told
            && let Ok(mut view) = serde_json::from_slice::<Value>(&entry.value)
        {
            if self.bug == StoreBug::MovedAtOnce {
                view["pending"] = Value::Array(Vec::new());
                entry.value = view.to_string().into_bytes();
            } else if view["confirmed"] == true {
                // A view that is not confirmed is read until it is.
                *self.kept.lock() = Some((read, entry.clone()));
            }
        }
        Ok(told)
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Opens a ring whose client asks all members to renew a guard whose name has moved.
pub(super) async fn with_stubborn_guards(url: &str) -> Result<Store> {
    let store = distlock::open(url).await?;
    let (_, members) = url.split_once('?').context("the members")?;
    let mut opened = Vec::new();
    for part in members.split('&') {
        if let Some(member) = part.strip_prefix("member=") {
            let (_, url) = member.split_once('=').context("a name and a URL")?;
            opened.push(distlock::open(url).await?.backend());
        }
    }
    let lock = StubbornGuards {
        inner: store.backend(),
        members: opened,
    };
    let clock = Arc::new(SystemClock);
    Ok(Store::with_clock(lock.into_lock(), store.records(), clock))
}

/// Locks of a ring, and its members.
#[derive(Clone, Debug)]
struct StubbornGuards {
    inner: Arc<dyn DistLock>,
    members: Vec<Arc<dyn DistLock>>,
}

#[async_trait]
impl LockLayer for StubbornGuards {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.inner)
    }

    async fn reopen(&self) -> distlock::Result<Self> {
        let mut members = Vec::new();
        for member in &self.members {
            members.push(member.reopen().await?);
        }
        Ok(Self {
            inner: self.inner.reopen().await?,
            members,
        })
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> distlock::Result<Renewed> {
        let answer = self.inner.renew(lease, renewal).await;
        if !matches!(answer, Err(_) | Ok(Renewed::NotHeld(LossReason::Moved))) {
            return answer;
        }
        for member in &self.members {
            if let Ok(renewed @ Renewed::Extended { .. }) = member.renew(lease, renewal).await {
                return Ok(renewed);
            }
        }
        answer
    }
}
