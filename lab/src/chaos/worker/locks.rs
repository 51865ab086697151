//! The ways to acquire a lock that give one guard, a set of guards, or none.
//!
//! Contended tasks compete for few locks and hold them long, also beyond the lease. Brief tasks
//! hold many locks for a moment each, so that a run has many operations.

use std::time::Duration;

use anyhow::Result;
use distlock::{Attempt, Clock as _, Locker, Renew, SystemClock, Ticket};

use super::{
    referee_client::HistoryWriter,
    task::{DrawnOptions, WorkerTask},
};
use crate::chaos::{
    history::{CallKind, CallResult, HoldEnd, now},
    worker_settings::{EXTRA_WAIT, READ_BOUND, RELEASE_BOUND},
};

impl WorkerTask {
    /// Takes a random lock with random options, uses the lock, and ends the hold.
    pub(super) async fn use_one_lock(&mut self) -> Result<()> {
        let (name, ttl, wait) = (self.draw_name(), self.draw_ttl(), self.draw_wait() * 2);
        let renew = if self.rng.bool() {
            Renew::Auto
        } else {
            Renew::Manual
        };
        let builder = self.locker.lock(&name).ttl(ttl).renew(renew);
        let DrawnOptions {
            builder,
            min_hold_us,
        } = self.draw_options(builder);
        let asked = now();
        let guard = if self.rng.u32(..4) == 0 {
            let call = self.history.begin_call(CallKind::TryAcquire, EXTRA_WAIT);
            let attempt = builder.try_acquire().await;
            call.finish_with(&attempt);
            attempt.ok().and_then(Attempt::acquired)
        } else {
            let call = self
                .history
                .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
            let guard = builder.wait(wait).acquire().await;
            call.finish_with(&guard);
            guard.ok()
        };
        match guard {
            Some(guard) => {
                let hold = self.record_grant(&guard, asked, None);
                self.record_min_hold(hold, asked, min_hold_us);
                self.hold_lock(hold, guard).await
            }
            None => {
                self.pause().await;
                Ok(())
            }
        }
    }

    /// Takes a lock that is probably free, writes once, and ends the hold.
    pub(super) async fn use_lock_briefly(&mut self) -> Result<()> {
        let (name, ttl) = (self.draw_name(), self.draw_ttl());
        let asked = now();
        let call = self.history.begin_call(CallKind::Acquire, ttl + EXTRA_WAIT);
        let guard = self.locker.lock(&name).ttl(ttl).wait(ttl).acquire().await;
        call.finish_with(&guard);
        match guard {
            Ok(guard) => {
                let hold = self.record_grant(&guard, asked, None);
                self.hold_briefly(hold, guard).await
            }
            Err(_) => {
                self.pause().await;
                Ok(())
            }
        }
    }

    /// Takes two random locks as one set, and releases the set after a while.
    pub(super) async fn use_two_locks(&mut self) -> Result<()> {
        let names = [self.draw_name(), self.draw_name()];
        let (ttl, wait) = (self.draw_ttl(), self.draw_wait() * 2);
        let asked = now();
        let call = self
            .history
            .begin_call(CallKind::AcquireAll, wait + EXTRA_WAIT);
        let taken = self.locker.lock_all(&names).ttl(ttl).wait(wait).acquire();
        let taken = taken.await;
        call.finish_with(&taken);
        let Ok(set) = taken else {
            self.pause().await;
            return Ok(());
        };
        let holds: Vec<_> = set
            .guards()
            .iter()
            .map(|guard| self.record_grant(guard, asked, None))
            .collect();
        if self.is_brief {
            self.pause().await;
        } else {
            SystemClock.sleep(self.draw_wait() / 4).await;
        }
        for (hold, guard) in holds.iter().zip(set.guards()) {
            self.check_validity(*hold, &guard.watch());
        }
        for (hold, guard) in holds.iter().zip(set.guards()) {
            self.record_end(*hold, &guard.watch(), HoldEnd::Released);
        }
        // The locks are released concurrently, so one release bound covers all.
        let call = self.history.begin_call(CallKind::Release, RELEASE_BOUND);
        set.release().await;
        call.finish(CallResult::Done);
        Ok(())
    }

    /// Drops the future of an `acquire` at a random await.
    pub(super) async fn cancel_acquire(&mut self) {
        let (name, ttl, wait) = (self.draw_name(), self.draw_ttl(), self.draw_wait());
        let patience = Duration::from_micros(self.rng.u64(..20_000));
        let call = self
            .history
            .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
        let acquiring = self.locker.lock(&name).ttl(ttl).wait(wait).acquire();
        tokio::select! {
            biased;
            // If the guard arrives before the time-out, it is dropped at once.
            guard = acquiring => call.finish_with(&guard.map(drop)),
            () = SystemClock.sleep(patience) => drop(call),
        }
    }

    /// Inspects a random lock, or lists all locks.
    pub(super) async fn inspect_or_list(&mut self) {
        if self.rng.bool() {
            let name = self.draw_name();
            let call = self.history.begin_call(CallKind::Inspect, READ_BOUND);
            let seen = self.locker.inspect(&name).await;
            call.finish_with(&seen);
        } else {
            let call = self.history.begin_call(CallKind::List, READ_BOUND);
            let seen = self.locker.list("").await;
            call.finish_with(&seen);
        }
        self.pause().await;
    }

    /// Resumes one ticket twice at once. At most one of the two calls may succeed.
    pub(super) async fn resume_ticket_twice(&mut self, ticket: Ticket, number: u64) -> Result<()> {
        let asked = now();
        let resume_once = async |locker: &Locker, history: &HistoryWriter| {
            let call = history.begin_call(CallKind::Resume, RELEASE_BOUND);
            let guard = locker.resume(&ticket).await;
            call.finish_with(&guard);
            guard.ok()
        };
        let (first, second) = tokio::join!(
            resume_once(&self.locker, &self.history),
            resume_once(&self.locker, &self.history)
        );
        for guard in [first, second].into_iter().flatten() {
            let hold = self.record_grant(&guard, asked, Some(number));
            if self.is_brief {
                Box::pin(self.hold_briefly(hold, guard)).await?;
            } else {
                Box::pin(self.hold_lock(hold, guard)).await?;
            }
        }
        Ok(())
    }

    /// Waits for a random time, which can be longer than the lease of the ticket, and then releases
    /// the ticket.
    pub(super) async fn release_ticket_late(&mut self, ticket: &Ticket) {
        if self.is_brief {
            self.pause().await;
        } else {
            SystemClock.sleep(self.draw_wait() * 2).await;
        }
        let call = self.history.begin_call(CallKind::Release, RELEASE_BOUND);
        let released = self.locker.release_ticket(ticket).await;
        call.finish_with(&released);
    }
}
