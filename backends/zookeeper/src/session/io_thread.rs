//! The thread that runs the tasks of the client's connections.
//!
//! The thread owns those tasks. Each task runs until it ends or its group is aborted. The thread
//! must never depend on a caller, because a caller's runtime may be blocked or dropped.
//!
//! The thread itself waits for the socket. So an answer wakes this thread and then the caller, but
//! no third thread. A request wakes this thread too. A caller that polled the connection's task on
//! its own thread instead gained nothing that could be measured (`distlock-lab peers zookeeper`).

use std::{
    future::{Future, poll_fn},
    io,
    os::unix::net::UnixStream,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_executor::{Executor, Task};
use async_io::Async;
use distlock_backend_kit::panics;
use distlock_core::sync::Mutex;
use tokio::sync::Notify;

/// The number of a group: the tasks of one client, which can be aborted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskGroup(u64);

impl TaskGroup {
    /// The group of tasks that run until they end or the thread stops.
    const NONE: Self = Self(0);
}

/// Runs the tasks of the client's connections.
pub(crate) struct IoThread {
    executor: Executor<'static>,
    // A blocking mutex is enough, because it is locked only for a moment and never across an await.
    tasks: Mutex<Vec<(TaskGroup, Task<()>)>>,
    /// The number of the newest group.
    groups: AtomicU64,
    stopped: Notify,
}

impl IoThread {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        // This call starts the only thread of async-io, which panics when the system gives no
        // thread. Catch that panic here, because inside of async-io's `block_on` it would abort the
        // process.
        panics::caught(Async::<UnixStream>::pair)
            .map_err(|_| io::Error::other("async-io has no thread"))??;
        let io_thread = Arc::new(Self {
            executor: Executor::new(),
            tasks: Mutex::default(),
            groups: AtomicU64::new(TaskGroup::NONE.0),
            stopped: Notify::new(),
        });
        let run_by_thread = Arc::clone(&io_thread);
        std::thread::Builder::new()
            .name("distlock-zk-io".into())
            .spawn(move || run_by_thread.run())?;
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

    /// Aborts the tasks of a group: their connections close, and nothing more is sent. The caller
    /// must first stop every task that waits for a watch of that client, because the client panics
    /// in such a task.
    pub(crate) fn abort_group(&self, group: TaskGroup) {
        self.tasks
            .lock()
            .retain(|(task_group, _)| *task_group != group);
    }

    /// Ends the thread and drops the tasks that still run on it.
    pub(crate) fn stop(&self) {
        self.stopped.notify_one();
    }

    /// Runs the tasks until the thread is stopped.
    fn run(&self) {
        async_io::block_on(self.executor.run(self.stopped.notified()));
        drop(std::mem::take(&mut *self.tasks.lock()));
        // A task that is dropped is scheduled once more, and that step frees its future.
        while self.executor.try_tick() {}
    }
}

/// Runs the tasks that the client spawns on the I/O thread.
struct Spawner(Arc<IoThread>, TaskGroup);

impl spawns_core::Spawn for Spawner {
    fn spawn(&self, task: spawns_core::Task) {
        let io_thread = Arc::clone(&self.0);
        let work = panics::catching(Box::into_pin(task.future));
        let running = self.0.executor.spawn(async move {
            // A panic ends only the task of one connection, and the requests on that connection
            // fail. The thread must continue for the other connections.
            let ended = io_thread.capture_spawns(TaskGroup::NONE, work).await;
            if ended.is_err() {
                tracing::error!("the task of a connection panicked");
            }
        });
        let mut tasks = self.0.tasks.lock();
        tasks.retain(|(_, task)| !task.is_finished());
        tasks.push((self.1, running));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc,
        task::Poll,
        thread::{self, ThreadId},
        time::Duration,
    };

    use futures_util::task::AtomicWaker;

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
    fn aborting_one_group_leaves_the_others() {
        let io_thread = IoThread::start().unwrap();
        let (_, steps) = spawn_stepping_task(&io_thread);
        let (waker, others) = spawn_stepping_task(&io_thread);
        steps.recv_timeout(LONG).unwrap();
        others.recv_timeout(LONG).unwrap();
        let first = io_thread.tasks.lock()[0].0;
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
