//! The tasks that take locks, and that give a lock or a request up at every possible point.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use distlock::{Attempt, DistLock, Ended, Error, ErrorKind, Guard, Locker, Renew};
use distlock_conformance::LockLayer as _;
use fastrand::Rng;

use super::{
    executor::Owner,
    members,
    network::SimulatedConnection,
    observed::SimulatedProcess,
    planted_bugs::{EngineBug, around_clock, around_lock},
    setting::{LONGEST_HOLD, LONGEST_TTL, Setting},
    time::MachineClock,
    world::{SimulationPhase, World},
};

/// Number of turns of each task after the roll call.
const TURNS: usize = 6;

/// Starts a process: a locker, and the tasks that use it.
pub(super) fn start_process(world: &Arc<World>) {
    let clock = world.draw_clock();
    let process = world.judge.lock().processes.len();
    world
        .judge
        .lock()
        .processes
        .push(SimulatedProcess::new(clock.clone()));
    let owner = Owner::Process(process);
    world.add_trace_line(owner, "starts", None, None, None);
    if let Some(target) = members::target(world, &clock) {
        let (opened, opening) = (Arc::clone(world), members::open(world, process, target));
        world.spawner.spawn(owner, "open", async move {
            let lock = opening.await;
            start_workers(&opened, process, &clock, || Arc::clone(&lock));
        });
    } else {
        start_workers(world, process, &clock, || {
            SimulatedConnection::new(world, owner, 0, world.stores[0].below()).into_lock()
        });
    }
}

/// Creates the locker of a process over its connection, and starts the tasks that use it.
fn start_workers(
    world: &Arc<World>,
    process: usize,
    clock: &MachineClock,
    connect: impl Fn() -> Arc<dyn DistLock>,
) {
    let owner = Owner::Process(process);
    let locker = || {
        let mut lock = connect();
        let mut shown: Arc<dyn distlock::Clock> = Arc::new(clock.clone());
        if let Some(bug) = world.bug {
            lock = around_lock(bug, world, process, lock);
            shown = around_clock(bug, shown);
        }
        let spawner = world.spawner.clone();
        Locker::builder(lock)
            .clock(shown)
            .seed(world.draw(|random| random.u64(..)))
            .hand_over_limit(world.setting.hand_over_limit)
            .keeper_on(move |job| spawner.spawn(owner, "keeper", job))
            .build()
    };
    let shared = locker();
    world.lockers.lock().insert(process, shared.clone());
    for _ in 0..world.setting.tasks {
        let own = if world.has_bug(EngineBug::QueueForEachTask) {
            locker()
        } else {
            shared.clone()
        };
        let worker = SimulatedWorker {
            world: Arc::clone(world),
            process,
            locker: own,
        };
        world.spawner.spawn(owner, "worker", worker.work());
    }
}

/// One task of a process.
struct SimulatedWorker {
    world: Arc<World>,
    process: usize,
    locker: Locker,
}

/// One turn of a task: the way to acquire a lock, and its use.
#[derive(Clone, Copy, Debug)]
struct Turn {
    lock: usize,
    ttl: Duration,
    renew: Renew,
    ask: AskMode,
    hold: Duration,
    extend: Option<Duration>,
    end: TurnEnd,
}

/// The way in which a task asks for a lock.
#[derive(Clone, Copy, Debug)]
enum AskMode {
    Once,
    Wait(Duration),
    ForEver,
    /// Waits for ever, but gives up at this poll.
    Polls(u32),
    /// Waits for ever, but gives up after this time.
    Time(Duration),
}

/// The way in which a task ends a hold.
#[derive(Clone, Copy, Debug)]
enum TurnEnd {
    Release,
    /// Stops waiting for the release at this poll.
    Polls(u32),
    Drop,
}

