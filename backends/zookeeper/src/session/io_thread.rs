//! What drives the client's connection: a thread of its own, and whoever sends a request while nothing is under way.
//!
//! The thread waits for the socket itself, so an answer wakes it and then its caller, and nobody else. A request would
//! have to wake it too, which costs a lone caller more than the servers' reading of a node does; so that caller lets the
//! connection's task do its next step (which writes the request to the socket) right where it stands. The thread remains
//! responsible for everything: a caller whose runtime is blocked or gone holds nothing up.

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
use distlock_core::panics;
use futures_util::task::AtomicWaker;

use crate::sync::lock;

/// Steps in a row, after which the thread looks at its sockets, and a caller goes its own way.
const THREAD_STEPS: usize = 64;
const CALLER_STEPS: usize = 2;

thread_local! {
    /// The io_thread for which this thread is about to do a step, by its address; 0 = none.
    static CALLER_RUNS_FOR: Cell<usize> = const { Cell::new(0) };
}

/// The tasks of one client, which can be ended together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskGroup(u64);

impl TaskGroup {
    /// Tasks that nobody ends early.
    const NONE: Self = Self(0);
}

/// KnownQueues the tasks of the client's connections.
pub(crate) struct IoThread {
    // Std mutexes: held to push, to pop and to swap only.
    ready: Mutex<VecDeque<Runnable>>,
    tasks: Mutex<Vec<(TaskGroup, async_task::Task<()>)>>,
    groups: AtomicU64,
    waker: AtomicWaker,
    in_flight: AtomicUsize,
    stopped: AtomicBool,
}

impl IoThread {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        // This starts the one thread of async-io, which panics where it gets none, and then aborts
        // the process if that happens first inside of its `block_on`.
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

    /// For one client.
    pub(crate) fn new_group(&self) -> TaskGroup {
        TaskGroup(self.groups.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Polls a future such that what it spawns runs here, as part of that line.
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

    /// Sends requests, at once and from this thread when nothing else is under way.
    pub(crate) fn send<T>(self: &Arc<Self>, requests: impl FnOnce() -> T) -> T {
        if self.in_flight.load(Ordering::Relaxed) > 0 {
            return requests();
        }
        let _caller_runs = CallerRuns::begin(self);
        let sent = requests();
        self.run_ready(CALLER_STEPS);
        sent
    }

    /// Counts a request as under way until that is dropped.
    pub(crate) fn count_request(&self) -> RequestInFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        RequestInFlight(self)
    }

    /// Ends the tasks of a line where they stand: their connections are closed, and nothing more is
    /// sent. Whoever waits for one of their watches must have been stopped before: the client
    /// panics there.
    pub(crate) fn abort(&self, group: TaskGroup) {
        let (aborted, rest) = std::mem::take(&mut *lock(&self.tasks))
            .into_iter()
            .partition::<Vec<_>, _>(|(of, _)| *of == group);
        lock(&self.tasks).extend(rest);
        // Outside of the mutex: a dropped task is scheduled once more.
        drop(aborted);
    }

    /// Ends the thread, and whatever still runs on it.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.waker.wake();
    }

