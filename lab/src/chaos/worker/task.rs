//! One task: takes locks in every way there is, again and again, until it is stopped.
//!
//! Some tasks fight for few locks and hold them long, also beyond their lease. The others hurry:
//! they hold many locks for a moment each, so that a run has many operations.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use distlock::{Attempt, Clock as _, Guard, Locker, Records, Renew, Store, SystemClock, Ticket};
use fastrand::Rng;
use tokio::sync::watch;

use super::ways::Drawn;
use super::{
    BEYOND_WAIT, LOOK, Settings,
    notes::{Notes, Questions},
};
use crate::chaos::{
    history::{Answer, Call, Event, Micros, now},
    workload::Workload,
};

/// The documented bound of a release and of an extension.
pub(super) const STEPS: Duration = Duration::from_secs(20);
/// Long enough that a lock which was not released shows as one.
const ROLL_CALL_TTL: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Task {
    pub(super) settings: Arc<Settings>,
    pub(super) notes: Arc<Notes>,
    pub(super) questions: Questions,
    pub(super) locker: Locker,
    pub(super) store: Store,
    pub(super) records: Arc<dyn Records>,
    pub(super) rng: Rng,
    pub(super) number: u32,
    pub(super) hurries: bool,
    /// Turns true when the work is over.
    pub(super) stop: watch::Receiver<bool>,
}

impl Task {
    pub(super) async fn run(mut self) -> Result<()> {
        let workloads = self.workloads();
        while !self.is_over() {
            match (Workload::draw(&workloads, &mut self.rng), self.hurries) {
                (Workload::Locks, false) => self.use_a_lock().await?,
                (Workload::Locks, true) => self.use_a_free_lock().await?,
                (Workload::Records, _) => self.use_a_record().await,
                (Workload::Lines, _) => self.line_up().await?,
                (Workload::Recipes, _) => self.use_a_recipe().await?,
            }
        }
        self.answer_the_roll_call().await;
        Ok(())
    }

    /// Those of the run; a task that hurries leaves the slow ones to others, if there are any.
    fn workloads(&self) -> Vec<Workload> {
        let all = &self.settings.workloads;
        let quick = all.iter().filter(|it| self.hurries && it.is_quick());
        let quick: Vec<_> = quick.copied().collect();
        if quick.is_empty() { all.clone() } else { quick }
    }

    async fn use_a_free_lock(&mut self) -> Result<()> {
        match self.rng.u32(..80) {
            0..2 => self.look().await,
            2..10 => self.give_up_in_the_middle().await,
            10..16 => self.take_two().await?,
            _ => self.take_for_a_moment().await?,
        }
        Ok(())
    }

    async fn use_a_lock(&mut self) -> Result<()> {
        match self.rng.u32(..80) {
            0..3 => self.look().await,
            3..11 => self.give_up_in_the_middle().await,
            11..16 => self.take_two().await?,
            16..20 => self.run_under().await?,
            20..24 => self.enter_twice().await?,
            _ => self.take_one().await?,
        }
        Ok(())
    }

    pub(super) fn is_over(&self) -> bool {
        *self.stop.borrow()
    }

    pub(super) fn ttl(&mut self) -> Duration {
        let (least, most) = self.settings.ttl_ms;
        Duration::from_millis(self.rng.u64(least..=most))
    }

    /// One of the few locks that all fight for, or of the many that are held for a moment.
    pub(super) fn name(&mut self) -> String {
        let names = if self.hurries {
            &self.settings.quiet_names
        } else {
            &self.settings.names
        };
        names[self.rng.usize(..names.len())].clone()
    }

    /// Up to the longest TTL.
    pub(super) fn while_(&mut self) -> Duration {
        Duration::from_millis(self.rng.u64(..=self.settings.ttl_ms.1))
    }

    pub(super) async fn take_one(&mut self) -> Result<()> {
        let (name, ttl, wait) = (self.name(), self.ttl(), self.while_() * 2);
        let renew = if self.rng.bool() {
            Renew::Auto
        } else {
            Renew::Manual
        };
        let builder = self.locker.lock(&name).ttl(ttl).renew(renew);
        let Drawn {
            builder,
            min_hold_us,
        } = self.with_options(builder);
        let asked = now();
        let guard = if self.rng.u32(..4) == 0 {
            let call = self.notes.call(Call::TryAcquire, BEYOND_WAIT);
            let attempt = builder.try_acquire().await;
            call.result(&attempt);
            attempt.ok().and_then(Attempt::acquired)
        } else {
            let call = self.notes.call(Call::Acquire, wait + BEYOND_WAIT);
            let guard = builder.wait(wait).acquire().await;
            call.result(&guard);
            guard.ok()
        };
        match guard {
            Some(guard) => {
                let hold = self.granted(&guard, asked, None);
                self.keeps(hold, asked, min_hold_us);
                self.hold(hold, guard).await
            }
            None => {
                self.rest().await;
                Ok(())
            }
        }
    }

