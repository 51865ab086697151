//! Tells the processes that wait, and watches for what others tell.
//!
//! SQLite itself notifies nobody. So a process that has freed a lock for which others wait touches
//! the file `-wal` beside the database: it sets the times of the file to now. A process that has
//! left a queue touches `-shm`. On Linux, the kernel reports the touch to every process that
//! watches the file (inotify). SQLite keeps both files as long as a process has the database open,
//! and a process that waits has.
//!
//! There are two files because the kernel reports equal events that nobody has read yet only once.
//! A release and the departure of the next holder alternate, so none of them is lost.
//!
//! A touch follows the commit, so whoever looks because of it sees the change. A touch decides
//! nothing. One without a reason costs a look: SQLite sets the owner of both files whenever root
//! opens them. Where one is missing, for example after a crash between the commit and the touch, a
//! poll finds the change later. Without inotify (another system, or all instances of the user are
//! in use), waiters poll as often as on a store that cannot notify.
//!
//! One thread for each wait group watches. The thread exists only while somebody waits, because a
//! user may have only 128 inotify instances.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use distlock_backend_kit::{batch::Reply, network_file_system, operation::Answer};
use distlock_core::{Clock, Forced, ReleaseOutcome, SystemClock};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, CWD, Timestamps, UTIME_NOW, inotify, utimensat},
    io::Errno,
};

use super::{context::StoreContext, file::FileId};
use crate::wait::WaitGroup;

/// The interval in which the thread checks that the watched files are still at their paths, and
/// that somebody waits.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// What a process tells the others.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// A lock was freed for which another process may wait.
    Release,
    /// A contender has left a queue.
    Departure,
}

impl Told {
    /// The end of the name of the touched file.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Release => "-wal",
            Self::Departure => "-shm",
        }
    }

    /// The file to touch. SQLite follows symbolic links before it names the files.
    fn file(self, database: &Path) -> io::Result<PathBuf> {
        let mut path = database.canonicalize()?.into_os_string();
        path.push(self.suffix());
        Ok(path.into())
    }
}

/// Tells the other processes that locks are free for which they may wait, if these answers say so.
pub(super) fn tell_of_releases(context: &StoreContext, answers: &[Reply<Answer>]) {
    let frees_for_others = |answer: &Reply<Answer>| {
        matches!(
            answer,
            Reply::Done(Ok(Answer::Released(ReleaseOutcome::Released {
                others_waiting: Some(true)
            }) | Answer::Forced(Forced::Released)))
        )
    };
    if answers.iter().any(frees_for_others) {
        tell(&context.path, Told::Release);
    }
}

/// Tells the other processes that a contender has left a queue.
pub(super) fn tell_of_departure(context: &StoreContext) {
    tell(&context.path, Told::Departure);
}

/// Tells the other processes of a change that is committed.
fn tell(database: &Path, what: Told) {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    let told = what.file(database).and_then(|file| {
        utimensat(CWD, &file, &times, AtFlags::empty())?;
        Ok(())
    });
    if let Err(error) = told {
        tracing::debug!(
            path = %database.display(), %error, ?what,
            "the waiters of this SQLite file were not notified; their polls find the change"
        );
    }
}

/// Makes sure that a thread watches for the waiters of this process. If that is impossible, the
/// waiters poll.
pub(super) fn ensure_watching(context: &StoreContext) {
    let (group, clock) = (&context.common.wait_group, &context.common.clock);
    let mut waiting = group.waiting.lock();
    if waiting.is_watched() {
        return;
    }
    let started = Watch::start(context).and_then(|watch| {
        let (group, clock) = (Arc::downgrade(group), Arc::clone(clock));
        thread::Builder::new()
            .name("distlock-watch".into())
            .spawn(move || watch.run(&group, &*clock))
    });
    match started {
        Ok(_) => {
            group.set_watched(&mut waiting, true);
            // Nothing was seen before this moment.
            waiting.polls.note_release(clock.now());
        }
        Err(error) => {
            if !context.told_of_polling.swap(true, Relaxed) {
                tracing::info!(
                    path = %context.path.display(), %error,
                    "waiters poll this SQLite file, so they learn later of a release: the file \
                     cannot be watched (too many inotify instances? see \
                     fs.inotify.max_user_instances)"
                );
            }
        }
    }
}

