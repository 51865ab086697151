//! The values that all tasks of one run share: time, randomness, the store, and the judge.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context as Waking, Poll, Waker},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use distlock::{
    Clock as _, DistLock, FencingToken, Forced, LockName, Locker, LossReason, backend::LossSender,
};
use distlock_core::sync::Mutex;
use distlock_memory::Memory;
use fastrand::Rng;
use tokio::sync::watch;

use super::{
    executor::{Owner, Spawner},
    judge::Judge,
    observed::StoredHolder,
    planted_bugs::{EngineBug, Variant},
    setting::{Chances, Setting},
    time::{MachineClock, Timeline},
    trace::{About, Trace, TraceLine},
};

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulationPhase {
    /// Faults are active.
    Faults,
    /// The last fault has ended, and each task takes every lock once.
    RollCall,
    /// No fault is active, and no request of the phase of faults is in flight.
    Calm,
}

/// One run.
pub(super) struct World {
    pub(super) time: Timeline,
    pub(super) spawner: Spawner,
    pub(super) setting: Setting,
    pub(super) bug: Option<EngineBug>,
    pub(super) phase: watch::Sender<SimulationPhase>,
    pub(super) names: Vec<LockName>,
    store: Arc<dyn DistLock>,
    store_clock: MachineClock,
    random: Mutex<Rng>,
    pub(super) trace: Mutex<Trace>,
    pub(super) judge: Mutex<Judge>,
    outages: Mutex<Outages>,
    /// By lock and token: the process with that grant, and the sender of its loss.
    loss_senders: Mutex<BTreeMap<(usize, u64), (usize, LossSender)>>,
    /// The locker of each process.
    pub(super) lockers: Mutex<Vec<Locker>>,
    /// Number of tasks that have answered the roll call, and of tasks that have finished.
    pub(super) counts: Mutex<Counts>,
}

/// The numbers of tasks that have reached two points of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) present: usize,
    pub(super) done: usize,
}

/// The processes that cannot reach the store.
#[derive(Debug, Default)]
pub(super) struct Outages {
    pub(super) outage: bool,
    pub(super) cut: Vec<usize>,
}

impl World {
    /// Draws the setting of a run and creates its store.
    pub(super) fn new(
        spawner: Spawner,
        mut random: Rng,
        variant: Variant,
        trace: Trace,
    ) -> Result<Arc<Self>> {
        let mut setting = Setting::draw(&mut random);
        if let Variant::Planted(bug) | Variant::Twin(bug) = variant {
            bug.adjust_setting(&mut setting);
        }
        let time = Timeline::default();
        let store_clock = draw_clock(&time, &mut random);
        let store = Memory::new(Arc::new(store_clock.clone())).lock();
        let names = (0..setting.locks).map(|number| LockName::new(format!("lock-{number}")));
        let names = names.collect::<distlock::Result<_>>()?;
        let judge = Judge::new(setting.locks, setting.store_orders_tasks());
        Ok(Arc::new(Self {
            time,
            spawner,
            setting,
            bug: variant.bug(),
            phase: watch::Sender::new(SimulationPhase::Faults),
            names,
            store,
            store_clock,
            random: Mutex::new(random),
            trace: Mutex::new(trace),
            judge: Mutex::new(judge),
            outages: Mutex::default(),
            loss_senders: Mutex::default(),
            lockers: Mutex::default(),
            counts: Mutex::default(),
        }))
    }

