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
use distlock::{FencingToken, LockName, Locker, LossReason, backend::LossSender};
use distlock_core::sync::Mutex;
use fastrand::Rng;
use tokio::sync::watch;

use super::{
    executor::{Owner, Spawner},
    judge::Judge,
    planted_bugs::{EngineBug, Variant},
    setting::{Chances, LONGEST_DELAY, Place, RingSetting, Setting},
    store::{Loss, SimulatedStore},
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
    /// One store; or the members of a quorum; or those of a ring, and the ring store.
    pub(super) stores: Vec<SimulatedStore>,
    random: Mutex<Rng>,
    pub(super) trace: Mutex<Trace>,
    pub(super) judge: Mutex<Judge>,
    outages: Mutex<Outages>,
    /// The number of the first process that knows the new members of a quorum that was moved.
    moved: Mutex<Option<usize>>,
    /// By lock and token: the process with that grant, and the sender of its loss.
    loss_senders: Mutex<BTreeMap<(usize, u64), (Owner, LossSender)>>,
    /// The locker of each process.
    pub(super) lockers: Mutex<BTreeMap<usize, Locker>>,
    /// Number of tasks that have answered the roll call, and of tasks that have finished.
    pub(super) counts: Mutex<Counts>,
}

/// The numbers of tasks that have reached two points of a run, and of what happens in a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) present: usize,
    pub(super) done: usize,
    /// Those who change the members of a ring now.
    pub(super) changing: usize,
    /// How often the members of a ring have changed.
    pub(super) changes: u64,
}

/// The connections that are cut.
#[derive(Debug, Default)]
pub(super) struct Outages {
    /// Whether no request fails any more.
    pub(super) over: bool,
    /// Whether nobody can reach any store.
    pub(super) outage: bool,
    /// The processes that cannot reach any store.
    pub(super) cut: Vec<usize>,
    /// The stores that nobody can reach.
    pub(super) away: Vec<usize>,
    /// Processes, each with a store that it cannot reach.
    pub(super) links: Vec<(usize, usize)>,
}

