//! The state file, and the file of exported locks beside it.
//!
//! Invariant: after a crash at any moment, each file has its old content or its new one, and the
//! locks are read only if the state says so. One process at a time has the files.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use distlock_core::{Error, Result, path_excerpt};
use rustix::fs::{FlockOperation, flock};

use super::state::{State, Unreadable, digest};
use crate::config::config_error;

/// The option that names the file.
const OPTION: &str = "state";

/// The files of one server, which this process alone uses.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    /// The lock ends with this process.
    _lock: File,
}

impl StateFile {
    /// Opens the files, without reading them.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) if another process uses them, or
    /// if the folder cannot be written.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let lock_path = beside(path, "lock");
        let unusable = |error: io::Error| wrong(path, "cannot be used").caused_by(error);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(unusable)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(wrong(
                path,
                "is used by another lock server: give each one its own",
            )),
            Err(error) => Err(unusable(error.into())),
        }
    }

    /// Reads the state; `None` if there is no file.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a file that is no state. Such
    /// a file is never overwritten.
    pub(super) fn read(&self) -> Result<Option<State>> {
        let text = match fs::read(&self.path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(&self.path, "cannot be read").caused_by(error)),
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
            wrong(&self.path, problem)
        };
        State::from_text(&text).map(Some).map_err(unreadable)
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
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
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
        let nowhere = folder.path().join("missing/server.state");
        assert!(StateFile::open(&nowhere).is_err());
    }
}
