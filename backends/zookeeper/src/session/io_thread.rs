//! The thread that runs the tasks of the client's connections.
//!
//! The thread owns those tasks. Each task runs until it ends or its group is aborted. The thread
//! must never depend on a caller, because a caller's runtime may be blocked or dropped.
//!
//! The thread itself waits for the socket. So an answer wakes this thread and then the caller, but
//! no third thread. Waking this thread for a request as well would cost a single caller more time
//! than the server needs to read a node. So a caller that finds no other request in flight polls
//! the connection's task once or twice on its own thread, which writes the request to the socket.
//!
//! A step is one poll of a task.

use std::{
    cell::Cell,
    collections::VecDeque,
    future::{Future, poll_fn},
    io,
    os::unix::net::UnixStream,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
};

use async_io::Async;
use async_task::Runnable;
use distlock_backend_kit::panics;
use futures_util::task::AtomicWaker;

use crate::sync::lock;

/// The number of steps that the thread runs before it polls its sockets again.
const THREAD_STEPS: usize = 64;

/// The limit of steps that a caller runs.
const CALLER_STEPS: usize = 2;

thread_local! {
    /// The address of the `IoThread` whose tasks the current thread is about to run; 0 = none.
    static CALLER_RUNS_FOR: Cell<usize> = const { Cell::new(0) };
}

/// The number of a group: the tasks of one client, which can be aborted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskGroup(u64);

impl TaskGroup {
    /// The group of tasks that run until they end or the thread stops.
    const NONE: Self = Self(0);
}

/// Runs the tasks of the client's connections.
pub(crate) struct IoThread {
    // Std mutexes are enough, because each is locked only for a moment and never across an await.
    /// The tasks that are ready for their next step.
    ready: Mutex<VecDeque<Runnable>>,
    tasks: Mutex<Vec<(TaskGroup, async_task::Task<()>)>>,
    /// The number of the newest group.
    groups: AtomicU64,
    /// Wakes the thread.
    waker: AtomicWaker,
    /// The number of requests without an answer.
    in_flight: AtomicUsize,
    stopped: AtomicBool,
}