impl Turn {
    /// Draws a turn. `with_faults` allows short leases.
    fn draw(random: &mut Rng, setting: &Setting, with_faults: bool) -> Self {
        let ms = Duration::from_millis;
        // Without faults all leases are long, so that an abandoned lease does not expire before the
        // judge sees it.
        let shortest = if with_faults {
            300
        } else {
            LONGEST_TTL.as_millis()
        };
        let shortest = u64::try_from(shortest).unwrap_or_default();
        let longest = u64::try_from(LONGEST_TTL.as_millis()).unwrap_or_default();
        let mut ttl = || match random.u32(0..3) {
            // A third of the leases is short, so that late requests meet expired leases.
            0 if with_faults => ms(random.u64(shortest..=700)),
            _ => ms(random.u64(shortest..=longest)),
        };
        let (ttl, other) = (ttl(), ttl());
        let longest_hold = match with_faults {
            true => setting.longest_hold,
            false => setting.longest_hold.min(LONGEST_HOLD),
        };
        let longest_hold = u64::try_from(longest_hold.as_millis()).unwrap_or_default();
        let ask = match random.u32(0..10) {
            0 => AskMode::Once,
            1..4 => AskMode::Wait(ms(random.u64(1..=8_000))),
            4..7 => AskMode::ForEver,
            7..9 => AskMode::Polls(random.u32(0..12)),
            _ => AskMode::Time(ms(random.u64(0..=300))),
        };
        let hold = match random.u32(0..10) {
            0..2 => ms(random.u64(500..=longest_hold)),
            2..4 => Duration::from_micros(random.u64(1..=1_000)),
            _ => ms(random.u64(1..=120)),
        };
        let end = match random.u32(0..5) {
            0 => TurnEnd::Drop,
            1 => TurnEnd::Polls(random.u32(0..5)),
            _ => TurnEnd::Release,
        };
        Self {
            lock: random.usize(0..setting.locks),
            ttl,
            renew: if random.u32(0..4) == 0 {
                Renew::Manual
            } else {
                Renew::Auto
            },
            ask,
            hold,
            extend: (random.u32(0..3) == 0).then_some(other),
            end,
        }
    }
}

impl SimulatedWorker {
    /// Takes locks during the faults, answers the roll call, and takes locks a few times without
    /// faults.
    async fn work(self) {
        while self.world.is_fault_phase() {
            self.take_turn().await;
        }
        for lock in 0..self.world.setting.locks {
            let ask = Turn {
                lock,
                ttl: LONGEST_TTL,
                renew: Renew::Auto,
                ask: AskMode::ForEver,
                hold: Duration::from_millis(1),
                extend: None,
                end: TurnEnd::Release,
            };
            self.take_lock(ask).await;
        }
        self.world.counts.lock().present += 1;
        let mut phase = self.world.phase.subscribe();
        let _ = phase
            .wait_for(|phase| *phase == SimulationPhase::Calm)
            .await;
        for _ in 0..TURNS {
            self.take_turn().await;
        }
        self.world.counts.lock().done += 1;
    }

    /// Draws a turn, takes the lock of the turn, and pauses after the turn.
    async fn take_turn(&self) {
        let (setting, with_faults) = (&self.world.setting, self.world.is_fault_phase());
        let (turn, think) = self.world.draw(|random| {
            let longest = if random.bool() { 500 } else { 200_000 };
            let think = random.u64(0..=longest);
            (Turn::draw(random, setting, with_faults), think)
        });
        self.take_lock(turn).await;
        self.world.time.sleep(Duration::from_micros(think)).await;
    }

    /// Adds a line about a call of this task to the trace.
    fn add_trace_line(&self, what: &'static str, turn: Turn, call: u64, grant: Option<u64>) {
        let owner = Owner::Process(self.process);
        self.world
            .add_trace_line(owner, what, Some(turn.lock), Some(call), grant);
    }

    /// Takes one lock and uses it as the turn requires, and reports each step to the judge.
    async fn take_lock(&self, turn: Turn) {
        let world = &self.world;
        let (wait, queues) = match turn.ask {
            AskMode::Once => (Some(Duration::ZERO), false),
            AskMode::Wait(wait) => (Some(wait), true),
            AskMode::ForEver | AskMode::Polls(_) | AskMode::Time(_) => (None, true),
        };
        let now = world.now();
        let call = world
            .judge
            .lock()
            .record_asked(now, self.process, turn.lock, wait, queues);
        self.add_trace_line("asks", turn, call, None);
        let guard = self.acquire(turn, call).await;
        let Some(guard) = guard else {
            world.judge.lock().record_call_ended(world.now(), call);
            self.add_trace_line("goes without", turn, call, None);
            return;
        };
        let grant = world
            .judge
            .lock()
            .record_granted(world.now(), call, guard.watch(), turn.renew);
        self.add_trace_line("holds", turn, call, grant);
        self.spawn_loss_watch(turn, call, &guard);
        self.hold(turn, &guard).await;
        world.judge.lock().record_release_begun(call);
        self.add_trace_line("leaves", turn, call, grant);
        match turn.end {
            TurnEnd::Release => {
                let begun = world.judge.lock().ran(self.process, world.now());
                let released = guard.release().await;
                world
                    .judge
                    .lock()
                    .record_released(world.now(), call, begun, &released);
            }
            TurnEnd::Polls(polls) => {
                let released = CancellableFuture::new(guard.release()).poll_at_most(polls, drop);
                let _ = released.await;
            }
            TurnEnd::Drop => drop(guard),
        }
        world.judge.lock().record_call_ended(world.now(), call);
        self.add_trace_line("is over", turn, call, grant);
    }

