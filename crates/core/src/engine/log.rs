//! The log lines of the keeper thread. A separate thread writes them.
//!
//! A subscriber of the log may be slow, or may never return. The keeper must still renew leases
//! then. This module owns the queue of lines between the two threads. Invariant: a thread with a
//! queue never waits for the log. A line that finds the queue full is dropped and counted, and the
//! next line that fits reports the number.

use std::{
    cell::{Cell, OnceCell},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::mpsc::{self, SyncSender},
    thread,
};

use tokio::sync::oneshot;
use tracing::{Span, level_filters::LevelFilter};

/// The largest number of waiting lines, which take a few megabytes. Further lines are dropped and
/// counted.
const ROOM: usize = 4096;

type LogLine = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The queue of this thread, set only on a thread that must not wait for the log.
    static LOG_QUEUE: OnceCell<Rc<LogQueue>> = const { OnceCell::new() };
}

/// The queue of one thread. The end of the thread drops the queue. The writer thread then writes
/// the remaining lines and ends.
#[derive(Default)]
struct LogQueue {
    lines: OnceCell<SyncSender<LogLine>>,
    /// The number of lines that were dropped since the last line that fitted.
    missed: Cell<u64>,
}

/// From now on, a writer thread writes the lines of the calling thread. The first line starts the
/// writer thread.
pub(crate) fn queue_lines_of_this_thread() {
    LOG_QUEUE.with(|queue| drop(queue.set(Rc::default())));
}

/// Writes a line: through the queue of this thread, or at once on a thread without a queue.
pub fn write(line: impl FnOnce() + Send + 'static) {
    match log_queue() {
        Some(queue) => queue.push(line),
        None => line(),
    }
}

/// As [`write()`], for lines of the debug level. Such a line is dropped if no subscriber wants that
/// level.
pub fn debug(line: impl FnOnce() + Send + 'static) {
    if LevelFilter::current() >= LevelFilter::DEBUG {
        write(line);
    }
}

/// Resolves when all earlier lines of this thread are written, or at once when the queue is full.
pub(crate) async fn flushed() {
    let (done, written) = oneshot::channel::<()>();
    if let Some(queue) = log_queue().filter(|queue| queue.lines.get().is_some()) {
        queue.push(move || drop(done));
    } else {
        drop(done);
    }
    let _ = written.await;
}

/// The queue of this thread, if it has one. `None` also on a thread that is ending, where the
/// thread-local variable is gone: a lock that is released there must not panic.
fn log_queue() -> Option<Rc<LogQueue>> {
    LOG_QUEUE
        .try_with(|queue| queue.get().cloned())
        .ok()
        .flatten()
}

impl LogQueue {
    fn push(&self, line: impl FnOnce() + Send + 'static) {
        let lines = match self.lines.get() {
            Some(lines) => lines,
            None => match start() {
                Ok(lines) => self.lines.get_or_init(|| lines),
                Err(_) => return line(),
            },
        };
        let (span, missed) = (Span::current(), self.missed.get());
        let counted_line = move || {
            if missed > 0 {
                tracing::warn!(
                    missed,
                    "log lines were dropped: the subscriber of this program was too slow"
                );
            }
            span.in_scope(line);
        };
        self.missed
            .set(match lines.try_send(Box::new(counted_line)) {
                Ok(()) => 0,
                Err(_) => missed + 1,
            });
    }
}

