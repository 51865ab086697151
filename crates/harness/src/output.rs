//! What a child writes, taken in line by line while it runs.

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

/// Lines of all streams of a child, in the order of arrival.
pub(crate) type Lines = Arc<Mutex<Vec<String>>>;

/// One stream of a child, read by a thread until everybody who could write there is gone.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: Arc<OwnedFd>,
    /// The thread has nothing in its hands that was taken out of the stream and is not among the lines.
    idle: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reader {
    pub(crate) fn start(stream: impl Into<OwnedFd>, lines: &Lines) -> Self {
        let stream = Arc::new(stream.into());
        let idle = Arc::new(AtomicBool::new(true));
        let thread = thread::spawn({
            let (stream, idle, lines) = (Arc::clone(&stream), Arc::clone(&idle), Arc::clone(lines));
            move || collect(&stream, &idle, &lines)
        });
        Self {
            stream,
            idle,
            thread,
        }
    }

    /// Whether every line that was written before is among the lines. Somebody else may still have the stream, and write more.
    pub(crate) fn is_up_to_date(&self) -> bool {
        // In this order: what is not in the stream any more was taken out while the thread was not idle.
        let is_empty = ioctl_fionread(&self.stream).is_ok_and(|waiting| waiting == 0);
        self.thread.is_finished() || (is_empty && self.idle.load(Ordering::SeqCst) && !self.ends())
    }

    /// Nobody can write there any more, so the thread is about to finish, and to give a last line without its end.
    fn ends(&self) -> bool {
        let mut stream = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut stream, Some(&rustix::event::Timespec::default())).is_ok()
            && stream[0].revents().contains(PollFlags::HUP)
    }
}

fn collect(stream: &OwnedFd, idle: &AtomicBool, lines: &Lines) {
    let mut partial = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        // Takes nothing out of the stream.
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
            push(lines, &line[..end]);
        }
        idle.store(true, Ordering::SeqCst);
    }
    if !partial.is_empty() {
        push(lines, &partial);
    }
}

fn push(lines: &Lines, line: &[u8]) {
    let line = String::from_utf8_lossy(line).into_owned();
    lines
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(line);
}
