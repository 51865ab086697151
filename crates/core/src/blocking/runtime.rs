//! The thread behind the blocking API, and the wait of a caller for a future.
//!
//! This module owns the thread with the runtime that serves connections and timers, and the loop
//! that drives a future on the caller's thread. Invariant: no call blocks a thread that runs the
//! tasks of a tokio runtime, and no call panics there.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot, task::coop};

use crate::{
    client::watch::{Ended, LockWatch},
    clock::Clock,
    contract::LossReason,
    engine::{bounded::at_most, threads},
    sync::Mutex,
    types::error::{Error, ErrorKind, Result},
};

/// The longest time that the drop of a guard blocks its thread. A store that answers needs a few
/// milliseconds; while it does not answer, the background repeats the release anyway.
const DROP: Duration = Duration::from_secs(1);

/// More than the number of steps that tokio lets a task take in one poll. Tokio keeps the number in
/// a `u8`.
const MORE_THAN_A_BUDGET: usize = 256;

/// The thread that serves the connections and timers of a store for blocking callers. A clone is
/// cheap, and the thread ends with the last clone: each value of the blocking API has one.
#[derive(Clone)]
pub struct Runtime {
    handle: Handle,
    /// The drop of the last clone ends the thread. Nothing is ever sent.
    _stop: Arc<oneshot::Sender<Infallible>>,
}

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] in async code; [`ErrorKind::LimitExceeded`] when the system
    /// refuses a thread.
    pub fn start() -> Result<Self> {
        check_blocking_allowed()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| {
                let problem = "no runtime for the blocking API";
                Error::new(ErrorKind::LimitExceeded, problem)
                    .passing()
                    .caused_by(error)
            })?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new()
            .name("distlock-blocking".into())
            .spawn(move || {
                let _ = runtime.block_on(stopped);
                // A driver's look-up of a host name can hang, and nobody waits for it any more.
                runtime.shutdown_background();
            })
            .map_err(threads::no_thread)?;
        Ok(Self {
            handle,
            _stop: Arc::new(stop),
        })
    }

    /// Blocks this thread until a call of the async API has its answer.
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// let locker = distlock::blocking::connect("memory:")?;
    /// let health = locker.runtime().wait_for(locker.as_async().health())?;
    /// # let _ = health; locker.close() }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] in async code, and the error of the call.
    pub fn wait_for<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        check_blocking_allowed()?;
        self.drive(call)
    }

    /// Calls `callback` when the lock of this watch is lost, at most 250 ms after its deadline; at
    /// once for a lock that is lost already. The callback runs on a thread of its own, so it may
    /// block. It is dropped uncalled when the lock is released, or when the last value of the
    /// blocking API of this store is dropped.
    pub fn on_lost(&self, watch: &LockWatch, callback: impl FnOnce(LossReason) + Send + 'static) {
        let watch = watch.clone();
        self.handle.spawn(async move {
            let Ended::Lost(reason) = watch.ended().await else {
                return;
            };
            let callback = Arc::new(Mutex::new(Some(callback)));
            let on_thread = Arc::clone(&callback);
            let called = threads::blocking(move || {
                let callback = on_thread.lock().take();
                if let Some(callback) = callback {
                    callback(reason);
                }
            });
            let _ = called.await;
            // The system refused the thread. A callback that delays this thread is better than a
            // loss that nobody hears of.
            let uncalled = callback.lock().take();
            if let Some(callback) = uncalled {
                callback(reason);
            }
        });
    }

    /// Waits for the release of a guard that is dropped, for [`DROP`] at most. The rest of the
    /// release then happens in the background, and in async code all of it.
    pub(super) fn release_in_drop<T>(&self, clock: &dyn Clock, release: impl Future<Output = T>) {
        // A guard in a thread-local variable is dropped when its thread ends. Tokio's own variables
        // may be gone by then, and `drive` would panic.
        let thread_ends = Handle::try_current().is_err_and(|it| it.is_thread_local_destroyed());
        if !thread_ends && check_blocking_allowed().is_ok() {
            self.drive(at_most(clock, DROP, release));
        }
    }

    /// Polls the future on this thread, within the context of the runtime, until it is ready.
    ///
    /// Tokio's own `block_on` is not used, because it panics where this module answers with an
    /// error, and where it does not recognise async code.
    fn drive<T>(&self, future: impl Future<Output = T>) -> T {
        let _context = self.handle.enter();
        let parked = Arc::new(Parked {
            thread: thread::current(),
            woken: AtomicBool::new(false),
        });
        let waker = Waker::from(Arc::clone(&parked));
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return value;
            }
            while !parked.woken.swap(false, Ordering::Acquire) {
                thread::park();
            }
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runtime")
    }
}

