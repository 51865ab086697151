//! A clock of a server's own that can be put forward while the server runs.
//!
//! It is Debian's `libfaketime`, loaded into the server: the server's wall clock is the machine's
//! and some time more, and its monotonic clock is the machine's. It does not go together with
//! `jemalloc`, which asks for the time before any library is ready: Debian's `redis-server` hangs.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::private::RunAs;

/// How often a process looks at the file, in seconds: each look costs a call that asks for the
/// time.
const LOOK: &str = "1";

/// See the module.
#[derive(Debug)]
pub(super) struct SteppedClock {
    library: PathBuf,
    user: RunAs,
    /// Says how far ahead the clock is.
    file: PathBuf,
    ahead: Mutex<Duration>,
}

impl SteppedClock {
    /// A clock that is right until it is put forward. Its file is in `folder`, which is the user's.
    pub(super) fn new(user: RunAs, folder: &Path) -> Result<Self> {
        let clock = Self {
            library: library()?,
            user,
            file: folder.join("clock"),
            ahead: Mutex::default(),
        };
        clock.put_forward(Duration::ZERO)?;
        Ok(clock)
    }

    /// What a process has in its environment that goes by this clock.
    pub(super) fn environment(&self) -> [(&'static str, &Path); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("FAKETIME_TIMESTAMP_FILE", &self.file),
            ("FAKETIME_CACHE_DURATION", Path::new(LOOK)),
            ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
        ]
    }

    /// Puts it forward. Its server sees that about a second later.
    pub(super) fn put_forward(&self, by: Duration) -> Result<()> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead += by;
        // A server never sees half of a file.
        let new = self.file.with_extension("new");
        let offset = format!("+{}.{:06}\n", ahead.as_secs(), ahead.subsec_micros());
        self.user.write(&new, offset)?;
        Ok(fs::rename(new, &self.file)?)
    }
}

fn library() -> Result<PathBuf> {
    let folders = fs::read_dir("/usr/lib")?.filter_map(Result::ok);
    let mut found = folders.map(|it| it.path().join("faketime/libfaketimeMT.so.1"));
    found
        .find(|it| it.exists())
        .context("libfaketime (Debian: apt-get install libfaketime)")
}
