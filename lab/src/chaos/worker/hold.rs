//! The use of a held lock, and the ways to end the hold.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::Result;
use distlock::{Clock as _, Ended, Guard, Released, SystemClock};
use tokio::{task::JoinHandle, time::timeout};

use super::task::{HoldWatch, WorkerTask};
use crate::chaos::{
    history::{CallKind, CallResult, Event, HoldEnd, HoldNumber, micros_since_boot, now},
    worker_settings::{LATEST_NOTICE, RELEASE_BOUND},
};

/// A guard that a task uses, exclusive or shared.
pub(super) trait HeldGuard: Send + Sync {
    fn watch(&self) -> impl HoldWatch;
    fn extend(&self, ttl: Duration) -> impl Future<Output = distlock::Result<()>> + Send;
    fn release(self) -> impl Future<Output = Released> + Send;

    /// Uses what the lock protects once. Returns whether the lock was held.
    fn use_once(
        &self,
        hold: HoldNumber,
        task: &mut WorkerTask,
    ) -> impl Future<Output = Result<bool>> + Send;
}

impl HeldGuard for Guard {
    fn watch(&self) -> impl HoldWatch {
        Self::watch(self)
    }

    fn extend(&self, ttl: Duration) -> impl Future<Output = distlock::Result<()>> + Send {
        Self::extend(self, ttl)
    }

    fn release(self) -> impl Future<Output = Released> + Send {
        Self::release(self)
    }

    async fn use_once(&self, hold: HoldNumber, task: &mut WorkerTask) -> Result<bool> {
        let (name, token) = (self.name().to_string(), self.token().get());
        task.update_registers(name, token, hold, &self.watch())
            .await
    }
}

impl WorkerTask {
    /// Uses a lock for a while, and ends the hold in one of many ways.
    pub(super) async fn hold_lock(&mut self, hold: HoldNumber, guard: Guard) -> Result<()> {
        match self.use_for_a_while(hold, &guard).await? {
            Some(_) => self.give_up(hold, guard).await,
            None => Ok(()),
        }
    }

    /// Uses a lock for a while. Returns the task that waits for its loss. `None` means that the
    /// lock was lost, and that the end of the hold is recorded.
    pub(super) async fn use_for_a_while(
        &mut self,
        hold: HoldNumber,
        guard: &impl HeldGuard,
    ) -> Result<Option<JoinHandle<()>>> {
        let mut loss_watch = self.spawn_loss_watch(hold, guard.watch());
        let hold_time = self.draw_hold_time();
        let until = SystemClock.now() + hold_time.mul_f32(self.rng.f32());
        let mut valid = self.check_validity(hold, &guard.watch());
        if self.rng.u32(..6) == 0 {
            // Nobody calls `is_valid()` in this time, so only a notice can report a loss.
            let mut stop = self.stop.clone();
            valid = tokio::select! {
                _ = &mut loss_watch => false,
                _ = stop.wait_for(|over| *over) => true,
                () = SystemClock.sleep(hold_time) => true,
            };
        }
        while valid && SystemClock.now() < until && !self.is_stopped() {
            valid = guard.use_once(hold, self).await?;
            match self.rng.u32(..60) {
                0 => self.block_runtime(),
                1 => {
                    let ttl = self.draw_ttl();
                    let call = self.history.begin_call(CallKind::Extend, RELEASE_BOUND);
                    let extended = guard.extend(ttl).await;
                    call.finish_with(&extended);
                }
                _ => {}
            }
            self.pause().await;
        }
        if valid && self.check_validity(hold, &guard.watch()) {
            return Ok(Some(loss_watch));
        }
        self.record_loss(hold, guard, loss_watch).await;
        Ok(None)
    }

    /// Records the end of a hold that is not valid any more. The notice of the loss may come a
    /// little later.
    pub(super) async fn record_loss(
        &self,
        hold: HoldNumber,
        guard: &impl HeldGuard,
        loss_watch: JoinHandle<()>,
    ) {
        self.record_end(hold, &guard.watch(), HoldEnd::NotValid);
        if !loss_watch.is_finished() {
            let _ = timeout(LATEST_NOTICE, loss_watch).await;
        }
    }