    /// Takes a lock that is probably free, writes once, and gives it up.
    async fn take_for_a_moment(&mut self) -> Result<()> {
        let (name, ttl) = (self.name(), self.ttl());
        let asked = now();
        let call = self.notes.call(Call::Acquire, ttl + BEYOND_WAIT);
        let guard = self.locker.lock(&name).ttl(ttl).wait(ttl).acquire().await;
        call.result(&guard);
        match guard {
            Ok(guard) => {
                let hold = self.granted(&guard, asked, None);
                self.hold_for_a_moment(hold, guard).await
            }
            Err(_) => {
                self.rest().await;
                Ok(())
            }
        }
    }

    async fn take_two(&mut self) -> Result<()> {
        let names = [self.name(), self.name()];
        let (ttl, wait) = (self.ttl(), self.while_() * 2);
        let asked = now();
        let call = self.notes.call(Call::AcquireAll, wait + BEYOND_WAIT);
        let taken = self.locker.lock_all(&names).ttl(ttl).wait(wait).acquire();
        let taken = taken.await;
        call.result(&taken);
        let Ok(set) = taken else {
            self.rest().await;
            return Ok(());
        };
        let holds: Vec<_> = set
            .guards()
            .iter()
            .map(|guard| self.granted(guard, asked, None))
            .collect();
        if self.hurries {
            self.rest().await;
        } else {
            SystemClock.sleep(self.while_() / 4).await;
        }
        for (hold, guard) in holds.iter().zip(set.guards()) {
            self.is_valid(*hold, &guard.watch());
        }
        for (hold, guard) in holds.iter().zip(set.guards()) {
            self.ends(*hold, &guard.watch(), crate::chaos::history::End::Released);
        }
        // All at once, so it takes as long as one.
        let call = self.notes.call(Call::Release, STEPS);
        set.release().await;
        call.answered(Answer::Done);
        Ok(())
    }

    /// Drops the future of an `acquire` at some await.
    async fn give_up_in_the_middle(&mut self) {
        let (name, ttl, wait) = (self.name(), self.ttl(), self.while_());
        let patience = Duration::from_micros(self.rng.u64(..20_000));
        let call = self.notes.call(Call::Acquire, wait + BEYOND_WAIT);
        let acquiring = self.locker.lock(&name).ttl(ttl).wait(wait).acquire();
        tokio::select! {
            biased;
            // A guard that comes at once is dropped at once.
            guard = acquiring => call.result(&guard.map(drop)),
            () = SystemClock.sleep(patience) => drop(call),
        }
    }

    async fn look(&mut self) {
        if self.rng.bool() {
            let name = self.name();
            let call = self.notes.call(Call::Inspect, LOOK);
            let seen = self.locker.inspect(&name).await;
            call.result(&seen);
        } else {
            let call = self.notes.call(Call::List, LOOK);
            let seen = self.locker.list("").await;
            call.result(&seen);
        }
        self.rest().await;
    }

    /// Two take one ticket: one of them may have it.
    pub(super) async fn resume_twice(&mut self, ticket: Ticket, number: u64) -> Result<()> {
        let asked = now();
        let both = async |locker: &Locker, notes: &Notes| {
            let call = notes.call(Call::Resume, STEPS);
            let guard = locker.resume(&ticket).await;
            call.result(&guard);
            guard.ok()
        };
        let (first, second) = tokio::join!(
            both(&self.locker, &self.notes),
            both(&self.locker, &self.notes)
        );
        for guard in [first, second].into_iter().flatten() {
            let hold = self.granted(&guard, asked, Some(number));
            if self.hurries {
                Box::pin(self.hold_for_a_moment(hold, guard)).await?;
            } else {
                Box::pin(self.hold(hold, guard)).await?;
            }
        }
        Ok(())
    }

    /// Lets a ticket lie, also for longer than its lease, and releases it then.
    pub(super) async fn release_late(&mut self, ticket: &Ticket) {
        if self.hurries {
            self.rest().await;
        } else {
            SystemClock.sleep(self.while_() * 2).await;
        }
        let call = self.notes.call(Call::Release, STEPS);
        let released = self.locker.release_ticket(ticket).await;
        call.result(&released);
    }

    /// A moment in which others get their turn, also after a call that failed at once.
    pub(super) async fn rest(&mut self) {
        SystemClock
            .sleep(Duration::from_micros(self.rng.u64(..8_000)))
            .await;
    }

    /// Everybody gets in once more, each lock, within the longest TTL and 5 s.
    async fn answer_the_roll_call(&mut self) {
        let within = self.settings.longest_ttl() + BEYOND_WAIT;
        for name in self.settings.names.clone() {
            let lock = self.locker.lock(&name).ttl(ROLL_CALL_TTL).wait(within);
            let call = self.notes.call(Call::Acquire, within + BEYOND_WAIT);
            let guard = lock.acquire().await;
            call.result(&guard);
            let problem = match guard {
                Ok(guard) => {
                    let released = guard.release().await;
                    (!released.is_clean()).then(|| format!("{name:?}: {released:?}"))
                }
                Err(error) => Some(error.to_string()),
            };
            self.notes.note(Event::RollCall {
                at: now(),
                task: self.number,
                problem,
            });
        }
    }

    pub(super) fn granted(&self, guard: &Guard, asked: Micros, resumed: Option<u64>) -> u64 {
        let hold = self.notes.number();
        self.notes.note(Event::Granted {
            hold,
            name: guard.name().to_string(),
            token: guard.token().get(),
            asked,
            at: now(),
            resumed,
        });
        hold
    }
}
