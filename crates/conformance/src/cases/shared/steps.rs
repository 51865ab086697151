//! The steps that the cases of shared locks share.

use std::{convert::Infallible, time::Duration};

use distlock_core::{Expect, RecordKey, Store};
use distlock_recipes::shared::{RwLock, Semaphore, SharedBuilder, SharedGuard};

use crate::{
    Outcome,
    failure::{ensure, fail},
    support::{Context, SOON, eventually, sleep, soon},
};

/// Longer than a newcomer may pass the first in the line, and than the first in the line sleeps.
pub(super) const SETTLED: Duration = Duration::from_millis(400);

impl Context {
    pub(super) async fn rw(&self, tail: &str) -> Outcome<RwLock> {
        Ok(RwLock::new(&self.store().await?, &self.name(tail))?)
    }

    pub(super) async fn semaphore(&self, tail: &str, capacity: u32) -> Outcome<Semaphore> {
        let store = self.store().await?;
        Ok(Semaphore::new(&store, &self.name(tail), capacity)?)
    }

    /// Waits until the first in the line has said that it waits.
    pub(super) async fn until_waited_for(&self, kind: &str, tail: &str) -> Outcome {
        let records = self.store().await?.records();
        let key = self.shared_key(&format!("waiting/{kind}"), tail)?;
        eventually("somebody waits", SOON, || async {
            Ok(records.get(&key).await?.is_some())
        })
        .await
    }

    /// The key of the record that lists the holders. `kind` is `rw`, `sem`, or the key of the word
    /// that somebody waits: `waiting/rw`.
    pub(super) fn shared_key(&self, kind: &str, tail: &str) -> Outcome<RecordKey> {
        Ok(RecordKey::new(format!(
            "shared/{kind}/{}",
            self.name(tail)
        ))?)
    }
}

/// Takes what must be free, or become free soon.
pub(super) async fn take(wanted: SharedBuilder) -> Outcome<SharedGuard> {
    Ok(wanted.wait(SOON).acquire().await?)
}

/// Holds for a moment, again and again, until the task is aborted.
pub(super) async fn again_and_again(wanted: impl Fn() -> SharedBuilder) -> Outcome<Infallible> {
    loop {
        let guard = take(wanted()).await?;
        sleep(Duration::from_millis(20)).await;
        drop(guard.release().await);
    }
}

/// Makes one attempt that must be refused.
pub(super) async fn refused(what: &str, wanted: SharedBuilder) -> Outcome {
    match wanted.try_acquire().await?.acquired() {
        None => Ok(()),
        Some(guard) => fail!("{what} should be refused, and got {guard:?}"),
    }
}

/// Releases a guard. It is a failure when the guard had lost its lock before.
pub(super) async fn leave(guard: SharedGuard) -> Outcome {
    let released = soon("a release", guard.release()).await?;
    ensure!(released.is_clean(), "a release was not clean: {released:?}");
    Ok(())
}

/// Ends the client of a guard, which is not renewed any more: a process that was killed.
pub(super) async fn die(store: &Store, guard: SharedGuard) {
    store.close().await;
    std::mem::forget(guard);
}

/// Writes a record as another program would.
pub(super) async fn write(store: &Store, key: &RecordKey, value: &str) -> Outcome {
    let records = store.records();
    let expect = match records.get(key).await? {
        Some(entry) => Expect::Version(entry.version),
        None => Expect::Absent,
    };
    records.put(key, value.as_bytes(), expect).await?;
    Ok(())
}
