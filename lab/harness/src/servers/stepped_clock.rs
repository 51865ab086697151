//! A separate clock for one server, which can be stepped while the server runs.
//!
//! The clock is Debian's `libfaketime`, loaded into the server. The server's wall clock is the
//! machine's wall clock plus an offset, and its monotonic clock is the machine's.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use distlock_core::{SystemClock, sync::Mutex, unix_time};

use crate::{eventually, servers::isolation::RunAs};

/// Time-out for the server to see a step.
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// The error of a time that a server tells, in seconds: servers tell microseconds.
const ROUNDING: f64 = 0.001;

/// The stepped clock of one server.
#[derive(Debug)]
pub(super) struct SteppedClock {
    /// The libraries to load before those of the program.
    preload: OsString,
    user: RunAs,
    /// The file with the clock's offset.
    file: PathBuf,
    /// The clock's offset in seconds.
    offset: Mutex<f64>,
    /// The processes that have used the clock.
    used_by: Mutex<Vec<u32>>,
}

impl SteppedClock {
    /// Makes a clock that shows the machine's time until its first step. The file of the clock is
    /// in `folder`, which belongs to `user`.
    pub(super) fn new(user: RunAs, folder: &Path) -> Result<Self> {
        let clock = Self {
            preload: preload()?,
            user,
            file: folder.join("clock"),
            offset: Mutex::default(),
            used_by: Mutex::default(),
        };
        clock.write_offset(0.0)?;
        Ok(clock)
    }

    /// Returns the environment variables that make a process use this clock.
    pub(super) fn environment(&self) -> [(&'static str, &OsStr); 4] {
        [
            ("LD_PRELOAD", &self.preload),
            ("FAKETIME_TIMESTAMP_FILE", self.file.as_os_str()),
            // Without a cache, all processes of a server see a step at once, because each reading
            // of the clock reads the file. With a cache, the clocks of the processes would differ
            // for a while.
            ("FAKETIME_NO_CACHE", OsStr::new("1")),
            ("FAKETIME_DONT_FAKE_MONOTONIC", OsStr::new("1")),
        ]
    }

    /// Records a process that uses this clock. The library leaves the shared memory of a killed
    /// process. When the clock is dropped, the shared memory of all recorded processes is removed.
    pub(super) fn note_process(&self, process: u32) {
        let mut used_by = self.used_by.lock();
        used_by.push(process);
    }

    /// Steps the clock by so many seconds, back if the number is negative, and waits until the
    /// server has seen the step. `now` asks the server for its time, in seconds since 1970.
    pub(super) fn step(&self, by: f64, now: impl Fn() -> Result<f64>) -> Result<()> {
        let offset = {
            let mut offset = self.offset.lock();
            *offset += by;
            *offset
        };
        self.write_offset(offset)?;
        // The server reads its clock between the two readings of the machine's clock. So neither a
        // slow answer nor a short step makes this check fail.
        eventually("the server sees its clock", STEP_LIMIT, || {
            let asked = unix_time(&SystemClock).as_secs_f64();
            now().is_ok_and(|now| {
                let answered = unix_time(&SystemClock).as_secs_f64();
                let read = now - offset;
                asked - ROUNDING <= read && read <= answered + ROUNDING
            })
        })
    }

    /// Writes the clock's offset to its file.
    fn write_offset(&self, offset: f64) -> Result<()> {
        // A new file is written and then renamed. Otherwise the server could read a half-written
        // file.
        let new = self.file.with_extension("new");
        self.user
            .write_private_file(&new, format!("{offset:+.6}\n"))?;
        Ok(fs::rename(new, &self.file)?)
    }
}

impl Drop for SteppedClock {
    fn drop(&mut self) {
        let used_by = self.used_by.get_mut();
        for process in used_by {
            for kind in ["faketime_shm", "sem.faketime_sem"] {
                // A process that ended by itself has removed its own files.
                let _ = fs::remove_file(format!("/dev/shm/{kind}_{process}"));
            }
        }
    }
}

/// Returns the libraries to load first. The C library comes right after `libfaketime`, so that its
/// `malloc` is used. A program with `jemalloc` as its `malloc`, such as Debian's `redis-server`,
/// would hang otherwise: `jemalloc` asks for the time while it starts, and `libfaketime` then asks
/// `jemalloc` for memory.
fn preload() -> Result<OsString> {
    let folders = fs::read_dir("/usr/lib")?.filter_map(Result::ok);
    let mut found = folders.map(|it| it.path().join("faketime/libfaketimeMT.so.1"));
    let library = found
        .find(|it| it.exists())
        .context("libfaketime (Debian: apt-get install libfaketime)")?;
    let mut preload = library.into_os_string();
    preload.push(":libc.so.6");
    Ok(preload)
}
