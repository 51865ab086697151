//! Writes standard error from one thread, so that no caller waits for a slow reader. A pager that
//! nobody scrolls must not delay a renewal, and must not delay the end of a command that lost its
//! lock.
//!
//! Lines that do not fit into the queue are dropped. Their number is printed in their place.

use std::{
    io::{self, Write},
    mem,
    sync::{Arc, Condvar, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use distlock::backend::sync::Mutex;

/// The most bytes that wait to be written: room for thousands of lines.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// The longest wait until earlier lines are written. Only a stalled reader makes the wait that
/// long.
const CATCH_UP_LIMIT: Duration = Duration::from_millis(200);

/// The longest wait for the last lines at the end of the process.
const FINISH_LIMIT: Duration = Duration::from_secs(2);

/// The queue and its writer thread, from the first line on; `None` where the system refused the
/// thread.
static WRITER: OnceLock<Option<Arc<LineQueue>>> = OnceLock::new();

/// The queue and its writer thread. Starts the thread if this is the first line.
fn writer() -> Option<&'static Arc<LineQueue>> {
    let started = WRITER.get_or_init(|| LineQueue::start_writer(io::stderr()).ok());
    started.as_ref()
}

/// The name that messages begin with. The first message sets the name of the tool, unless
/// [`set_program`] has set another name before.
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Sets the name that messages begin with. A second call changes nothing.
pub fn set_program(name: &'static str) {
    let _ = PROGRAM.set(name);
}

/// The name that messages begin with.
pub(crate) fn program() -> &'static str {
    PROGRAM.get_or_init(|| "distlock")
}

/// Queues whole lines, or drops them when too many wait already.
pub(crate) fn queue_or_drop(lines: &str) {
    match writer() {
        Some(writer) => writer.queue_or_drop(lines),
        None => write_directly(lines),
    }
}

/// Queues lines that are too important to be dropped.
pub(crate) fn queue_always(lines: &str) {
    match writer() {
        Some(writer) => writer.queue_always(lines),
        None => write_directly(lines),
    }
}

/// Waits a moment until all queued lines are written, so that the next output of the caller follows
/// these lines. After a time-out, the next calls return at once until the writer finishes a write.
pub(crate) fn catch_up() {
    if let Some(Some(writer)) = WRITER.get() {
        writer.catch_up(CATCH_UP_LIMIT);
    }
}

/// Waits until all queued lines are written, at the end of the process.
pub(crate) fn write_rest() {
    if let Some(Some(writer)) = WRITER.get() {
        writer.wait_until_written(FINISH_LIMIT);
    }
}

/// Writes without the queue. An error is ignored: a standard error that cannot be written must not
/// end a command.
fn write_directly(lines: &str) {
    let _ = io::stderr().write_all(lines.as_bytes());
}

/// The writer of log lines. It queues each line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        queue_or_drop(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that wait for the writer thread.
#[derive(Debug, Default)]
struct LineQueue {
    state: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: String,
    /// The number of dropped lines. A line with this number follows the queued lines.
    left_out: usize,
    /// Whether the writer is writing lines now.
    writing: bool,
    /// Whether a wait timed out, and the writer has finished no write since.
    stalled: bool,
}

impl LineQueue {
    /// Starts a thread that writes queued lines to `out`.
    fn start_writer(mut out: impl Write + Send + 'static) -> io::Result<Arc<Self>> {
        let lines = Arc::new(Self::default());
        let written = Arc::clone(&lines);
        thread::Builder::new()
            .name("stderr".to_owned())
            .spawn(move || {
                loop {
                    // Each line is a write of its own, so that output of another program comes
                    // between lines and not into one.
                    for line in written.take_queued().split_inclusive('\n') {
                        // An error is ignored: the reader has ended, and there is no other place
                        // for a message.
                        let _ = out.write_all(line.as_bytes());
                    }
                    written.finish_write();
                }
            })?;
        Ok(lines)
    }

    fn queue_or_drop(&self, lines: &str) {
        let mut state = self.state.lock();
        if state.waiting.len() + lines.len() > MAX_QUEUED_BYTES || state.left_out > 0 {
            state.left_out += lines.lines().count();
        } else {
            state.waiting += lines;
        }
        self.changed.notify_all();
    }

    fn queue_always(&self, lines: &str) {
        let mut state = self.state.lock();
        state.queue_left_out_count();
        state.waiting += lines;
        self.changed.notify_all();
    }