    /// Asks for the lock. `None` means that the call failed, or that the task gave it up.
    async fn acquire(&self, turn: Turn, call: u64) -> Option<Guard> {
        let name = &self.world.names[turn.lock];
        let lock = self.locker.lock_named(name).ttl(turn.ttl).renew(turn.renew);
        let lock = lock.holder(format!("c{call}"));
        // A caller that gives up drops its future, unless the planted bug ignores that drop.
        let forgets = self.world.has_bug(EngineBug::QueueKeepsTheCancelled);
        let give_up = move |asking: Pin<Box<_>>| {
            if forgets {
                mem::forget(asking);
            }
        };
        let guard = match turn.ask {
            AskMode::Once => {
                let attempt = lock.try_acquire().await.map(Attempt::acquired);
                return attempt
                    .map_err(|error| self.record_failure(call, &error))
                    .ok()?;
            }
            AskMode::Wait(wait) => Some(lock.wait(wait).acquire().await),
            AskMode::ForEver => Some(lock.wait_forever().acquire().await),
            AskMode::Polls(polls) => {
                let asking = CancellableFuture::new(lock.wait_forever().acquire());
                asking.poll_at_most(polls, give_up).await
            }
            AskMode::Time(time) => {
                let asking = CancellableFuture::new(lock.wait_forever().acquire());
                asking.run_until(self.world.time.sleep(time), give_up).await
            }
        };
        guard?
            .map_err(|error| self.record_failure(call, &error))
            .ok()
    }

    /// Reports an error of a call to the judge.
    fn record_failure(&self, call: u64, error: &Error) {
        // A time-out is the only error that needs no fault.
        if error.kind() != ErrorKind::Timeout {
            self.world.judge.lock().record_failed(call, error);
        }
    }

    /// Starts a task that reports the loss of the lock to the judge.
    fn spawn_loss_watch(&self, turn: Turn, call: u64, guard: &Guard) {
        let (world, process, watch) = (Arc::clone(&self.world), self.process, guard.watch());
        let owner = Owner::Process(process);
        self.world.spawner.spawn(owner, "watch", async move {
            if let Ended::Lost(reason) = watch.ended().await {
                world.judge.lock().record_loss_notified(call, reason);
                world.add_trace_line(
                    owner,
                    "is told of its loss",
                    Some(turn.lock),
                    Some(call),
                    None,
                );
            }
        });
    }

    /// Holds a lock until the end of its turn, its loss, or the next phase of the run.
    async fn hold(&self, turn: Turn, guard: &Guard) {
        let time = &self.world.time;
        let mut phase = self.world.phase.subscribe();
        // The roll call does not wait for the long holds of the phase of faults.
        let hold = match self.world.is_fault_phase() {
            true => turn.hold,
            false => turn.hold.min(LONGEST_HOLD),
        };
        let work = async {
            if let Some(ttl) = turn.extend {
                time.sleep(hold / 8).await;
                let _ = guard.extend(ttl).await;
            }
            time.sleep(hold).await;
        };
        tokio::select! {
            biased;
            _ = guard.lost() => {}
            () = work => {}
            _ = phase.changed() => {}
        }
    }
}

/// A future that its caller may drop early.
struct CancellableFuture<F>(Option<Pin<Box<F>>>);

impl<F: Future> CancellableFuture<F> {
    fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }

    /// Polls the future at most this many times, and passes the unfinished future to `give_up`.
    async fn poll_at_most(
        mut self,
        polls: u32,
        give_up: impl Fn(Pin<Box<F>>),
    ) -> Option<F::Output> {
        let mut left = polls;
        poll_fn(|context| {
            let Some(future) = &mut self.0 else {
                return Poll::Ready(None);
            };
            if let Some(fewer) = left.checked_sub(1) {
                left = fewer;
                if let Poll::Ready(output) = future.as_mut().poll(context) {
                    return Poll::Ready(Some(output));
                }
                if left > 0 {
                    return Poll::Pending;
                }
            }
            self.0.take().into_iter().for_each(&give_up);
            Poll::Ready(None)
        })
        .await
    }

    /// Polls the future until `over` completes, and passes the unfinished future to `give_up`.
    async fn run_until(
        mut self,
        over: impl Future<Output = ()>,
        give_up: impl Fn(Pin<Box<F>>),
    ) -> Option<F::Output> {
        let future = self.0.as_mut()?;
        tokio::select! {
            biased;
            output = future => return Some(output),
            () = over => {}
        }
        self.0.take().into_iter().for_each(give_up);
        None
    }
}