/// A thread that waits for one future.
struct Parked {
    thread: Thread,
    /// Each wait has its own flag: the work of one call may make another call on the same thread,
    /// whose loop consumes the `unpark` that was meant for the first one.
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The error of a blocking call in async code.
fn check_blocking_allowed() -> Result<()> {
    if in_async_code() {
        let problem = "a blocking call in async code, where it would stop other tasks: use the \
                       async API there, or make the call in `tokio::task::spawn_blocking`";
        return Err(Error::new(ErrorKind::InvalidArgument, problem));
    }
    Ok(())
}

/// Whether this thread polls a task of a tokio runtime. The threads of `spawn_blocking` belong to a
/// runtime too, and may block. Tokio shows one difference without a panic: a poll of a task, or of
/// the future of a `block_on`, has a budget of steps, and blocking code has none.
fn in_async_code() -> bool {
    if Handle::try_current().is_err() {
        return false;
    }
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(whole_budget) = coop::poll_proceed(&mut context) else {
        return true;
    };
    let spent = (0..MORE_THAN_A_BUDGET).any(|_| match coop::poll_proceed(&mut context) {
        Poll::Ready(step) => {
            step.made_progress();
            false
        }
        Poll::Pending => true,
    });
    // This drop gives the task the steps back that the loop has taken.
    drop(whole_budget);
    spent
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn},
        sync::mpsc::{RecvTimeoutError, channel},
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_thread_ends_with_the_last_value() {
        let runtime = Runtime::start().unwrap();
        let (lives, ends) = channel::<()>();
        runtime.handle.spawn(async move {
            let _lives = lives;
            pending::<()>().await;
        });
        let second = runtime.clone();
        drop(runtime);
        assert_eq!(second.drive(async { 7 }), 7);
        drop(second);
        // The runtime drops its tasks when its thread ends.
        assert_eq!(ends.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_call_in_the_work_of_another_call_loses_no_wake_of_it() {
        let (done, finished) = channel();
        thread::spawn(move || {
            let runtime = Runtime::start().unwrap();
            let mut polls = 0;
            let outer = poll_fn(|context| {
                polls += 1;
                if polls > 1 {
                    return Poll::Ready(());
                }
                let (answer, answered) = oneshot::channel();
                let outer_waker = context.waker().clone();
                thread::spawn(move || {
                    outer_waker.wake();
                    answer.send(()).unwrap();
                });
                runtime.drive(answered).unwrap();
                Poll::Pending
            });
            runtime.drive(outer);
            done.send(()).unwrap();
        });
        finished.recv_timeout(LONG).unwrap();
    }

    #[tokio::test]
    async fn the_check_leaves_a_task_its_steps() {
        let steps = || {
            let mut context = Context::from_waker(Waker::noop());
            let mut held = Vec::new();
            while let Poll::Ready(step) = coop::poll_proceed(&mut context) {
                held.push(step);
            }
            let steps = held.len();
            // Each one gives back what was left before it.
            while held.pop().is_some() {}
            steps
        };
        let before = steps();
        assert!(in_async_code());
        assert_eq!(steps(), before);
        assert!(before > 0 && before < MORE_THAN_A_BUDGET);
    }
}