    /// Draws from the generator of the run.
    pub(super) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.random.lock())
    }

    /// Returns the true time since the begin of the run.
    pub(super) fn now(&self) -> Duration {
        self.time.now()
    }

    /// Tells whether this is the planted bug.
    pub(super) fn has_bug(&self, bug: EngineBug) -> bool {
        self.bug == Some(bug)
    }

    /// Tells whether faults are active.
    pub(super) fn is_fault_phase(&self) -> bool {
        *self.phase.borrow() == SimulationPhase::Faults
    }

    /// Returns a clock with a random start and a random error.
    pub(super) fn draw_clock(&self) -> MachineClock {
        self.draw(|random| draw_clock(&self.time, random))
    }

    /// Returns a new handle on the store.
    pub(super) fn new_handle(&self) -> Result<Arc<dyn DistLock>> {
        poll_once(self.store.reopen())
    }

    /// Returns the probabilities of faults for a request of this process, and whether the process
    /// is cut off from the store.
    pub(super) fn chances_of(&self, process: usize) -> (Chances, bool) {
        if !self.is_fault_phase() {
            return (Chances::default(), false);
        }
        let outages = self.outages.lock();
        let cut = outages.outage || outages.cut.contains(&process);
        (self.setting.chances, cut)
    }

    /// Changes which processes can reach the store.
    pub(super) fn change_outages(&self, change: impl FnOnce(&mut Outages)) {
        change(&mut self.outages.lock());
    }

    /// Adds a line to the trace. `what` names the step of the owner.
    pub(super) fn add_trace_line(
        &self,
        owner: Owner,
        what: &'static str,
        lock: Option<usize>,
        call: Option<u64>,
        grant: Option<u64>,
    ) {
        let about = About { lock, call, grant };
        let at = self.now();
        self.trace.lock().add_trace_line(TraceLine {
            at,
            owner,
            what,
            about,
        });
    }

    /// Returns the number of a lock by its name.
    pub(super) fn lock_number(&self, name: &LockName) -> Option<usize> {
        self.names.iter().position(|it| it == name)
    }

    /// Records the holder of a lock after a request has arrived at the store.
    pub(super) fn record_applied(&self, name: &LockName, what: &'static str) {
        let Some(lock) = self.lock_number(name) else {
            return;
        };
        let row = self.read_holder(name);
        self.judge.lock().record_stored(self.now(), lock, row);
        let call = row.map(|row| row.call);
        self.add_trace_line(Owner::Network, what, Some(lock), call, None);
    }

    /// Reads the holder from the store, without any passing of time.
    fn read_holder(&self, name: &LockName) -> Option<StoredHolder> {
        let held = poll_once(self.store.inspect(name)).ok()?.held?;
        let expires = self.store_clock.now() + held.expires_in?;
        Some(StoredHolder {
            token: held.token?.get(),
            call: held.holder.strip_prefix('c')?.parse().ok()?,
            expires: self.store_clock.true_time(expires),
        })
    }

    /// Returns the number of waiters that the store counts.
    pub(super) fn waiter_count(&self) -> u32 {
        let waiting = self.names.iter().map(|name| {
            let info = poll_once(self.store.inspect(name)).ok();
            info.and_then(|it| it.waiters).unwrap_or_default()
        });
        waiting.sum()
    }

    /// Keeps the sender by which the store can report the loss of a grant.
    pub(super) fn keep_loss_sender(
        &self,
        name: &LockName,
        token: FencingToken,
        process: usize,
        sender: LossSender,
    ) {
        if let Some(lock) = self.lock_number(name) {
            self.loss_senders
                .lock()
                .insert((lock, token.get()), (process, sender));
        }
    }

    /// Force-releases a lock. If the setting has `pushes_losses`, the store notifies the holder
    /// later.
    pub(super) fn force_release_lock(&self, lock: usize) {
        let name = &self.names[lock];
        let Some(row) = self.read_holder(name) else {
            return;
        };
        let Ok(token) = FencingToken::new(row.token) else {
            return;
        };
        // The judge must know of the release before it happens, because from the release on the
        // holder may still trust its lease.
        self.judge.lock().record_forced(lock, row.token);
        let forced = poll_once(self.store.force_release(name, token));
        if !matches!(forced, Ok(Forced::Released)) {
            return;
        }
        self.record_applied(name, "forced");
        let Some((process, sender)) = self.loss_senders.lock().remove(&(lock, row.token)) else {
            return;
        };
        let (time, late) = (self.time.clone(), self.draw(|random| random.u64(1..=1_500)));
        self.spawner
            .spawn(Owner::Process(process), "push", async move {
                time.sleep(Duration::from_millis(late)).await;
                sender.lose(LossReason::ForceReleased);
            });
    }

    /// Drops the lockers and the senders of losses. Both refer to this value, so the value would
    /// never be freed otherwise.
    pub(super) fn drop_references(&self) {
        let lockers = std::mem::take(&mut *self.lockers.lock());
        drop(lockers);
        let loss_senders = std::mem::take(&mut *self.loss_senders.lock());
        drop(loss_senders);
    }
}

/// Draws a clock with its own start and error.
fn draw_clock(time: &Timeline, random: &mut Rng) -> MachineClock {
    let start = Duration::from_secs(random.u64(1_000..1_000_000));
    MachineClock::new(time.clone(), start, random.i32(-5_000..=5_000))
}

/// Polls a future of the in-memory store once, because that store never waits.
fn poll_once<T>(answer: impl Future<Output = distlock::Result<T>>) -> Result<T> {
    let mut answer = pin!(answer);
    match answer.as_mut().poll(&mut Waking::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer.context("the in-memory store"),
        Poll::Pending => Err(anyhow!("the in-memory store waits")),
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}