    /// Records the end of a hold, and releases its guard.
    pub(super) async fn record_end_and_release(&self, hold: HoldNumber, guard: impl HeldGuard) {
        self.record_end(hold, &guard.watch(), HoldEnd::Released);
        let call = self.history.begin_call(CallKind::Release, RELEASE_BOUND);
        let _ = guard.release().await;
        call.finish(CallResult::Done);
    }

    /// Draws the longest time of a hold.
    pub(super) fn draw_hold_time(&mut self) -> Duration {
        let longest = self.settings.longest_ttl();
        match self.rng.u32(..20) {
            0..14 => longest / 30,
            14..17 => longest,
            // Some holds last longer than a store needs to grant the lock to somebody else.
            17..19 => longest * 3,
            // A few holds last longer than a server needs to notice its replacement.
            _ => Duration::from_millis(self.settings.hold_ms),
        }
    }

    /// Writes to both registers once, and ends the hold.
    pub(super) async fn hold_briefly(&mut self, hold: HoldNumber, guard: Guard) -> Result<()> {
        if guard.use_once(hold, self).await? && self.check_validity(hold, &guard.watch()) {
            return self.give_up(hold, guard).await;
        }
        let loss_watch = self.spawn_loss_watch(hold, guard.watch());
        self.record_loss(hold, &guard, loss_watch).await;
        Ok(())
    }

    /// Ends the hold in a random way: by a release, a dropped guard or a ticket.
    async fn give_up(&mut self, hold: HoldNumber, guard: Guard) -> Result<()> {
        let tickets = self.locker.capabilities().tickets;
        match self.rng.u32(..12) {
            0 => {
                self.record_end(hold, &guard.watch(), HoldEnd::Dropped);
                drop(guard);
            }
            drawn @ (1 | 2) if tickets => {
                self.record_end(hold, &guard.watch(), HoldEnd::Ticket);
                let call = self.history.begin_call(CallKind::IntoTicket, RELEASE_BOUND);
                let ticket = guard.into_ticket().await;
                call.finish_with(&ticket);
                match ticket {
                    Ok(ticket) if drawn == 1 => {
                        let number = self.rng.u64(..);
                        self.resume_ticket_twice(ticket, number).await?;
                    }
                    Ok(ticket) => self.release_ticket_late(&ticket).await,
                    Err(_) => {}
                }
            }
            _ => self.record_end_and_release(hold, guard).await,
        }
        Ok(())
    }

    /// Reads both registers of this name, and writes them if the lock is still held. Returns
    /// whether the lock was held.
    pub(super) async fn update_registers(
        &mut self,
        name: String,
        token: u64,
        hold: HoldNumber,
        watch: &impl HoldWatch,
    ) -> Result<bool> {
        if !self.check_validity(hold, watch) {
            return Ok(false);
        }
        let seen = self.referee.read(name.clone(), token).await?;
        if self.rng.u32(..4) == 0 {
            self.pause().await;
        }
        if !self.check_validity(hold, watch) {
            return Ok(false);
        }
        self.referee.write(name, token, seen).await?;
        Ok(true)
    }

    /// Starts a task that only waits for a loss. The task never calls `is_valid()`.
    pub(super) fn spawn_loss_watch(
        &self,
        hold: HoldNumber,
        watch: impl HoldWatch,
    ) -> JoinHandle<()> {
        let history = Arc::clone(&self.history);
        tokio::spawn(async move {
            if let Ended::Lost(reason) = watch.ended().await {
                history.record(Event::LossNotified {
                    hold,
                    at: now(),
                    deadline: micros_since_boot(watch.deadline()),
                    reason: reason.to_string(),
                });
            }
        })
    }

    /// Blocks this thread of the runtime, like a long calculation.
    pub(super) fn block_runtime(&mut self) {
        let longest = Duration::min(self.settings.longest_ttl() * 2, Duration::from_secs(2));
        let time = longest.mul_f32(self.rng.f32());
        self.history.block_this_thread(time);
    }
}
