//! The state file, and the file of exported locks beside it.
//!
//! Invariant: after a crash at any moment, each file has its old content or its new one, and the
//! locks are read only if the state says so. One process at a time has the files.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use distlock_backend_kit::network_file_system;
use distlock_core::{Error, Result, path_excerpt};
use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use super::state::{State, Unreadable, digest, is_unknown};
use crate::config::config_error;

/// The option that names the file.
const OPTION: &str = "state";

/// The files of one server, which this process alone uses.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// The path without links, for people and for comparison.
    place: String,
    /// The lock ends with this process. The file holds the number of the last start, which a copy
    /// of the state file that is put back does not change.
    lock: File,
}

impl StateFile {
    /// Opens the files, without reading them.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) if another process uses them, if
    /// the folder cannot be written, or if it is on a network file system.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let path = &without_links(path);
        if let Some(kind) = network_file_system(folder_of(path)) {
            return Err(on_network(path, kind));
        }
        let lock_path = beside(path, "lock");
        let unusable = |error: io::Error| wrong(path, "cannot be used").caused_by(error);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(unusable)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let problem = "is used by another lock server: give each one its own";
                return Err(wrong(path, problem));
            }
            Err(error) => return Err(unusable(error.into())),
        }
        let place = fs::canonicalize(&lock_path).map_err(unusable)?;
        Ok(Self {
            path: path.to_owned(),
            place: place.to_string_lossy().into_owned(),
            lock,
        })
    }

    /// Reads a file without opening it for use: another server may use it.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a file that is no state, for
    /// one on a network file system, and for one in a folder that does not exist.
    pub(super) fn check(path: &Path) -> Result<()> {
        let path = &without_links(path);
        let folder = folder_of(path);
        if !folder.is_dir() {
            return Err(wrong(path, "is in no folder that exists"));
        }
        if let Some(kind) = network_file_system(folder) {
            return Err(on_network(path, kind));
        }
        read(path).map(drop)
    }

    /// Where the files are.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Reads the state; `None` if there is no file.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a file that is no state, and
    /// for an older copy. Such a file is never overwritten.
    pub(super) fn read(&self) -> Result<Option<State>> {
        let Some(state) = read(&self.path)? else {
            return Ok(None);
        };
        // Locks that were force-released after the copy was made could be proven.
        if self
            .last_start(state.server)?
            .is_some_and(|last| is_unknown(last, state.start))
        {
            let problem = "is an older copy: restore the newest one, or move it away, and the \
                           server starts with a recovery";
            return Err(wrong(&self.path, problem));
        }
        Ok(Some(state))
    }

    /// The number of the last start of this server; `None` if it is not known.
    fn last_start(&self, server: Uuid) -> Result<Option<u64>> {
        let mut text = [0; 64];
        let read = self.lock.read_at(&mut text, 0);
        let read = read.map_err(|error| wrong(&self.path, "cannot be read").caused_by(error))?;
        let text = std::str::from_utf8(&text[..read]).unwrap_or_default();
        let known = text.trim_end().split_once(' ');
        let known = known.filter(|(of, _)| *of == server.to_string());
        Ok(known.and_then(|(_, start)| start.parse().ok()))
    }

    /// Whether the last start that used this place is the one of this state. The state of another
    /// server may have been here since.
    pub(super) fn is_of_last_start(&self, state: &State) -> bool {
        let last = self.last_start(state.server);
        last.is_ok_and(|last| last == Some(state.start))
    }

    /// Whether a server has started here before.
    pub(super) fn was_used(&self) -> bool {
        self.lock.metadata().is_ok_and(|it| it.len() > 0)
    }

    /// Stores the number of this start beside the state, after the state itself.
    pub(super) fn write_start(&self, state: &State) -> io::Result<()> {
        let text = format!("{} {:<20}\n", state.server, state.start);
        self.lock.write_all_at(text.as_bytes(), 0)?;
        self.lock.sync_all()
    }

    /// The error of a start that cannot write the file.
    pub(super) fn unwritable(&self, error: io::Error) -> Error {
        wrong(&self.path, "cannot be written").caused_by(error)
    }

    /// Replaces the state. It is durable afterwards.
    pub(super) fn write(&self, state: &State) -> io::Result<()> {
        replace(&self.path, state.to_text()?.as_bytes())
    }

    /// Replaces the exported locks, and returns their digest.
    pub(super) fn write_locks(&self, locks: &[u8]) -> io::Result<String> {
        replace(&beside(&self.path, "locks"), locks)?;
        Ok(digest(locks))
    }

    /// Reads the exported locks if they have this digest.
    pub(super) fn read_locks(&self, expected: &str) -> Option<Vec<u8>> {
        let locks = fs::read(beside(&self.path, "locks")).ok()?;
        (digest(&locks) == expected).then_some(locks)
    }
}

