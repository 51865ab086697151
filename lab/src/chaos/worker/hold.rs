//! The use of a held lock, and the ways to end the hold.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use distlock::{Clock as _, Ended, Guard, SystemClock};
use tokio::{task::JoinHandle, time::timeout};

use super::task::{HoldWatch, WorkerTask};
use crate::chaos::{
    history::{CallKind, CallResult, Event, HoldEnd, HoldNumber, micros_since_boot, now},
    worker_settings::{LATEST_NOTICE, RELEASE_BOUND},
};

impl WorkerTask {
    /// Uses a lock for a while, and ends the hold in one of many ways.
    pub(super) async fn hold_lock(&mut self, hold: HoldNumber, guard: Guard) -> Result<()> {
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
            valid = self.update_registers(hold, &guard).await?;
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
        if !valid || !self.check_validity(hold, &guard.watch()) {
            self.record_end(hold, &guard.watch(), HoldEnd::NotValid);
            // The notice of the loss may come a little later than this end.
            if !loss_watch.is_finished() {
                let _ = timeout(LATEST_NOTICE, loss_watch).await;
            }
            return Ok(());
        }
        self.give_up(hold, guard).await
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
        if self.update_registers(hold, &guard).await? && self.check_validity(hold, &guard.watch()) {
            self.give_up(hold, guard).await
        } else {
            self.record_end(hold, &guard.watch(), HoldEnd::NotValid);
            let loss_watch = self.spawn_loss_watch(hold, guard.watch());
            let _ = timeout(LATEST_NOTICE, loss_watch).await;
            Ok(())
        }
    }

    /// Ends the hold in a random way: by a release, a dropped guard or a ticket.
    async fn give_up(&mut self, hold: HoldNumber, guard: Guard) -> Result<()> {
        let tickets = self.locker.capabilities().tickets;
        match self.rng.u32(..12) {
            0 => {
                self.record_end(hold, &guard.watch(), HoldEnd::Dropped);
                drop(guard);
            }
            1 if tickets => {
                self.record_end(hold, &guard.watch(), HoldEnd::Ticket);
                let call = self.history.begin_call(CallKind::IntoTicket, RELEASE_BOUND);
                let ticket = guard.into_ticket().await;
                call.finish_with(&ticket);
                if let Ok(ticket) = ticket {
                    let number = self.rng.u64(..);
                    self.resume_ticket_twice(ticket, number).await?;
                }
            }
            2 if tickets => {
                self.record_end(hold, &guard.watch(), HoldEnd::Ticket);
                let call = self.history.begin_call(CallKind::IntoTicket, RELEASE_BOUND);
                let ticket = guard.into_ticket().await;
                call.finish_with(&ticket);
                if let Ok(ticket) = ticket {
                    self.release_ticket_late(&ticket).await;
                }
            }
            _ => {
                self.record_end(hold, &guard.watch(), HoldEnd::Released);
                let call = self.history.begin_call(CallKind::Release, RELEASE_BOUND);
                let _ = guard.release().await;
                call.finish(CallResult::Done);
            }
        }
        Ok(())
    }

    /// Reads both registers of the lock, and writes them if the lock is still held. Returns whether
    /// the lock was held.
    pub(super) async fn update_registers(
        &mut self,
        hold: HoldNumber,
        guard: &Guard,
    ) -> Result<bool> {
        let (name, token) = (guard.name().to_string(), guard.token().get());
        self.update_registers_of(name, token, hold, &guard.watch())
            .await
    }

    /// As [`update_registers`](Self::update_registers), for the registers of this name.
    pub(super) async fn update_registers_of(
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