impl IoThread {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        // This call starts the only thread of async-io, and panics when the system refuses a
        // thread. The panic is caught here, because inside async-io's `block_on` it would abort the
        // process.
        panics::caught(Async::<UnixStream>::pair)
            .map_err(|_| io::Error::other("async-io has no thread"))??;
        let io_thread = Arc::new(Self {
            ready: Mutex::default(),
            tasks: Mutex::default(),
            groups: AtomicU64::new(TaskGroup::NONE.0),
            waker: AtomicWaker::new(),
            in_flight: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        });
        let run_by_thread = Arc::clone(&io_thread);
        std::thread::Builder::new()
            .name("distlock-zk-io".into())
            .spawn(move || async_io::block_on(run_by_thread.run()))?;
        Ok(io_thread)
    }

    /// Returns a new group, for the tasks of one client.
    pub(crate) fn new_group(&self) -> TaskGroup {
        TaskGroup(self.groups.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Runs a future. The tasks that the future spawns run on the I/O thread, as part of the group.
    pub(crate) async fn capture_spawns<F: Future>(
        self: &Arc<Self>,
        group: TaskGroup,
        future: F,
    ) -> F::Output {
        let mut future = pin!(future);
        let spawner = Spawner(Arc::clone(self), group);
        poll_fn(|context| {
            let _scope = spawns_core::enter(&spawner);
            future.as_mut().poll(context)
        })
        .await
    }

    /// Sends the requests that a closure creates. If no other request is in flight, the calling
    /// thread itself writes them to the socket.
    pub(crate) fn send<T>(self: &Arc<Self>, requests: impl FnOnce() -> T) -> T {
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            return requests();
        }
        let _caller_runs = CallerRuns::begin(self);
        let sent = requests();
        self.run_ready(CALLER_STEPS);
        sent
    }

    /// Counts a request as in flight until the returned value is dropped.
    pub(crate) fn count_request(&self) -> RequestInFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        RequestInFlight(self)
    }

    /// Aborts the tasks of a group: their connections close, and nothing more is sent. The caller
    /// must first stop every task that waits for a watch of that client, because the client panics
    /// in such a task.
    pub(crate) fn abort_group(&self, group: TaskGroup) {
        let (aborted, rest) = std::mem::take(&mut *lock(&self.tasks))
            .into_iter()
            .partition::<Vec<_>, _>(|(task_group, _)| *task_group == group);
        lock(&self.tasks).extend(rest);
        // The tasks are dropped outside of the mutex. Dropping a task schedules it once more, and
        // that locks the mutexes.
        drop(aborted);
    }

    /// Ends the thread and drops the tasks that still run on it.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Runs the tasks until the thread is stopped.
    async fn run(self: Arc<Self>) {
        poll_fn(|context| {
            self.waker.register(context.waker());
            if self.stopped.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            if self.run_ready(THREAD_STEPS) {
                // The future returns instead of looping, so that the sockets are polled before the
                // next steps.
                context.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await;
        // Dropping a task schedules it once more; the last step then frees its future.
        drop(std::mem::take(&mut *lock(&self.tasks)));
        while self.run_ready(THREAD_STEPS) {}
    }

    /// Runs at most `most` steps. `true` = more steps are ready.
    fn run_ready(self: &Arc<Self>, most: usize) -> bool {
        for _ in 0..most {
            let Some(runnable) = lock(&self.ready).pop_front() else {
                return false;
            };
            let spawner = Spawner(Arc::clone(self), TaskGroup::NONE);
            let _scope = spawns_core::enter(&spawner);
            // A panic must end only the task of one connection, whose requests then fail. The
            // thread goes on for the other connections.
            if panics::caught(|| runnable.run()).is_err() {
                tracing::error!("the task of a connection panicked");
            }
        }
        !lock(&self.ready).is_empty()
    }

    /// Queues a task for its next step. Wakes the thread, unless the caller itself runs the step.
    fn schedule(self: &Arc<Self>, runnable: Runnable) {
        lock(&self.ready).push_back(runnable);
        if CALLER_RUNS_FOR.get() != self.address() {
            self.waker.wake();
        }
    }

    fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }
}

/// Counts one request as in flight until it is dropped.
pub(crate) struct RequestInFlight<'a>(&'a IoThread);

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// While this value lives, tasks that become ready on this thread do not wake the I/O thread. The
/// drop of this value passes the tasks that are still ready to the I/O thread.
struct CallerRuns<'a> {
    io_thread: &'a IoThread,
    /// The value of `CALLER_RUNS_FOR` to restore.
    before: usize,
}

impl<'a> CallerRuns<'a> {
    fn begin(io_thread: &'a Arc<IoThread>) -> Self {
        Self {
            io_thread,
            before: CALLER_RUNS_FOR.replace(io_thread.address()),
        }
    }
}

impl Drop for CallerRuns<'_> {
    fn drop(&mut self) {
        CALLER_RUNS_FOR.set(self.before);
        if !lock(&self.io_thread.ready).is_empty() {
            self.io_thread.waker.wake();
        }
    }
}

/// Runs the tasks that the client spawns on the I/O thread.
struct Spawner(Arc<IoThread>, TaskGroup);