impl World {
    /// Draws the setting of a run and creates its store.
    pub(super) fn new(
        spawner: Spawner,
        mut random: Rng,
        variant: Variant,
        place: Place,
        trace: Trace,
    ) -> Result<Arc<Self>> {
        let mut setting = Setting::draw(&mut random);
        match place {
            Place::OneStore => {}
            Place::Quorum => setting.draw_quorum(&mut random),
            Place::Ring => setting.draw_ring(&mut random),
        }
        if let Variant::Planted(bug) | Variant::Twin(bug) = variant {
            bug.adjust_setting(&mut setting);
        }
        let time = Timeline::default();
        let stores = match (&setting.quorum, &setting.ring) {
            (Some(quorum), _) => quorum.new_stores(&time, &mut random),
            (None, Some(ring)) => ring.new_stores(&time, &mut random),
            (None, None) => vec![SimulatedStore::new(draw_clock(&time, &mut random), false)],
        };
        let names = (0..setting.locks).map(|number| LockName::new(format!("lock-{number}")));
        let names = names.collect::<distlock::Result<_>>()?;
        let majority = setting.quorum.as_ref().map(|quorum| quorum.listed / 2 + 1);
        let majority = majority.or(setting.ring.as_ref().map(|_| 1));
        let mut judge = Judge::new(
            setting.locks,
            stores.len(),
            majority,
            setting.store_orders_tasks(),
        );
        judge.view_bound = setting.ring.as_ref().map(RingSetting::bound);
        Ok(Arc::new(Self {
            time,
            spawner,
            setting,
            bug: variant.bug(),
            phase: watch::Sender::new(SimulationPhase::Faults),
            names,
            stores,
            random: Mutex::new(random),
            trace: Mutex::new(trace),
            judge: Mutex::new(judge),
            outages: Mutex::default(),
            moved: Mutex::default(),
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

    /// Tells whether the last fault is over.
    pub(super) fn are_faults_over(&self) -> bool {
        self.outages.lock().over
    }

    /// Tells whether the store of this number has the view of a ring.
    pub(super) fn is_ring_store(&self, number: usize) -> bool {
        let ring = self.setting.ring.as_ref();
        ring.is_some_and(|ring| ring.members == number)
    }

    /// Draws the time between the age of a write at this store and the moment in which it is seen.
    pub(super) fn draw_stall(&self, number: usize) -> Duration {
        let stalls = self.setting.ring.as_ref().is_some_and(|ring| ring.stalls);
        if !stalls || !self.is_ring_store(number) || self.are_faults_over() {
            return Duration::ZERO;
        }
        self.draw(|random| match random.bool() {
            true => LONGEST_DELAY / (1 << random.u32(0..5)),
            false => Duration::ZERO,
        })
    }

    /// Returns a clock with a random start and a random error.
    pub(super) fn draw_clock(&self) -> MachineClock {
        self.draw(|random| draw_clock(&self.time, random))
    }

    /// Returns the probabilities of faults for a request to a store, and whether the connection is
    /// cut.
    pub(super) fn chances_of(&self, owner: Owner, store: usize) -> (Chances, bool) {
        let outages = self.outages.lock();
        if outages.over {
            return (Chances::default(), false);
        }
        let cut = match owner {
            Owner::Process(process) => {
                outages.cut.contains(&process) || outages.links.contains(&(process, store))
            }
            Owner::Network | Owner::Course => false,
        };
        let cut = cut || outages.outage || outages.away.contains(&store);
        let mut chances = self.setting.chances;
        if owner == Owner::Course {
            // A step of an operator needs every answer of every member, and would never end.
            (chances.request_lost, chances.answer_lost, chances.refused) = (0, 0, 0);
        }
        (chances, cut)
    }

    /// Tells whether the quorum was moved to other members.
    pub(super) fn is_moved(&self) -> bool {
        self.moved.lock().is_some()
    }

    /// Records that the quorum was moved. Processes that start from now on know the new members.
    pub(super) fn record_moved(&self) {
        let processes = self.judge.lock().processes.len();
        *self.moved.lock() = Some(processes);
    }

    /// Returns the processes that are alive and know only the old members of a moved quorum.
    pub(super) fn outdated_processes(&self) -> Vec<usize> {
        let first = self.moved.lock().unwrap_or_default();
        let judge = self.judge.lock();
        (0..first).filter(|it| judge.processes[*it].alive).collect()
    }

    /// Has a random member of the quorum forget, if a majority of others votes.
    pub(super) fn forget(&self) {
        let Some(quorum) = &self.setting.quorum else {
            return;
        };
        let (member, loss) = self.draw(|random| {
            let losses = [Loss::Restart, Loss::Locks, Loss::Flush, Loss::Records];
            (
                random.usize(0..quorum.stores),
                losses[random.usize(0..losses.len())],
            )
        });
        let silence = quorum.silence();
        let others = self.stores.iter().enumerate();
        let others = others.filter(|(at, store)| *at != member && store.votes(silence));
        if others.count() <= quorum.listed / 2 {
            return;
        }
        self.stores[member].lose(loss);
        if !matches!(loss, Loss::Records) {
            // A thousandth less, because the member's own clock may be fast.
            let silent_until = self.now() + silence - silence / 1_000;
            let mut judge = self.judge.lock();
            judge.record_forgotten(self.now(), member, silent_until);
        }
        self.add_store_line(loss.what(), member);
    }

    /// Changes which connections are cut.
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
        let about = About {
            lock,
            call,
            grant,
            store: None,
        };
        self.add_trace_line_about(owner, what, about);
    }

    /// Adds a line to the trace.
    pub(super) fn add_trace_line_about(&self, owner: Owner, what: &'static str, about: About) {
        let at = self.now();
        self.trace.lock().add_trace_line(TraceLine {
            at,
            owner,
            what,
            about,
        });
    }

    /// Adds a line about a store to the trace.
    pub(super) fn add_store_line(&self, what: &'static str, store: usize) {
        let about = About {
            store: Some(store),
            ..About::default()
        };
        self.add_trace_line_about(Owner::Course, what, about);
    }

    /// Returns the number of a lock by its name.
    pub(super) fn lock_number(&self, name: &LockName) -> Option<usize> {
        self.names.iter().position(|it| it == name)
    }

    /// Records the holder of a lock after a request has arrived at a store.
    pub(super) fn record_applied(&self, store: usize, name: &LockName, what: &'static str) {
        let Some(lock) = self.lock_number(name) else {
            return;
        };
        let row = self.stores[store].holder(name);
        let mut judge = self.judge.lock();
        if self.stores.len() > 1 {
            judge.record_member(self.now(), lock, store, row, what);
        } else {
            judge.record_stored(self.now(), lock, row);
        }
        drop(judge);
        let about = About {
            lock: Some(lock),
            call: row.map(|row| row.call),
            store: Some(store),
            ..About::default()
        };
        self.add_trace_line_about(Owner::Network, what, about);
    }

    /// Returns the number of waiters that the stores count.
    pub(super) fn waiter_count(&self) -> u32 {
        let waiting = self.stores.iter().map(|it| it.waiter_count(&self.names));
        waiting.sum()
    }

    /// Keeps the sender by which the store can report the loss of a grant.
    pub(super) fn keep_loss_sender(
        &self,
        name: &LockName,
        token: FencingToken,
        owner: Owner,
        sender: LossSender,
    ) {
        if let Some(lock) = self.lock_number(name) {
            self.loss_senders
                .lock()
                .insert((lock, token.get()), (owner, sender));
        }
    }

    /// Force-releases a lock at one store. If the setting has `pushes_losses`, the store notifies
    /// the holder later.
    pub(super) fn force_release_lock(&self, store: usize, lock: usize) {
        let name = &self.names[lock];
        let Some(row) = self.stores[store].holder(name) else {
            return;
        };
        // The judge must know of the release before it happens, because from the release on the
        // holder may still trust its lease.
        self.judge.lock().record_forced(lock, row);
        if !self.stores[store].force_release(name, &row) {
            return;
        }
        self.record_applied(store, name, "forced");
        let Some((owner, sender)) = self.loss_senders.lock().remove(&(lock, row.token)) else {
            return;
        };
        let (time, late) = (self.time.clone(), self.draw(|random| random.u64(1..=1_500)));
        self.spawner.spawn(owner, "push", async move {
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
pub(super) fn poll_once<T>(answer: impl Future<Output = distlock::Result<T>>) -> Result<T> {
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
