//! The log lines of the keeper thread, which a thread of their own writes.
//!
//! A subscriber of the log may be slow, or may never return; leases are kept all the same. This
//! module owns the queue of lines. Invariant: a thread with a queue never waits for the log. Lines
//! without room in the queue are counted, and the next line that has room reports their number.

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

/// Number of lines that may wait, in a few megabytes. Further lines are only counted.
const ROOM: usize = 4096;

type LogLine = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Set on a thread that must not wait for the log.
    static LOG_QUEUE: OnceCell<Rc<LogQueue>> = const { OnceCell::new() };
}

/// The lines of one thread. It is dropped with the thread: the writer then writes the rest and
/// ends.
#[derive(Default)]
struct LogQueue {
    lines: OnceCell<SyncSender<LogLine>>,
    /// Lines that had no room since the last line that had room.
    missed: Cell<u64>,
}

/// From now on, another thread writes the lines of this one. The first line starts it.
pub(crate) fn queue_lines_of_this_thread() {
    LOG_QUEUE.with(|queue| drop(queue.set(Rc::default())));
}

/// Writes a line, at once or through the queue of this thread.
pub fn write(line: impl FnOnce() + Send + 'static) {
    match log_queue() {
        Some(queue) => queue.push(line),
        None => line(),
    }
}

/// As [`write()`], for lines of the debug level. Without a subscriber for them, they take no room.
pub fn debug(line: impl FnOnce() + Send + 'static) {
    if LevelFilter::current() >= LevelFilter::DEBUG {
        write(line);
    }
}

/// Resolves once all lines of this thread are written, or when the queue has no room.
pub(crate) async fn flushed() {
    let (done, written) = oneshot::channel::<()>();
    if let Some(queue) = log_queue().filter(|queue| queue.lines.get().is_some()) {
        queue.push(move || drop(done));
    } else {
        drop(done);
    }
    let _ = written.await;
}

/// The queue of this thread. `None` also on a thread that is ending: a lock that is released there
/// must not panic.
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
                tracing::warn!(missed, "the log was not taken, and lines had no room");
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
                // A subscriber that panics loses its line, and not the lines after it.
                let _ = catch_unwind(AssertUnwindSafe(line));
            }
        })?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use std::{
        fmt::Debug,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        time::Duration,
    };

    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span::{Attributes, Id, Record},
        subscriber::{self, DefaultGuard},
    };

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
    fn a_log_that_stalls_delays_no_thread_and_takes_no_more_memory() {
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
        // Lines that are not written do not delay the thread that sent them, nor its end.
        assert_eq!(speaker.join().unwrap(), 7);
        assert_eq!(Arc::strong_count(&written), ROOM + 1);
        assert_eq!(written.load(SeqCst), 0);
        drop(go_on);
        has_ended.recv_timeout(SOON).unwrap();
        assert_eq!(written.load(SeqCst), ROOM);
    }

    /// Receives the number of lines that had no room.
    struct Missed(mpsc::Sender<u64>);

    impl Visit for &Missed {
        fn record_u64(&mut self, field: &Field, value: u64) {
            assert_eq!(field.name(), "missed");
            self.0.send(value).unwrap();
        }

        fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
    }

    impl Subscriber for Missed {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn event(&self, event: &Event<'_>) {
            event.record(&mut &*self);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    thread_local! {
        static HEARD: OnceCell<DefaultGuard> = const { OnceCell::new() };
    }

    #[tokio::test]
    async fn lines_without_room_are_counted_before_the_next_line() {
        let (go_on, stall) = mpsc::channel::<()>();
        let (stalled, is_stalled) = mpsc::channel();
        let (missed, heard) = mpsc::channel();
        queue_lines_of_this_thread();
        write(move || {
            HEARD.with(|here| drop(here.set(subscriber::set_default(Missed(missed)))));
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
        assert!(heard.try_recv().is_err());
        flushed().await;
        assert_eq!(heard.try_recv(), Ok(7));
        flushed().await;
        assert!(heard.try_recv().is_err());
    }

    #[tokio::test]
    async fn debug_lines_without_a_subscriber_are_left_out() {
        let (wrote, written_for) = mpsc::channel();
        let say = |nth| {
            let wrote = wrote.clone();
            debug(move || wrote.send(nth).unwrap());
        };
        queue_lines_of_this_thread();
        say(1);
        // For the whole process, because the writer is another thread.
        let heard = subscriber::set_default(Missed(mpsc::channel().0));
        say(2);
        flushed().await;
        assert_eq!(written_for.try_iter().collect::<Vec<_>>(), [2]);
        drop(heard);
    }

    #[tokio::test]
    async fn lines_keep_their_order_and_are_waited_for() {
        queue_lines_of_this_thread();
        flushed().await;
        let told = Arc::new(AtomicUsize::new(0));
        for nth in 0..100 {
            let told = Arc::clone(&told);
            write(move || assert_eq!(told.fetch_add(1, SeqCst), nth));
        }
        flushed().await;
        assert_eq!(told.load(SeqCst), 100);
    }
}
