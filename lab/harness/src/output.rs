//! Reads the output of a child line by line while the child runs.
//!
//! Invariant: when `Reader::is_up_to_date` returns true, each line that was written before the call
//! is in `Lines`.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use distlock_core::sync::Mutex;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, ioctl_fionread, read},
};

/// The lines of all streams of a child, in the order of arrival.
pub(crate) type Lines = Arc<Mutex<Vec<String>>>;

/// One stream of a child. A thread reads the stream until no process can write to the stream.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: Arc<OwnedFd>,
    /// Whether each complete line that the thread has read is in `Lines`.
    idle: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reader {
    /// Starts the thread that adds the stream's lines to `lines`.
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

    /// Tells whether every line that was written before this call is in `Lines`. Another process
    /// may still have the stream open and write more lines.
    pub(crate) fn is_up_to_date(&self) -> bool {
        // The stream must be checked before the thread. The thread is not idle while it takes bytes
        // out of the stream. If the stream is empty first and the thread is idle later, the bytes
        // are in `Lines`.
        let is_empty = ioctl_fionread(&self.stream).is_ok_and(|waiting| waiting == 0);
        self.thread.is_finished()
            || (is_empty && self.idle.load(Ordering::SeqCst) && !self.has_hung_up())
    }

    /// Tells whether no process can write to the stream any longer. The thread then ends soon.
    /// Before its end the thread may add a last line without a newline.
    fn has_hung_up(&self) -> bool {
        let mut stream = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut stream, Some(&rustix::event::Timespec::default())).is_ok()
            && stream[0].revents().contains(PollFlags::HUP)
    }
}

/// Reads the stream to its end, and adds its lines.
fn read_lines(stream: &OwnedFd, idle: &AtomicBool, lines: &Lines) {
    let mut partial = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        // `poll` waits for bytes and takes none out of the stream. So the thread is idle until
        // `poll` returns.
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
    lines.lock().push(line);
}