    async fn run(self: Arc<Self>) {
        poll_fn(|context| {
            self.waker.register(context.waker());
            if self.stopped.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            if self.run_ready(THREAD_STEPS) {
                // A turn for the sockets first.
                context.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await;
        // Cancelled tasks come once more, to be dropped.
        drop(std::mem::take(&mut *lock(&self.tasks)));
        while self.run_ready(THREAD_STEPS) {}
    }

    /// Does at most so many steps. `true` = there is more to do.
    fn run_ready(self: &Arc<Self>, most: usize) -> bool {
        for _ in 0..most {
            let Some(runnable) = lock(&self.ready).pop_front() else {
                return false;
            };
            let spawner = Spawner(Arc::clone(self), TaskGroup::NONE);
            let _scope = spawns_core::enter(&spawner);
            // A connection's task that panics is gone, which its users notice; the thread and its helpers go on.
            if panics::caught(|| runnable.run()).is_err() {
                tracing::error!("the task of a connection panicked");
            }
        }
        !lock(&self.ready).is_empty()
    }

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

/// A request that is under way.
pub(crate) struct RequestInFlight<'a>(&'a IoThread);

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// While it lives, this thread does what becomes ready; what it has not done then is the io_thread's again.
struct CallerRuns<'a> {
    io_thread: &'a IoThread,
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

/// Takes in what the client spawns.
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

    /// A task that says on which thread each of its steps is done. It takes one whenever its bell is rung.
    fn stepping(io_thread: &Arc<IoThread>) -> (Arc<AtomicWaker>, mpsc::Receiver<ThreadId>) {
        let (bell, (says, steps)) = (Arc::new(AtomicWaker::new()), mpsc::channel());
        let rung = Arc::clone(&bell);
        let spawning = io_thread.capture_spawns(io_thread.new_group(), async move {
            drop(spawns_core::spawn(poll_fn(move |context| {
                rung.register(context.waker());
                let _ = says.send(thread::current().id());
                Poll::<()>::Pending
            })));
        });
        async_io::block_on(spawning);
        (bell, steps)
    }

    #[test]
    fn its_thread_does_what_others_wake() {
        let io_thread = IoThread::start().unwrap();
        let (bell, steps) = stepping(&io_thread);
        for _ in 0..3 {
            assert_ne!(steps.recv_timeout(LONG).unwrap(), thread::current().id());
            bell.wake();
        }
        io_thread.stop();
    }

    #[test]
    fn a_lone_caller_does_the_step_itself() {
        let io_thread = IoThread::start().unwrap();
        let (bell, steps) = stepping(&io_thread);
        steps.recv_timeout(LONG).unwrap();
        // The thread does it when it is still busy with the step before.
        let mine = (0..1000).any(|_| {
            io_thread.send(|| bell.wake());
            steps.recv_timeout(LONG).unwrap() == thread::current().id()
        });
        assert!(mine);
        let _other = io_thread.count_request();
        io_thread.send(|| bell.wake());
        assert_ne!(steps.recv_timeout(LONG).unwrap(), thread::current().id());
        io_thread.stop();
    }

    #[test]
    fn what_a_caller_leaves_is_done_by_the_thread() {
        const STEPS: usize = 10 * CALLER_STEPS;
        let io_thread = IoThread::start().unwrap();
        let (bell, (says, steps)) = (Arc::new(AtomicWaker::new()), mpsc::channel());
        let rung = Arc::clone(&bell);
        let spawning = io_thread.capture_spawns(io_thread.new_group(), async move {
            let mut left = 0;
            drop(spawns_core::spawn(poll_fn(move |context| {
                rung.register(context.waker());
                let _ = says.send(());
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
                io_thread.send(|| bell.wake());
            }
        }
        io_thread.stop();
    }

    #[test]
    fn a_line_is_cut_and_the_others_go_on() {
        let io_thread = IoThread::start().unwrap();
        let (_, steps) = stepping(&io_thread);
        let (bell, others) = stepping(&io_thread);
        steps.recv_timeout(LONG).unwrap();
        others.recv_timeout(LONG).unwrap();
        let first = lock(&io_thread.tasks)[0].0;
        io_thread.abort(first);
        assert_eq!(
            steps.recv_timeout(LONG),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
        bell.wake();
        others.recv_timeout(LONG).unwrap();
        io_thread.stop();
    }

    #[test]
    fn its_end_drops_what_runs() {
        let io_thread = IoThread::start().unwrap();
        let (_, steps) = stepping(&io_thread);
        steps.recv_timeout(LONG).unwrap();
        io_thread.stop();
        // The task owned the sender; nothing comes from it any more.
        assert_eq!(
            steps.recv_timeout(LONG),
            Err(mpsc::RecvTimeoutError::Disconnected)
        );
    }

    #[test]
    fn a_task_that_panics_takes_nobody_with_it() {
        let io_thread = IoThread::start().unwrap();
        async_io::block_on(io_thread.capture_spawns(io_thread.new_group(), async {
            drop(spawns_core::spawn(async { panic!("on purpose") }));
        }));
        let (_, steps) = stepping(&io_thread);
        steps.recv_timeout(LONG).unwrap();
        io_thread.stop();
    }
}
