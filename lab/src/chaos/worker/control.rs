//! The tasks of a worker that uses a control instead of distlock. These tasks acquire, use and
//! release locks like the tasks of distlock, as far as a control allows: a control has no tickets
//! and no records, and its users get no notice of a loss.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use distlock::{Clock as _, SystemClock};
use fastrand::Rng;
use tokio::task::JoinSet;

use super::referee_client::{HistoryWriter, RefereeClient};
use crate::chaos::{
    controls::{self, Control, ControlHold, ControlLock},
    history::{CallKind, CallResult, Event, HoldEnd, HoldMode, HoldNumber, NO_TOKEN, now},
    worker_settings::{EXTRA_WAIT, RELEASE_BOUND, WorkerSettings},
};

/// Longest pause between two attempts for a busy lock.
const RETRY_MS: u64 = 40;

/// Number of steps of a hold, out of sixty, that extend the lock. Most controls ignore an
/// extension.
const EXTENSIONS: u32 = 6;

/// Works until the process is killed, because a run asks nothing of a control after the last fault.
pub(super) async fn work(
    settings: &Arc<WorkerSettings>,
    control: Control,
    history: Arc<HistoryWriter>,
) -> Result<()> {
    let lock = controls::open(control, &settings.url)?;
    history.record(Event::Started {
        pid: std::process::id(),
    });
    let mut rng = Rng::with_seed(settings.seed);
    let mut tasks = JoinSet::new();
    for _ in 0..settings.tasks {
        let task = ControlTask {
            settings: Arc::clone(settings),
            referee: RefereeClient::connect(&settings.socket, settings.worker).await?,
            history: Arc::clone(&history),
            lock: Arc::clone(&lock),
            rng: rng.fork(),
        };
        tasks.spawn(task.run());
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// One task that uses a control.
struct ControlTask {
    settings: Arc<WorkerSettings>,
    referee: RefereeClient,
    history: Arc<HistoryWriter>,
    lock: Arc<dyn ControlLock>,
    rng: Rng,
}

impl ControlTask {
    /// Uses one lock after another.
    async fn run(mut self) -> Result<()> {
        loop {
            self.use_one_lock().await?;
            self.pause().await;
        }
    }

    /// Asks for a random lock, and uses it if it was granted.
    async fn use_one_lock(&mut self) -> Result<()> {
        let names = &self.settings.names;
        let name = names[self.rng.usize(..names.len())].clone();
        let ttl = self.draw_ttl();
        let asked = now();
        let Some(held) = self.acquire(&name, ttl).await else {
            return Ok(());
        };
        let hold = self.history.next_number();
        self.history.record(Event::Granted {
            hold,
            name: name.clone(),
            token: NO_TOKEN,
            asked,
            at: now(),
            resumed: None,
            mode: HoldMode::Alone,
        });
        self.hold_lock(hold, &name, held).await
    }

    /// Asks for a lock again and again for a random time.
    async fn acquire(&mut self, name: &str, ttl: Duration) -> Option<Box<dyn ControlHold>> {
        let wait = Duration::from_millis(self.rng.u64(..=2 * self.settings.ttl_ms.1));
        let until = SystemClock.now() + wait;
        let lock = Arc::clone(&self.lock);
        let call = Arc::clone(&self.history);
        let call = call.begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
        loop {
            let left = until.since(SystemClock.now());
            let held = lock.attempt(name, ttl, left).await;
            if held.is_some() || SystemClock.now() >= until {
                call.finish(if held.is_some() {
                    CallResult::Done
                } else {
                    CallResult::Refused
                });
                return held;
            }
            let pause = Duration::from_millis(self.rng.u64(..RETRY_MS));
            SystemClock.sleep(pause).await;
        }
    }

    /// Uses a lock for a while, and releases the lock even if its user no longer believes in it.
    async fn hold_lock(
        &mut self,
        hold: HoldNumber,
        name: &str,
        mut held: Box<dyn ControlHold>,
    ) -> Result<()> {
        let longest = self.settings.longest_ttl();
        let hold_time = match self.rng.u32(..20) {
            0..14 => longest / 30,
            14..17 => longest,
            // Some holds last longer than the lease.
            _ => longest * 3,
        };
        let until = SystemClock.now() + hold_time.mul_f32(self.rng.f32());
        while SystemClock.now() < until && self.update_registers(hold, name, &*held).await? {
            match self.rng.u32(..60) {
                0 => {
                    let longest = Duration::min(longest * 2, Duration::from_secs(2));
                    self.history
                        .block_this_thread(longest.mul_f32(self.rng.f32()));
                }
                1..=EXTENSIONS => {
                    let ttl = self.draw_ttl();
                    let call = self.history.begin_call(CallKind::Extend, RELEASE_BOUND);
                    held.extend(ttl).await;
                    call.finish(CallResult::Done);
                }
                _ => {}
            }
            self.pause().await;
        }
        let believed = self.check_belief(hold, &*held);
        let at = now();
        self.history.record(Event::Ended {
            hold,
            at,
            deadline: at,
            how: if believed {
                HoldEnd::Released
            } else {
                HoldEnd::NotValid
            },
        });
        let call = self.history.begin_call(CallKind::Release, RELEASE_BOUND);
        held.release().await;
        call.finish(CallResult::Done);
        Ok(())
    }

    /// Reads both registers, and writes them while the user believes in the lock. Returns whether
    /// the user believed in the lock.
    async fn update_registers(
        &mut self,
        hold: HoldNumber,
        name: &str,
        held: &dyn ControlHold,
    ) -> Result<bool> {
        if !self.check_belief(hold, held) {
            return Ok(false);
        }
        let seen = self.referee.read(name.to_owned(), NO_TOKEN).await?;
        if self.rng.u32(..4) == 0 {
            self.pause().await;
        }
        if !self.check_belief(hold, held) {
            return Ok(false);
        }
        let name = name.to_owned();
        self.referee.write(name, NO_TOKEN, seen).await?;
        Ok(true)
    }

    /// Asks for the belief of the user, and records a positive answer.
    fn check_belief(&self, hold: HoldNumber, held: &dyn ControlHold) -> bool {
        let from = now();
        let believed = held.is_believed();
        let to = now();
        if believed {
            self.history.record(Event::Valid {
                hold,
                from,
                to,
                deadline: to,
            });
        }
        believed
    }

    /// Draws a TTL between the shortest and the longest TTL of the run.
    fn draw_ttl(&mut self) -> Duration {
        let (least, most) = self.settings.ttl_ms;
        Duration::from_millis(self.rng.u64(least..=most))
    }

    /// Pauses for a random time of less than 8 ms.
    async fn pause(&mut self) {
        let pause = Duration::from_micros(self.rng.u64(..8_000));
        SystemClock.sleep(pause).await;
    }
}