impl spawns_core::Spawn for Spawner {
    fn spawn(&self, task: spawns_core::Task) {
        let io_thread = Arc::clone(&self.0);
        let future = Box::into_pin(task.future);
        let (runnable, task) =
            async_task::spawn(future, move |runnable| io_thread.schedule(runnable));
        let mut tasks = lock(&self.0.tasks);
        tasks.retain(|(_, task)| !task.is_finished());
        tasks.push((self.1, task));
        drop(tasks);
        runnable.schedule();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc,
        thread::{self, ThreadId},
        time::Duration,
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// Spawns a task that runs one step for each wake-up, and sends the id of the thread that ran
    /// the step.
    fn spawn_stepping_task(
        io_thread: &Arc<IoThread>,
    ) -> (Arc<AtomicWaker>, mpsc::Receiver<ThreadId>) {
        let (waker, (sender, steps)) = (Arc::new(AtomicWaker::new()), mpsc::channel());
        let task_waker = Arc::clone(&waker);
        let spawning = io_thread.capture_spawns(io_thread.new_group(), async move {
            drop(spawns_core::spawn(poll_fn(move |context| {
                task_waker.register(context.waker());
                let _ = sender.send(thread::current().id());
                Poll::<()>::Pending
            })));
        });
        async_io::block_on(spawning);
        (waker, steps)
    }

    #[test]
    fn tasks_woken_by_others_run_on_the_io_thread() {
        let io_thread = IoThread::start().unwrap();
        let (waker, steps) = spawn_stepping_task(&io_thread);
        for _ in 0..3 {
            assert_ne!(steps.recv_timeout(LONG).unwrap(), thread::current().id());
            waker.wake();
        }
        io_thread.stop();
    }

    #[test]
    fn a_lone_caller_runs_the_step_itself() {
        let io_thread = IoThread::start().unwrap();
        let (waker, steps) = spawn_stepping_task(&io_thread);
        steps.recv_timeout(LONG).unwrap();
        // The I/O thread runs the step if it is still busy with the step before, so this needs
        // several tries.
        let mine = (0..1000).any(|_| {
            io_thread.send(|| waker.wake());
            steps.recv_timeout(LONG).unwrap() == thread::current().id()
        });
        assert!(mine);
        let _other = io_thread.count_request();
        io_thread.send(|| waker.wake());
        assert_ne!(steps.recv_timeout(LONG).unwrap(), thread::current().id());
        io_thread.stop();
    }

    #[test]
    fn steps_left_by_a_caller_run_on_the_io_thread() {
        const STEPS: usize = 10 * CALLER_STEPS;
        let io_thread = IoThread::start().unwrap();
        let (waker, (sender, steps)) = (Arc::new(AtomicWaker::new()), mpsc::channel());
        let task_waker = Arc::clone(&waker);
        let spawning = io_thread.capture_spawns(io_thread.new_group(), async move {
            let mut left = 0;
            drop(spawns_core::spawn(poll_fn(move |context| {
                task_waker.register(context.waker());
                let _ = sender.send(());
                left = if left == 0 { STEPS } else { left } - 1;
                if left > 0 {
                    context.waker().wake_by_ref();
                }
                Poll::<()>::Pending
            })));
        });
        async_io::block_on(spawning);
        for round in 0..20 {
            for _ in 0..STEPS {
                steps.recv_timeout(LONG).unwrap();
            }
            if round < 19 {
                io_thread.send(|| waker.wake());
            }
        }
        io_thread.stop();
    }

    #[test]
    fn aborting_one_group_leaves_the_others() {
        let io_thread = IoThread::start().unwrap();
        let (_, steps) = spawn_stepping_task(&io_thread);
        let (waker, others) = spawn_stepping_task(&io_thread);
        steps.recv_timeout(LONG).unwrap();
        others.recv_timeout(LONG).unwrap();
        let first = lock(&io_thread.tasks)[0].0;
        io_thread.abort_group(first);
        assert_eq!(
            steps.recv_timeout(LONG),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
        waker.wake();
        others.recv_timeout(LONG).unwrap();
        io_thread.stop();
    }

    #[test]
    fn stopping_drops_the_running_tasks() {
        let io_thread = IoThread::start().unwrap();
        let (_, steps) = spawn_stepping_task(&io_thread);
        steps.recv_timeout(LONG).unwrap();
        io_thread.stop();
        // The task owned the sender, so the channel closes when the task is dropped.
        assert_eq!(
            steps.recv_timeout(LONG),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
    }

    #[test]
    fn a_panicking_task_does_not_stop_the_others() {
        let io_thread = IoThread::start().unwrap();
        async_io::block_on(io_thread.capture_spawns(io_thread.new_group(), async {
            drop(spawns_core::spawn(async { panic!("on purpose") }));
        }));
        let (_, steps) = spawn_stepping_task(&io_thread);
        steps.recv_timeout(LONG).unwrap();
        io_thread.stop();
    }
}
