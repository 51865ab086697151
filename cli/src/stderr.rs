//! Standard error, written by one thread, so that no caller waits for a slow reader: a pager that
//! nobody scrolls must hold up neither a renewal nor the end of a command that lost its lock.
//!
//! Lines that do not fit into the buffer are left out. Their number is printed in their place.

use std::{
    io::{self, Write},
    mem,
    sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Bytes that may wait to be written: thousands of lines, and little memory.
const ROOM: usize = 1 << 20;

/// The longest wait for earlier lines to be written; only a reader that stands still makes it last
/// that long.
const MOMENT: Duration = Duration::from_millis(200);

/// Time at the end of the process for the last lines to be written.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// `None` where the system has no thread for it.
static WRITER: LazyLock<Option<Arc<Lines>>> = LazyLock::new(|| Lines::to(io::stderr()).ok());

/// Queues whole lines, or drops them when too many wait already.
pub(crate) fn say(lines: &str) {
    match &*WRITER {
        Some(writer) => writer.say(lines),
        None => directly(lines),
    }
}

/// Queues lines that are too important to be dropped.
pub(crate) fn insist(lines: &str) {
    match &*WRITER {
        Some(writer) => writer.insist(lines),
        None => directly(lines),
    }
}

/// Waits a moment until all queued lines are written, so that the caller's next output follows
/// them. After one vain wait it waits no more until somebody reads again.
pub(crate) fn catch_up() {
    if let Some(writer) = &*WRITER {
        writer.catch_up(MOMENT);
    }
}

/// The same at the end of the process, which can afford a longer wait.
pub(crate) fn finish() {
    if let Some(writer) = &*WRITER {
        writer.wait(LAST_WORDS);
    }
}

/// Writes at once. A standard error that cannot be written to must not end a command.
fn directly(lines: &str) {
    let _ = io::stderr().write_all(lines.as_bytes());
}

/// Log lines, one per write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        say(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines that wait for the writer.
#[derive(Debug, Default)]
struct Lines {
    state: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: String,
    /// The number of lines that did not fit after those.
    left_out: usize,
    /// Whether the writer is writing lines now.
    writing: bool,
    /// Whether a wait was in vain, and the reader has read nothing since.
    stalled: bool,
}

impl Lines {
    /// Starts the writer's thread.
    fn to(mut out: impl Write + Send + 'static) -> io::Result<Arc<Self>> {
        let lines = Arc::new(Self::default());
        let written = Arc::clone(&lines);
        thread::Builder::new()
            .name("stderr".to_owned())
            .spawn(move || {
                loop {
                    // One write per line, so that another program's output comes between lines.
                    for line in written.next().split_inclusive('\n') {
                        // The reader may go away, and then nobody can be told.
                        let _ = out.write_all(line.as_bytes());
                    }
                    written.done();
                }
            })?;
        Ok(lines)
    }

    fn say(&self, lines: &str) {
        let mut state = self.state();
        if state.waiting.len() + lines.len() > ROOM || state.left_out > 0 {
            state.left_out += lines.lines().count();
        } else {
            state.waiting += lines;
        }
        self.changed.notify_all();
    }

    fn insist(&self, lines: &str) {
        let mut state = self.state();
        state.tell_left_out();
        state.waiting += lines;
        self.changed.notify_all();
    }

    /// Waits for lines and takes all of them.
    fn next(&self) -> String {
        let state = self.state();
        let mut state = self
            .changed
            .wait_while(state, |state| !state.has_more())
            .unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        state.tell_left_out();
        mem::take(&mut state.waiting)
    }

    fn done(&self) {
        let mut state = self.state();
        state.writing = false;
        state.stalled = false;
        self.changed.notify_all();
    }

    fn catch_up(&self, at_most: Duration) {
        if !self.state().stalled {
            self.wait(at_most);
        }
    }

    /// Waits until all lines are written, and records a stall if the time is too short for that.
    /// During a stall [`catch_up`](Self::catch_up) returns at once. The next finished write ends
    /// the stall.
    fn wait(&self, at_most: Duration) {
        let state = self.state();
        let (mut state, waited) = self
            .changed
            .wait_timeout_while(state, at_most, |state| state.writing || state.has_more())
            .unwrap_or_else(PoisonError::into_inner);
        state.stalled = waited.timed_out();
    }

    fn state(&self) -> MutexGuard<'_, Queue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn has_more(&self) -> bool {
        !self.waiting.is_empty() || self.left_out > 0
    }

    /// Queues a line with the number of dropped lines.
    fn tell_left_out(&mut self) {
        let lines = mem::take(&mut self.left_out);
        if lines > 0 {
            self.waiting += &format!(
                "distlock: warning: standard error was not read in time, lines left out here: \
                {lines}\n"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Reads nothing while the other end of `stalled` exists.
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

    fn stalled() -> (Arc<Lines>, Sender<()>, Receiver<String>) {
        let (release, stalled) = channel();
        let (read, heard) = channel();
        let lines = Lines::to(Reader { stalled, read }).unwrap();
        (lines, release, heard)
    }

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read_and_what_it_missed_is_counted() {
        let (lines, release, heard) = stalled();
        let long = "x".repeat(ROOM / 4) + "\n";
        // The writer has one line, three wait, the others do not fit.
        lines.say("first\n");
        while !lines.state().writing {
            thread::yield_now();
        }
        for _ in 0..5 {
            lines.say(&long);
        }
        lines.say("short, and no sooner than what was left out\n");
        lines.insist("last words\n");
        // This wait is in vain, and the only one.
        lines.catch_up(Duration::from_millis(1));
        lines.catch_up(SOON * 1000);
        drop(release);
        lines.wait(SOON);
        let heard: Vec<_> = heard.try_iter().collect();
        assert_eq!(heard.len(), 6, "{:?}", heard.iter().map(String::len));
        assert_eq!(heard[0], "first\n");
        assert!(heard[1..4].iter().all(|line| *line == long));
        assert!(heard[4].contains("lines left out here: 3"));
        assert_eq!(heard[5], "last words\n");
    }

    #[test]
    fn what_was_left_out_is_told_once_and_then_everything_is_said_again() {
        let (lines, release, heard) = stalled();
        lines.say("first\n");
        drop(release);
        lines.wait(SOON);
        // This line could never fit.
        lines.say(&"x".repeat(ROOM + 1));
        lines.wait(SOON);
        lines.say("again\n");
        lines.wait(SOON);
        let heard: Vec<_> = heard.try_iter().collect();
        assert!(heard[1].contains("lines left out here: 1"), "{heard:?}");
        assert_eq!((&*heard[0], &*heard[2]), ("first\n", "again\n"));
    }

    #[test]
    fn lines_come_in_order_and_whoever_waits_finds_them_written() {
        let (lines, release, heard) = stalled();
        drop(release);
        for number in 0..1000 {
            lines.say(&format!("{number}\n"));
            lines.catch_up(SOON);
            assert_eq!(heard.try_recv(), Ok(format!("{number}\n")));
        }
    }
}