/// What was told since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    released: bool,
    departures: u32,
    /// Whether the kernel has dropped events, because too many were not read.
    is_incomplete: bool,
}

/// The watch of the files that others touch.
#[derive(Debug)]
struct Watch {
    database: PathBuf,
    inotify: OwnedFd,
    /// The watch descriptors of `-wal` and `-shm`.
    descriptors: [i32; 2],
    /// The watched files. Files that are made anew are others.
    files: [Option<FileId>; 2],
}

impl Watch {
    fn start(context: &StoreContext) -> io::Result<Self> {
        // Where the file system is shared, a touch on another host is not reported.
        if let Some(kind) = network_file_system(&context.path) {
            return Err(io::Error::other(format!("it is on {kind}")));
        }
        Self::of(&context.path)
    }

    fn of(database: &Path) -> io::Result<Self> {
        // The identities are read first: files that are replaced meanwhile then seem to be others,
        // and are watched after the next check.
        let files = present(database)?;
        let inotify =
            inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let watch = |what: Told| {
            let file = what.file(database)?;
            let watch = inotify::add_watch(&inotify, &file, inotify::WatchFlags::ATTRIB)?;
            Ok::<_, io::Error>(watch)
        };
        Ok(Self {
            descriptors: [watch(Told::Release)?, watch(Told::Departure)?],
            database: database.to_owned(),
            inotify,
            files,
        })
    }

    /// Reports what others tell, until nobody waits.
    fn run(mut self, group: &Weak<WaitGroup>, clock: &dyn Clock) {
        let mut check_at = SystemClock.now() + CHECK_EVERY;
        let mut was_idle = false;
        loop {
            let seen = self.wait(check_at.since(SystemClock.now()));
            let Some(group) = group.upgrade() else { return };
            match seen {
                Ok(seen) if seen.is_incomplete => group.note_unwatched(clock.now()),
                Ok(seen) => group.note_seen(clock.now(), seen.released, seen.departures),
                Err(error) => return stop(&group, &self.database, &error),
            }
            if SystemClock.now() < check_at {
                continue;
            }
            check_at = SystemClock.now() + CHECK_EVERY;
            match present(&self.database) {
                Ok(files) if files == self.files => {}
                _ => match Self::of(&self.database) {
                    Ok(watch) => {
                        self = watch;
                        group.note_unwatched(clock.now());
                    }
                    Err(error) => return stop(&group, &self.database, &error),
                },
            }
            // A process that takes the same lock again and again waits most of the time. It would
            // start the thread for each wait if the thread ended after the first look.
            let mut waiting = group.waiting.lock();
            let is_idle = waiting.by_name.is_empty();
            if is_idle && was_idle {
                group.set_watched(&mut waiting, false);
                return;
            }
            was_idle = is_idle;
        }
    }

    /// Waits until something is told, at most for `at_most`.
    fn wait(&self, at_most: Duration) -> io::Result<Seen> {
        let timeout = Timespec {
            tv_sec: at_most.as_secs().cast_signed(),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        let mut readable = [PollFd::new(&self.inotify, PollFlags::IN)];
        match poll(&mut readable, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => Ok(Seen::default()),
            Ok(_) => self.read(),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads all events that are there.
    fn read(&self) -> io::Result<Seen> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut seen = Seen::default();
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(seen),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                seen.is_incomplete = true;
            } else if event.wd() == self.descriptors[0] {
                seen.released = true;
            } else {
                seen.departures += 1;
            }
        }
    }
}

/// The files that are touched now.
fn present(database: &Path) -> io::Result<[Option<FileId>; 2]> {
    let of = |what: Told| FileId::of(&what.file(database)?);
    Ok([of(Told::Release)?, of(Told::Departure)?])
}

/// Ends the watch after a failure: the waiters poll, and their next wait starts another watch.
fn stop(group: &WaitGroup, database: &Path, error: &io::Error) {
    tracing::debug!(
        path = %database.display(), %error,
        "the watch of this SQLite file ended; its waiters poll"
    );
    group.set_watched(&mut group.waiting.lock(), false);
}
