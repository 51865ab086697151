//! The ways to acquire a lock that do not give one guard: a closure that runs under the lock, and a
//! scope that takes the lock twice.

use anyhow::Result;
use distlock::{Clock as _, LockWatch, Scope, SystemClock};

use super::{
    referee_client::HistoryWriter,
    task::{DrawnOptions, WorkerTask},
};
use crate::chaos::{
    history::{CallKind, CallResult, Event, HoldEnd, HoldMode, HoldNumber, micros_since_boot, now},
    worker_settings::{EXTRA_WAIT, RELEASE_BOUND},
};

impl WorkerTask {
    /// Runs a closure under a lock. The library drops the closure if the lock is lost.
    pub(super) async fn run_closure(&mut self) -> Result<()> {
        let (name, ttl, wait) = (self.draw_name(), self.draw_ttl(), self.draw_wait() * 2);
        let builder = self.locker.lock(&name).ttl(ttl).wait(wait);
        let DrawnOptions {
            builder,
            min_hold_us,
        } = self.draw_options(builder);
        let time = if self.rng.u32(..4) == 0 {
            self.settings.longest_ttl() * 3
        } else {
            self.settings.longest_ttl() / 20
        };
        let until = now() + u64::try_from(time.as_micros()).unwrap_or_default();
        let hold = self.history.next_number();
        let (asked, history) = (now(), &*self.history);
        let stop = self.stop.clone();
        let work = async |watch: LockWatch| {
            history.record(Event::Granted {
                hold,
                name: watch.name().to_string(),
                token: watch.token().get(),
                asked,
                at: now(),
                resumed: None,
                mode: HoldMode::Alone,
            });
            if min_hold_us > 0 {
                let until = asked + min_hold_us;
                history.record(Event::Keeps { hold, until });
            }
            let mut under = WorkUnderLock {
                history,
                hold,
                watch,
                how: HoldEnd::NotValid,
            };
            under.check_validity();
            while now() < until && !*stop.borrow() {
                SystemClock.sleep(std::time::Duration::from_millis(5)).await;
                if !under.check_validity() {
                    // The lock is lost. The closure does nothing until the library drops the
                    // closure.
                    return std::future::pending().await;
                }
            }
            // The library releases the lock after this closure.
            under.how = HoldEnd::Released;
        };
        // The closure has no time limit, so the call has no bound.
        let ran = builder.run(work).await;
        drop(ran);
        self.pause().await;
        Ok(())
    }

    /// Takes a lock twice within one scope, and releases the guards in either order.
    pub(super) async fn acquire_reentrant(&mut self) -> Result<()> {
        let (name, ttl, wait) = (self.draw_name(), self.draw_ttl(), self.draw_wait() * 2);
        let scope = Scope::new();
        let asked = now();
        let call = self
            .history
            .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
        let lock = self.locker.lock(&name).ttl(ttl).wait(wait);
        let outer = lock.clone().reentrant(&scope).acquire().await;
        call.finish_with(&outer);
        let Ok(outer) = outer else {
            self.pause().await;
            return Ok(());
        };
        let hold = self.record_grant(&outer, asked, None);
        self.check_validity(hold, &outer.watch());
        let asked = now();
        let call = self
            .history
            .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
        let inner = match self.rng.u32(..3) {
            // A nested guard may ask for a longer TTL, which extends the existing lease.
            0 => lock.ttl(ttl * 2).reentrant(&scope).acquire().await,
            1 => outer.reenter(),
            _ => lock.reentrant(&scope).acquire().await,
        };
        call.finish_with(&inner);
        let Ok(inner) = inner else {
            self.record_end_and_release(hold, outer).await;
            return Ok(());
        };
        if inner.token() != outer.token() {
            // The outer guard was lost meanwhile, so the inner guard is a hold of its own.
            let fresh = self.record_grant(&inner, asked, None);
            self.check_validity(hold, &outer.watch());
            self.check_validity(fresh, &inner.watch());
            self.record_end_and_release(hold, outer).await;
            self.record_end_and_release(fresh, inner).await;
            return Ok(());
        }
        let (first, last) = match self.rng.bool() {
            true => (outer, inner),
            false => (inner, outer),
        };
        let call = self.history.begin_call(CallKind::Release, RELEASE_BOUND);
        let _ = first.release().await;
        call.finish(CallResult::Done);
        // Only the release of the last guard frees the lock.
        self.pause().await;
        self.check_validity(hold, &last.watch());
        self.record_end_and_release(hold, last).await;
        Ok(())
    }
}

/// Work under a lock. Dropping the value records the end of the hold.
struct WorkUnderLock<'a> {
    history: &'a HistoryWriter,
    hold: HoldNumber,
    watch: LockWatch,
    how: HoldEnd,
}

impl WorkUnderLock<'_> {
    /// Calls `is_valid()`, and records a positive answer.
    fn check_validity(&self) -> bool {
        let (from, valid, to) = (now(), self.watch.is_valid(), now());
        let (hold, deadline) = (self.hold, micros_since_boot(self.watch.deadline()));
        if valid {
            self.history.record(Event::Valid {
                hold,
                from,
                to,
                deadline,
            });
        }
        valid
    }
}

impl Drop for WorkUnderLock<'_> {
    fn drop(&mut self) {
        let (hold, at, deadline) = (self.hold, now(), micros_since_boot(self.watch.deadline()));
        if self.how == HoldEnd::NotValid {
            match self.watch.loss() {
                // The library has dropped the closure, and that drop is the notice of the loss.
                Some(reason) => self.history.record(Event::LossNotified {
                    hold,
                    at,
                    deadline,
                    reason: reason.to_string(),
                }),
                None => self.how = HoldEnd::Dropped,
            }
        }
        self.history.record(Event::Ended {
            hold,
            at,
            deadline,
            how: self.how,
        });
    }
}
