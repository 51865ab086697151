//! Readers and writers, and permits: the ways to acquire, use and give up a shared lock.

use std::{future::Future, time::Duration};

use anyhow::Result;
use distlock::{Attempt, Clock as _, ErrorKind, Fairness, Released, Store, SystemClock};
use distlock_recipes::shared::{RwLock, Semaphore, SharedBuilder, SharedGuard, SharedMode};
use tokio::task::JoinHandle;

use super::{
    hold::HeldGuard,
    task::{HoldWatch, WorkerTask},
};
use crate::chaos::{
    history::{CallKind, Event, HoldEnd, HoldMode, HoldNumber, Micros, now},
    worker_settings::{EXTRA_WAIT, PASSES_FOR, RELEASE_BOUND, RW_LOCKS, SEMAPHORES},
};

/// The shared locks of one client. Its tasks share these values, as the documentation advises.
#[derive(Clone)]
pub(super) struct SharedLocks {
    readers_writers: Vec<RwLock>,
    semaphores: Vec<Semaphore>,
}

impl SharedLocks {
    pub(super) fn new(store: &Store) -> Result<Self> {
        let readers_writers = RW_LOCKS.iter().map(|name| RwLock::new(store, name));
        let semaphores = SEMAPHORES
            .iter()
            .map(|(name, capacity)| Semaphore::new(store, name, *capacity));
        Ok(Self {
            readers_writers: readers_writers.collect::<distlock::Result<_>>()?,
            semaphores: semaphores.collect::<distlock::Result<_>>()?,
        })
    }

    /// Returns the names of all shared locks, each with a builder for a holder that excludes all
    /// others.
    pub(super) fn alone(&self) -> Vec<(String, SharedBuilder)> {
        let writers = self.readers_writers.iter();
        let writers = writers.map(|lock| (lock.name().to_string(), lock.write()));
        let all_permits = self.semaphores.iter().map(|semaphore| {
            let all = semaphore.permits(semaphore.capacity());
            (semaphore.name().to_string(), all)
        });
        writers.chain(all_permits).collect()
    }
}

/// A shared lock that a task wants.
struct Wanted {
    name: String,
    builder: SharedBuilder,
    /// The number of permits of the semaphore.
    of: u32,
}

impl Wanted {
    /// Returns the mode of a guard of this lock.
    fn mode(&self, guard: &SharedGuard) -> HoldMode {
        match guard.mode() {
            SharedMode::Read => HoldMode::Reads,
            SharedMode::Permits => HoldMode::Permits {
                indices: guard.indices(),
                of: self.of,
            },
            _ => HoldMode::Writes,
        }
    }
}

impl WorkerTask {
    /// Draws a shared lock, and what is wanted of it: half of the draws of a lock of readers and
    /// writers are readers, and a few draws of permits need all of them.
    fn draw_shared_lock(&mut self) -> Result<Wanted> {
        // Some callers have a value of their own, and then act like another process.
        let own = match self.rng.u32(..8) {
            0 => Some(SharedLocks::new(&self.store)?),
            _ => None,
        };
        let locks = own.as_ref().unwrap_or(&self.shared_locks);
        if self.rng.bool() {
            let lock = &locks.readers_writers[self.rng.usize(..locks.readers_writers.len())];
            let builder = match self.rng.u32(..3) {
                0 => lock.write(),
                _ => lock.read(),
            };
            return Ok(Wanted {
                name: lock.name().to_string(),
                builder,
                of: 0,
            });
        }
        let semaphore = &locks.semaphores[self.rng.usize(..locks.semaphores.len())];
        let of = semaphore.capacity();
        let count = match self.rng.u32(..8) {
            0 => of,
            _ => self.rng.u32(1..=of.min(2)),
        };
        Ok(Wanted {
            name: semaphore.name().to_string(),
            builder: semaphore.permits(count),
            of,
        })
    }

