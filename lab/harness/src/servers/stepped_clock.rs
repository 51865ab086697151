//! A separate clock for one server, which can be stepped forward while the server runs.
//!
//! The clock is Debian's `libfaketime`, loaded into the server. The server's wall clock is the
//! machine's wall clock plus an offset, and its monotonic clock is the machine's. `libfaketime`
//! does not work with programs that use `jemalloc`, because `jemalloc` asks for the time before
//! `libfaketime` is ready. So Debian's `redis-server` hangs with `libfaketime`.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::{eventually, servers::isolation::RunAs};

/// Time-out for the server to see a step.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// The stepped clock of one server.
#[derive(Debug)]
pub(super) struct SteppedClock {
    library: PathBuf,
    user: RunAs,
    /// The file with the clock's offset.
    file: PathBuf,
    /// The clock's offset.
    ahead: Mutex<Duration>,
    /// The processes that have used the clock.
    used_by: Mutex<Vec<u32>>,
}

impl SteppedClock {
    /// Makes a clock that shows the machine's time until its first step. The file of the clock is
    /// in `folder`, which belongs to `user`.
    pub(super) fn new(user: RunAs, folder: &Path) -> Result<Self> {
        let clock = Self {
            library: find_library()?,
            user,
            file: folder.join("clock"),
            ahead: Mutex::default(),
            used_by: Mutex::default(),
        };
        clock.write_offset(Duration::ZERO)?;
        Ok(clock)
    }

    /// Returns the environment variables that make a process use this clock.
    pub(super) fn environment(&self) -> [(&'static str, &Path); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("FAKETIME_TIMESTAMP_FILE", &self.file),
            // Without a cache, all processes of a server see a step at once, because each reading
            // of the clock reads the file. With a cache, the clocks of the processes would differ
            // for a while.
            ("FAKETIME_NO_CACHE", Path::new("1")),
            ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
        ]
    }

    /// Records a process that uses this clock. The library leaves the shared memory of a killed
    /// process. When the clock is dropped, the shared memory of all recorded processes is removed.
    pub(super) fn note_process(&self, process: u32) {
        let mut used_by = self.used_by.lock().unwrap_or_else(PoisonError::into_inner);
        used_by.push(process);
    }

    /// Steps the clock forward, and waits until the server has seen the step. `now` asks the server
    /// for its time, in seconds.
    pub(super) fn step_forward(&self, by: Duration, now: impl Fn() -> Result<f64>) -> Result<()> {
        let (before, asked) = (now()?, Instant::now());
        let ahead = {
            let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
            *ahead += by;
            *ahead
        };
        self.write_offset(ahead)?;
        eventually("the server sees its clock", STEP_LIMIT, || {
            let passed = asked.elapsed() + by / 2;
            now().is_ok_and(|now| now > before + passed.as_secs_f64())
        })
    }

    /// Writes the clock's offset to its file.
    fn write_offset(&self, ahead: Duration) -> Result<()> {
        // A new file is written and then renamed. Otherwise the server could read a half-written
        // file.
        let new = self.file.with_extension("new");
        let offset = format!("+{}.{:06}\n", ahead.as_secs(), ahead.subsec_micros());
        self.user.write_private_file(&new, offset)?;
        Ok(fs::rename(new, &self.file)?)
    }
}

impl Drop for SteppedClock {
    fn drop(&mut self) {
        let used_by = self
            .used_by
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for process in used_by {
            for kind in ["faketime_shm", "sem.faketime_sem"] {
                // A process that ended by itself has removed its own files.
                let _ = fs::remove_file(format!("/dev/shm/{kind}_{process}"));
            }
        }
    }
}

fn find_library() -> Result<PathBuf> {
    let folders = fs::read_dir("/usr/lib")?.filter_map(Result::ok);
    let mut found = folders.map(|it| it.path().join("faketime/libfaketimeMT.so.1"));
    found
        .find(|it| it.exists())
        .context("libfaketime (Debian: apt-get install libfaketime)")
}