    /// Waits for lines and takes all of them.
    fn take_queued(&self) -> String {
        let state = self.state.lock();
        let mut state = self
            .changed
            .wait_while(state, |state| !state.has_more())
            .unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        state.queue_left_out_count();
        mem::take(&mut state.waiting)
    }

    /// Records that the writer has written all lines that it took.
    fn finish_write(&self) {
        let mut state = self.state.lock();
        state.writing = false;
        state.stalled = false;
        self.changed.notify_all();
    }

    fn catch_up(&self, at_most: Duration) {
        if !self.state.lock().stalled {
            self.wait_until_written(at_most);
        }
    }

    /// Waits until all lines are written. If that takes longer than `at_most`, the reader counts as
    /// stalled, and [`catch_up`](Self::catch_up) returns at once. The next finished write ends the
    /// stall.
    fn wait_until_written(&self, at_most: Duration) {
        let state = self.state.lock();
        let (mut state, waited) = self
            .changed
            .wait_timeout_while(state, at_most, |state| state.writing || state.has_more())
            .unwrap_or_else(PoisonError::into_inner);
        state.stalled = waited.timed_out();
    }
}

impl Queue {
    /// Whether the writer has something to write.
    fn has_more(&self) -> bool {
        !self.waiting.is_empty() || self.left_out > 0
    }

    /// Queues a line with the number of dropped lines, if there are any.
    fn queue_left_out_count(&mut self) {
        let lines = mem::take(&mut self.left_out);
        if lines > 0 {
            self.waiting += &format!(
                "{}: warning: standard error was not read in time, lines left out here: {lines}\n",
                program()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A writer that blocks, as a stalled reader does, while the other end of `stalled` exists.
    struct Reader {
        stalled: Receiver<()>,
        read: Sender<String>,
    }

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.stalled.recv();
            let _ = self.read.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn stalled() -> (Arc<LineQueue>, Sender<()>, Receiver<String>) {
        let (release, stalled) = channel();
        let (read, heard) = channel();
        let lines = LineQueue::start_writer(Reader { stalled, read }).unwrap();
        (lines, release, heard)
    }

    #[test]
    fn no_caller_waits_for_a_stalled_reader_and_dropped_lines_are_counted() {
        let (lines, release, heard) = stalled();
        let long = "x".repeat(MAX_QUEUED_BYTES / 4) + "\n";
        // The writer has taken one line. Three long lines fit into the queue, and the others do
        // not.
        lines.queue_or_drop("first\n");
        while !lines.state.lock().writing {
            thread::yield_now();
        }
        for _ in 0..5 {
            lines.queue_or_drop(&long);
        }
        lines.queue_or_drop("short, and no sooner than what was left out\n");
        lines.queue_always("last words\n");
        // Only the first of these waits takes time: it finds the reader stalled.
        lines.catch_up(Duration::from_millis(1));
        lines.catch_up(LIMIT * 1000);
        drop(release);
        lines.wait_until_written(LIMIT);
        let heard: Vec<_> = heard.try_iter().collect();
        assert_eq!(heard.len(), 6, "{:?}", heard.iter().map(String::len));
        assert_eq!(heard[0], "first\n");
        assert!(heard[1..4].iter().all(|line| *line == long));
        assert!(heard[4].contains("lines left out here: 3"));
        assert_eq!(heard[5], "last words\n");
    }

    #[test]
    fn dropped_lines_are_reported_once_and_later_lines_are_written() {
        let (lines, release, heard) = stalled();
        lines.queue_or_drop("first\n");
        drop(release);
        lines.wait_until_written(LIMIT);
        // This line is longer than the queue.
        lines.queue_or_drop(&"x".repeat(MAX_QUEUED_BYTES + 1));
        lines.wait_until_written(LIMIT);
        lines.queue_or_drop("again\n");
        lines.wait_until_written(LIMIT);
        let heard: Vec<_> = heard.try_iter().collect();
        assert!(heard[1].contains("lines left out here: 1"), "{heard:?}");
        assert_eq!((&*heard[0], &*heard[2]), ("first\n", "again\n"));
    }

    #[test]
    fn lines_are_written_in_order_and_a_wait_ends_after_them() {
        let (lines, release, heard) = stalled();
        drop(release);
        for number in 0..1000 {
            lines.queue_or_drop(&format!("{number}\n"));
            lines.catch_up(LIMIT);
            assert_eq!(heard.try_recv(), Ok(format!("{number}\n")));
        }
    }
}