/// Reads the state of this file, which may be an older copy; `None` if there is no file.
fn read(path: &Path) -> Result<Option<State>> {
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(path, "cannot be read").caused_by(error)),
    };
    let unreadable = |why| {
        let problem = match why {
            Unreadable::Foreign => "is no state file of a lock server",
            Unreadable::OtherVersion => {
                "was written by another version of distlock: use that version"
            }
            Unreadable::Damaged => {
                "is damaged, so its tokens and leases are not known: restore it, or move it \
                 away, and the server starts with a recovery"
            }
        };
        wrong(path, problem)
    };
    State::from_text(&text).map(Some).map_err(unreadable)
}

/// The path of another file beside the state file.
fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Replaces a file in one step. Its new content is durable afterwards.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let fresh = beside(path, "new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(content)?;
    // Without this, a crash of the machine could leave the new name with an empty file.
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(folder_of(path))?.sync_all()
}

/// The file that a link names. Beside the link, another server would use the same state at the same
/// time, and the first write would put a file in the place of the link.
fn without_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // As many as Linux follows.
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&path) else {
            break;
        };
        path = folder_of(&path).join(target);
    }
    path
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    folder.unwrap_or_else(|| Path::new("."))
}

fn on_network(path: &Path, kind: &str) -> Error {
    let problem = format!(
        "is on {kind}, where two servers could use it at the same time: name a file on a local disk"
    );
    wrong(path, &problem)
}

fn wrong(path: &Path, problem: &str) -> Error {
    let path = path_excerpt(path);
    config_error(OPTION, &format!("is \"{path}\", which {problem}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_state_is_durable_and_used_by_one_server_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.state");
        let file = StateFile::open(&path).unwrap();
        assert_eq!(file.read().unwrap(), None);
        let mut state = State::new(Duration::from_secs(60));
        file.write(&state).unwrap();
        state.start += 1;
        file.write(&state).unwrap();
        file.write_start(&state).unwrap();
        assert_eq!(file.read().unwrap(), Some(state.clone()));
        let refused = StateFile::open(&path).unwrap_err();
        assert!(
            refused.to_string().contains("another lock server"),
            "{refused}"
        );
        drop(file);
        let file = StateFile::open(&path).unwrap();
        assert_eq!(file.read().unwrap(), Some(state));

        let digest = file.write_locks(b"locks").unwrap();
        assert_eq!(file.read_locks(&digest).as_deref(), Some(&b"locks"[..]));
        file.write_locks(b"others").unwrap();
        assert_eq!(file.read_locks(&digest), None);
    }

    #[test]
    fn a_link_is_the_file_that_it_names() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, link) = (folder.path().join("state"), elsewhere.path().join("link"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let file = StateFile::open(&link).unwrap();
        let state = State::new(Duration::from_secs(60));
        file.write(&state).unwrap();
        assert!(link.is_symlink() && !path.is_symlink());
        let refused = StateFile::open(&path).unwrap_err().to_string();
        assert!(refused.contains("another lock server"), "{refused}");
        drop(file);
        let file = StateFile::open(&path).unwrap();
        assert_eq!(file.read().unwrap(), Some(state));
    }

    #[test]
    fn an_older_copy_is_refused_and_the_state_of_another_server_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.state");
        let file = StateFile::open(&path).unwrap();
        let mut state = State::new(Duration::from_secs(60));
        for start in [1, 2, 10] {
            let older = state.clone();
            state.start = start;
            file.write(&state).unwrap();
            file.write_start(&state).unwrap();
            assert_eq!(file.read().unwrap(), Some(state.clone()));
            file.write(&older).unwrap();
            let error = file.read().unwrap_err();
            assert!(error.to_string().contains("older copy"), "{error}");
        }
        let another = State::new(Duration::from_secs(60));
        file.write(&another).unwrap();
        assert_eq!(file.read().unwrap(), Some(another));
    }

    #[test]
    fn a_file_that_is_no_state_is_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.state");
        let text = State::new(Duration::from_secs(60)).to_text().unwrap();
        for (content, says) in [
            ("", "no state file"),
            ("# notes\n", "no state file"),
            (&text[..text.len() / 2], "damaged"),
            ("distlock-state 9 00\n{}\n", "another version"),
        ] {
            fs::write(&path, content).unwrap();
            let error = StateFile::open(&path).unwrap().read().unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.setting(), Some("state"));
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        // No file that can be read.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = StateFile::open(&path).unwrap().read().unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
        let nowhere = folder.path().join("missing/server.state");
        assert!(StateFile::open(&nowhere).is_err());
        let remote = on_network(&path, "NFS");
        assert!(remote.to_string().contains("is on NFS"), "{remote}");
        assert_eq!(remote.setting(), Some("state"));
    }
}