fn start() -> io::Result<SyncSender<LogLine>> {
    let (lines, inbox) = mpsc::sync_channel::<LogLine>(ROOM);
    thread::Builder::new()
        .name("distlock-log".into())
        .spawn(move || {
            for line in inbox {
                // If the subscriber panics, only this line is lost, and the next lines are still
                // written.
                let _ = catch_unwind(AssertUnwindSafe(line));
            }
        })?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        time::Duration,
    };

    use distlock_harness::LogCapture;
    use tracing::{Level, subscriber::DefaultGuard};

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// Sends a message when its thread ends.
    struct ThreadEnded(mpsc::Sender<()>);

    impl Drop for ThreadEnded {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    thread_local! {
        static LEFT: OnceCell<ThreadEnded> = const { OnceCell::new() };
    }

    #[test]
    fn a_stalled_log_delays_no_thread_and_its_queue_is_bounded() {
        let (go_on, stall) = mpsc::channel::<()>();
        let (stalled, is_stalled) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let written = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&written);
        let speaker = thread::spawn(move || {
            queue_lines_of_this_thread();
            write(move || {
                LEFT.with(|left| drop(left.set(ThreadEnded(ended))));
                stalled.send(()).unwrap();
                let _ = stall.recv_timeout(SOON * 2);
                panic!("a subscriber that panics");
            });
            is_stalled.recv_timeout(SOON).unwrap();
            for _ in 0..ROOM + 7 {
                let count = Arc::clone(&count);
                write(move || {
                    count.fetch_add(1, SeqCst);
                });
            }
            log_queue().unwrap().missed.get()
        });
        // The writer thread hangs, but the sending thread has queued all its lines and has ended.
        assert_eq!(speaker.join().unwrap(), 7);
        assert_eq!(Arc::strong_count(&written), ROOM + 1);
        assert_eq!(written.load(SeqCst), 0);
        drop(go_on);
        has_ended.recv_timeout(SOON).unwrap();
        assert_eq!(written.load(SeqCst), ROOM);
    }

    thread_local! {
        static HEARD: OnceCell<DefaultGuard> = const { OnceCell::new() };
    }

    #[tokio::test]
    async fn the_number_of_dropped_lines_is_reported_before_the_next_line() {
        let (go_on, stall) = mpsc::channel::<()>();
        let (stalled, is_stalled) = mpsc::channel();
        let log = LogCapture::new(Level::TRACE);
        let heard = log.clone();
        queue_lines_of_this_thread();
        write(move || {
            HEARD.with(|here| drop(here.set(heard.watch())));
            stalled.send(()).unwrap();
            let _ = stall.recv_timeout(SOON);
        });
        is_stalled.recv_timeout(SOON).unwrap();
        let (last, is_last) = mpsc::channel();
        for nth in 1..=ROOM + 7 {
            let last = last.clone();
            write(move || last.send(nth).unwrap());
        }
        drop(go_on);
        while is_last.recv_timeout(SOON).unwrap() < ROOM {}
        assert_eq!(log.lines(), Vec::<String>::new());
        flushed().await;
        let heard = log.lines();
        assert!(
            heard.len() == 1 && heard[0].contains("missed=7 "),
            "{heard:?}"
        );
        flushed().await;
        assert_eq!(log.lines(), heard);
    }

    #[tokio::test]
    async fn debug_lines_without_a_subscriber_are_dropped() {
        let (wrote, written_for) = mpsc::channel();
        let say = |nth| {
            let wrote = wrote.clone();
            debug(move || wrote.send(nth).unwrap());
        };
        queue_lines_of_this_thread();
        say(1);
        // A subscriber of this thread also makes the global level filter accept debug lines,
        // although the writer is another thread.
        let watched = LogCapture::new(Level::DEBUG).watch();
        say(2);
        flushed().await;
        assert_eq!(written_for.try_iter().collect::<Vec<_>>(), [2]);
        drop(watched);
    }

    #[tokio::test]
    async fn flushed_waits_until_all_lines_are_written_in_order() {
        queue_lines_of_this_thread();
        flushed().await;
        let written = Arc::new(AtomicUsize::new(0));
        for nth in 0..100 {
            let written = Arc::clone(&written);
            write(move || assert_eq!(written.fetch_add(1, SeqCst), nth));
        }
        flushed().await;
        assert_eq!(written.load(SeqCst), 100);
    }
}