    /// Takes a shared lock in a random way, uses the lock, and ends the hold.
    pub(super) async fn use_shared_lock(&mut self) -> Result<()> {
        let wanted = self.draw_shared_lock()?;
        let (ttl, wait) = (self.draw_ttl(), self.draw_wait() * 4);
        let builder = wanted.builder.clone().ttl(ttl).wait(wait);
        let asked = now();
        let guard = match self.rng.u32(..16) {
            0 => {
                self.cancel_shared(builder, wait).await;
                None
            }
            1..4 => {
                let call = self.history.begin_call(CallKind::TryAcquire, EXTRA_WAIT);
                let attempt = builder.try_acquire().await;
                call.finish_with(&attempt);
                attempt.ok().and_then(Attempt::acquired)
            }
            _ => {
                let call = self
                    .history
                    .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
                let guard = builder.acquire().await;
                call.finish_with(&guard);
                let is_in_order = self.locker.capabilities().fairness != Fairness::None;
                match guard {
                    Ok(guard) if is_in_order => {
                        let hold = self.record_shared_grant(&guard, &wanted, asked);
                        self.record_wait(&wanted.name, asked, Some(hold), PASSES_FOR);
                        return self.hold_shared(hold, guard, &wanted).await;
                    }
                    Err(error) if is_in_order && error.kind() == ErrorKind::Timeout => {
                        self.record_wait(&wanted.name, asked, None, PASSES_FOR);
                        None
                    }
                    guard => guard.ok(),
                }
            }
        };
        let Some(guard) = guard else {
            self.pause().await;
            return Ok(());
        };
        let hold = self.record_shared_grant(&guard, &wanted, asked);
        self.hold_shared(hold, guard, &wanted).await
    }

    /// Drops the future of an `acquire` at a random await.
    async fn cancel_shared(&mut self, builder: SharedBuilder, wait: Duration) {
        let patience = Duration::from_micros(self.rng.u64(..40_000));
        let call = self
            .history
            .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
        tokio::select! {
            biased;
            // If the guard arrives before the time-out, it is dropped at once.
            guard = builder.acquire() => call.finish_with(&guard.map(drop)),
            () = SystemClock.sleep(patience) => drop(call),
        }
    }

    /// Records a grant that was requested at `asked`, and returns the number of the hold.
    fn record_shared_grant(&self, guard: &SharedGuard, wanted: &Wanted, asked: Micros) -> u64 {
        let hold = self.history.next_number();
        self.history.record(Event::Granted {
            hold,
            name: wanted.name.clone(),
            token: guard.token().get(),
            asked,
            at: now(),
            resumed: None,
            mode: wanted.mode(guard),
        });
        hold
    }

    /// Uses a shared lock for a while, and ends the hold.
    async fn hold_shared(
        &mut self,
        hold: HoldNumber,
        guard: SharedGuard,
        wanted: &Wanted,
    ) -> Result<()> {
        let Some(loss_watch) = self.use_for_a_while(hold, &guard).await? else {
            return Ok(());
        };
        match self.rng.u32(..8) {
            0 => {
                self.record_end(hold, &guard.watch(), HoldEnd::Dropped);
                drop(guard);
            }
            1..4 if guard.mode() == SharedMode::Write => {
                let reader = self.downgrade(hold, guard, wanted, &loss_watch).await;
                if let Some((hold, reader)) = reader {
                    return Box::pin(self.hold_shared(hold, reader, wanted)).await;
                }
            }
            _ => self.record_end_and_release(hold, guard).await,
        }
        Ok(())
    }

    /// Turns a writer into a reader. Returns the reader with its hold.
    async fn downgrade(
        &self,
        writer: HoldNumber,
        guard: SharedGuard,
        wanted: &Wanted,
        loss_watch: &JoinHandle<()>,
    ) -> Option<(HoldNumber, SharedGuard)> {
        loss_watch.abort();
        self.record_end(writer, &guard.watch(), HoldEnd::Downgraded);
        let asked = now();
        let call = self.history.begin_call(CallKind::Downgrade, RELEASE_BOUND);
        let reader = guard.downgrade().await;
        call.finish_with(&reader);
        let reader = reader.ok()?;
        let hold = self.record_shared_grant(&reader, wanted, asked);
        self.history.record(Event::Downgraded {
            from: writer,
            to: hold,
        });
        Some((hold, reader))
    }
}

impl HeldGuard for SharedGuard {
    fn watch(&self) -> impl HoldWatch {
        Self::watch(self)
    }

    fn extend(&self, ttl: Duration) -> impl Future<Output = distlock::Result<()>> + Send {
        Self::extend(self, ttl)
    }

    fn release(self) -> impl Future<Output = Released> + Send {
        Self::release(self)
    }

    /// Reads what the lock protects and, unless the holder is a reader, writes it. A permit
    /// protects registers of its own.
    async fn use_once(&self, hold: HoldNumber, task: &mut WorkerTask) -> Result<bool> {
        let (watch, token) = (self.watch(), self.token().get());
        let mut name = self.name().to_string();
        if self.mode() == SharedMode::Read {
            if !task.check_validity(hold, &watch) {
                return Ok(false);
            }
            task.referee.read(name, token).await?;
            return Ok(task.check_validity(hold, &watch));
        }
        if let Some(index) = task.rng.choice(&self.indices()) {
            name = format!("{name}#{index}");
        }
        task.update_registers(name, token, hold, &watch).await
    }
}
