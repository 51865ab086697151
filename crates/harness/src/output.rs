//! Reads the output of a child line by line while the child runs.
//!
//! Invariant: a line that was written before the child ended is among the lines as soon as the
//! reader says that it is up to date.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, ioctl_fionread, read},
};

/// The lines of all streams of a child, in the order of arrival.
pub(crate) type Lines = Arc<Mutex<Vec<String>>>;

/// One stream of a child. A thread reads it until no process can write to it any more.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: Arc<OwnedFd>,
    /// Set while the thread holds no bytes that it has read and not yet added to the lines.
    idle: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reader {
    pub(crate) fn start(stream: impl Into<OwnedFd>, lines: &Lines) -> Self {
        let stream = Arc::new(stream.into());
        let idle = Arc::new(AtomicBool::new(true));
        let thread = thread::spawn({
            let (stream, idle, lines) = (Arc::clone(&stream), Arc::clone(&idle), Arc::clone(lines));
            move || read_lines(&stream, &idle, &lines)
        });
        Self {
            stream,
            idle,
            thread,
        }
    }

    /// Whether every line that was written before this call is among the lines. Another process may
    /// still have the stream and write more.
    pub(crate) fn is_up_to_date(&self) -> bool {
        // The order matters: bytes that are no longer in the stream were read while the thread was
        // not idle, so an empty stream must be seen before the idle thread.
        let is_empty = ioctl_fionread(&self.stream).is_ok_and(|waiting| waiting == 0);
        self.thread.is_finished()
            || (is_empty && self.idle.load(Ordering::SeqCst) && !self.has_hung_up())
    }

    /// Whether no process can write to the stream any more. The thread is then about to finish, and
    /// may add a last line without a newline.
    fn has_hung_up(&self) -> bool {
        let mut stream = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut stream, Some(&rustix::event::Timespec::default())).is_ok()
            && stream[0].revents().contains(PollFlags::HUP)
    }
}

fn read_lines(stream: &OwnedFd, idle: &AtomicBool, lines: &Lines) {
    let mut partial = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        // `poll` takes no bytes out of the stream.
        let waited = poll(&mut [PollFd::new(stream, PollFlags::IN)], None);
        idle.store(false, Ordering::SeqCst);
        match waited.and_then(|_| read(stream, &mut buffer)) {
            Ok(0) => break,
            Ok(length) => partial.extend_from_slice(&buffer[..length]),
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
        while let Some(end) = partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = partial.drain(..=end).collect();
            push_line(lines, &line[..end]);
        }
        idle.store(true, Ordering::SeqCst);
    }
    if !partial.is_empty() {
        push_line(lines, &partial);
    }
}

fn push_line(lines: &Lines, line: &[u8]) {
    let line = String::from_utf8_lossy(line).into_owned();
    lines
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(line);
}
