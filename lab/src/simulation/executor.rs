//! The executor: one thread, and the seed decides which ready task is polled next.
//!
//! The executor must never poll a task of a stopped process, even if the task was woken.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use distlock_core::sync::Mutex;
use fastrand::Rng;

/// The owner of a task.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Process(usize),
    /// Requests and answers in flight.
    Network,
    /// The faults and the phases of the run.
    Course,
}

/// The future of a task.
type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Adds tasks to the executor.
#[derive(Clone, Default)]
pub(super) struct Spawner(Arc<Mutex<ReadyQueue>>);

/// The tasks that were just spawned, and the ids of the tasks that were woken.
#[derive(Default)]
struct ReadyQueue {
    last: u64,
    fresh: Vec<(u64, SpawnedTask)>,
    ready: BTreeSet<u64>,
}

/// A task that has not ended.
struct SpawnedTask {
    owner: Owner,
    what: &'static str,
    future: Boxed,
    waker: Waker,
}

impl Spawner {
    /// Adds a task, which is ready at once. `what` names the task in the trace.
    pub(super) fn spawn(
        &self,
        owner: Owner,
        what: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let future: Boxed = Box::pin(future);
        let mut queue = self.0.lock();
        queue.last += 1;
        let id = queue.last;
        let waker = Waker::from(Arc::new(TaskWaker(id, self.clone())));
        let task = SpawnedTask {
            owner,
            what,
            future,
            waker,
        };
        queue.fresh.push((id, task));
        queue.ready.insert(id);
    }
}

/// The waker of one task, by its id.
struct TaskWaker(u64, Spawner);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.1.0.lock().ready.insert(self.0);
    }
}

/// One poll of one task.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct PolledStep {
    pub(super) task: u64,
    pub(super) owner: Owner,
    pub(super) what: &'static str,
    pub(super) ended: bool,
}

/// All tasks that have not ended.
#[derive(Default)]
pub(super) struct Executor {
    spawner: Spawner,
    tasks: BTreeMap<u64, SpawnedTask>,
    candidates: Vec<u64>,
}

impl Executor {
    /// Returns the handle that adds tasks.
    pub(super) const fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// Polls one ready task whose owner runs. `None` means that there is no such task.
    pub(super) fn step(
        &mut self,
        random: &mut Rng,
        runs: impl Fn(Owner) -> bool,
    ) -> Option<PolledStep> {
        let id = self.pick_ready_task(random, runs)?;
        let task = self.tasks.get_mut(&id)?;
        let mut context = Context::from_waker(&task.waker);
        let ended = match task.future.as_mut().poll(&mut context) {
            Poll::Ready(()) => true,
            Poll::Pending => false,
        };
        let (owner, what) = (task.owner, task.what);
        if ended {
            self.tasks.remove(&id);
        }
        Some(PolledStep {
            task: id,
            owner,
            what,
            ended,
        })
    }

    /// Draws one of the ready tasks whose owner runs. Other ready tasks stay ready.
    fn pick_ready_task(&mut self, random: &mut Rng, runs: impl Fn(Owner) -> bool) -> Option<u64> {
        let mut queue = self.spawner.0.lock();
        self.tasks.extend(queue.fresh.drain(..));
        let (tasks, candidates) = (&self.tasks, &mut self.candidates);
        candidates.clear();
        queue.ready.retain(|id| {
            let Some(task) = tasks.get(id) else {
                return false;
            };
            if runs(task.owner) {
                candidates.push(*id);
            }
            true
        });
        let id = *random.choice(&*candidates)?;
        queue.ready.remove(&id);
        Some(id)
    }

    /// Drops the tasks of these owners, and the tasks that their destructors spawn.
    pub(super) fn drop_tasks_of(&mut self, of: impl Fn(Owner) -> bool) {
        loop {
            let fresh = std::mem::take(&mut self.spawner.0.lock().fresh);
            self.tasks.extend(fresh);
            let all = std::mem::take(&mut self.tasks);
            let (gone, stay): (BTreeMap<_, _>, BTreeMap<_, _>) =
                all.into_iter().partition(|(_, task)| of(task.owner));
            self.tasks = stay;
            if gone.is_empty() {
                return;
            }
            drop(gone);
        }
    }

    /// Returns the tasks that have not ended.
    pub(super) fn unfinished(&self) -> Vec<(Owner, &'static str)> {
        let left = self.tasks.values();
        left.map(|task| (task.owner, task.what)).collect()
    }
}
