//! A file that only the latest holder can write.
//!
//! This module owns the data file and its two files of the fence. Invariant: the fence of a holder
//! is durable in `FILE.fence` before the data of that holder is visible. After the first write, the
//! module must never treat a missing or unreadable `FILE.fence` as the state of a new file.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind as IoKind, Write as _},
    path::{Path, PathBuf},
};

use super::{Fence, FenceError, FenceGuard, FenceState};
use crate::types::{
    error::{Error, ErrorKind, Result},
    presentable::path_excerpt,
    token::Epoch,
};

/// A file with a [`FenceGuard`] that checks its writers.
///
/// Two files lie beside `FILE`. `FILE.fence` holds the state of the guard. `FILE.fence.lock`
/// carries an exclusive file lock, which makes check and write one step for all threads and
/// processes of this host. Do not move or delete these two files. Each write replaces the whole
/// content; a reader sees the old or the new content, never a part.
///
/// A write first stores the holder's fence durably in `FILE.fence` and then replaces the data. A
/// crash between the two steps is safe. The data is then the complete data of an earlier holder,
/// and `FILE.fence` refuses every holder older than the interrupted holder. The interrupted holder
/// or a later holder can write again. In the reverse order, a crash between the two steps would
/// leave the new holder's data with the old fence, and an older holder could overwrite that data.
///
/// All methods block on the disk. In async code, call the methods from `spawn_blocking`.
///
/// ```
/// # use distlock::{Epoch, Fence, FencedFile, FencingToken, OwnerId};
/// # fn fence(token: u64) -> Fence {
/// #     Fence::new(FencingToken::new(token).unwrap(), OwnerId::new().tag(), Epoch::new("e"))
/// # }
/// # let folder = tempfile::tempdir().unwrap();
/// # let (paused, latest) = (fence(7), fence(8));
/// let file = FencedFile::open(folder.path().join("ledger"))?;
/// file.write(&latest, b"mine")?;
/// assert!(file.write(&paused, b"late").is_err());
/// assert_eq!(file.read()?.as_deref(), Some(&b"mine"[..]));
/// # Ok::<(), distlock::FenceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FencedFile {
    data: PathBuf,
    folder: PathBuf,
}

impl FencedFile {
    /// Names the file. The file need not exist yet, but its folder must. Symbolic links are
    /// resolved, so that every path to one file leads to one fence. A file is refused where some
    /// path to it would lead to another fence.
    ///
    /// # Errors
    /// When the folder cannot be found, or the path names no file; when the path is a symbolic link
    /// to a file that does not exist yet, or a file with several names (hard links).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let resolved = match fs::canonicalize(path) {
            Err(error) if error.kind() == IoKind::NotFound => match path.file_name() {
                // The first write would replace the link by a file. A process that opens the link's
                // target would then use another fence.
                Some(_) if path.is_symlink() => {
                    let why = "is a symbolic link to a file that does not exist: name that file";
                    return Err(refused(path, why));
                }
                Some(name) => {
                    let folder = path
                        .parent()
                        .filter(|folder| !folder.as_os_str().is_empty());
                    fs::canonicalize(folder.unwrap_or(Path::new(".")))
                        .map(|folder| folder.join(name))
                }
                None => Err(IoKind::IsADirectory.into()),
            },
            found => found,
        };
        let data = resolved.map_err(|error| failed("cannot find the folder of", path, error))?;
        if has_other_names(&data) {
            let why = "has several names (hard links), and a write would reach only one: remove \
                       the others";
            return Err(refused(path, why));
        }
        match data.parent() {
            Some(folder) if !data.is_dir() => Ok(Self {
                folder: folder.to_owned(),
                data,
            }),
            _ => Err(refused(path, "is a folder, not a file")),
        }
    }

    /// Replaces the content, unless a later holder has written or has read with
    /// [`FencedFile::read_fenced`].
    ///
    /// # Errors
    /// [`FenceError::Refused`], and nothing has changed. [`FenceError::Failed`] when the disk
    /// failed or `FILE.fence` cannot be read ([`ErrorKind::Corrupt`]); the old content then stays,
    /// except after [`ErrorKind::OutcomeUnknown`].
    pub fn write(&self, fence: &Fence, content: &[u8]) -> Result<(), FenceError> {
        let _locked = self.check_and_store(fence)?;
        Ok(self.replace(&self.data, &self.sidecar(".fence.data"), content)?)
    }

    /// Records the fence as the highest one, and then reads the content. A holder that computes its
    /// new content from the old content must read with this method: no older holder can write after
    /// the read.
    ///
    /// # Errors
    /// As [`FencedFile::write`].
    pub fn read_fenced(&self, fence: &Fence) -> Result<Option<Vec<u8>>, FenceError> {
        let _locked = self.check_and_store(fence)?;
        Ok(self.read()?)
    }

    /// Reads the content without a check; `None` when the file was never written. The caller needs
    /// no lock.
    ///
    /// # Errors
    /// Failures of the disk.
    pub fn read(&self) -> Result<Option<Vec<u8>>> {
        read_if_there(&self.data)
    }

    /// The highest fence that was let through.
    ///
    /// # Errors
    /// Failures of the disk, and [`ErrorKind::Corrupt`].
    pub fn highest(&self) -> Result<Option<Fence>> {
        Ok(self.lock()?.guard.highest().cloned())
    }

    /// Accepts that the store has started a new history; see [`FenceGuard::reset_to`].
    ///
    /// # Errors
    /// Failures of the disk, and [`ErrorKind::Corrupt`].
    pub fn reset_to(&self, epoch: &Epoch) -> Result<()> {
        let mut locked = self.lock()?;
        locked.guard.reset_to(epoch);
        self.store(&locked)
    }

    /// Forgets all fences that were let through; see [`FenceGuard::reset`]. The content stays.
    ///
    /// # Errors
    /// Failures of the disk, and [`ErrorKind::Corrupt`].
    pub fn reset(&self) -> Result<()> {
        let mut locked = self.lock()?;
        locked.guard.reset();
        self.store(&locked)
    }

    /// Checks a fence and stores it durably as the highest one. The file lock is held as long as
    /// the returned value lives.
    fn check_and_store(&self, fence: &Fence) -> Result<LockedFence, FenceError> {
        let mut locked = self.lock()?;
        let unchanged = locked.guard.highest() == Some(fence);
        locked.guard.check(fence)?;
        if !unchanged {
            self.store(&locked)?;
        }
        Ok(locked)
    }

    fn lock(&self) -> Result<LockedFence> {
        let path = self.sidecar(".fence.lock");
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|error| failed("cannot lock", &path, error))?;
        let in_use = lock
            .metadata()
            .map_err(|error| failed("cannot read", &path, error))?
            .len()
            > 0;
        let path = self.sidecar(".fence");
        let guard = match read_if_there(&path)? {
            Some(text) => {
                let state: FenceState = serde_json::from_slice(&text).map_err(|error| {
                    corrupt(&path, "does not say who wrote last").caused_by(error)
                })?;
                FenceGuard::from_state(state)
            }
            None if in_use => return Err(corrupt(&path, "is gone")),
            None => FenceGuard::new(),
        };
        Ok(LockedFence {
            lock,
            in_use,
            guard,
        })
    }

    fn store(&self, locked: &LockedFence) -> Result<()> {
        let path = self.sidecar(".fence");
        let text = serde_json::to_vec(locked.guard.state()).map_err(|error| {
            Error::new(ErrorKind::Internal, "the fence cannot be written as JSON").caused_by(error)
        })?;
        self.replace(&path, &self.sidecar(".fence.new"), &text)?;
        if !locked.in_use {
            // This mark tells later calls that a missing FILE.fence is damage, not the state of a
            // new file.
            let path = self.sidecar(".fence.lock");
            (&locked.lock)
                .write_all(b"in use\n")
                .and_then(|()| locked.lock.sync_all())
                .map_err(|error| failed("cannot write", &path, error))?;
        }
        Ok(())
    }

    /// Replaces a file in one durable step. The temporary file `fresh` is used only under the file
    /// lock. So an existing file of that name is left over from a crash, and this function removes
    /// it.
    fn replace(&self, path: &Path, fresh: &Path, content: &[u8]) -> Result<()> {
        let written = (|| {
            match fs::remove_file(fresh) {
                Err(error) if error.kind() != IoKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(fresh)?;
            match fs::metadata(path) {
                Ok(old) => file.set_permissions(old.permissions())?,
                Err(error) if error.kind() == IoKind::NotFound => {}
                Err(error) => return Err(error),
            }
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(fresh, path)
        })();
        written.map_err(|error| failed("cannot write", path, error))?;
        self.sync_folder().map_err(|error| {
            Error::new(
                ErrorKind::OutcomeUnknown,
                format!("cannot make the change of {} durable", path.display()),
            )
            .caused_by(error)
        })
    }

    /// Makes a rename durable on Unix. Other systems cannot sync a folder.
    fn sync_folder(&self) -> io::Result<()> {
        if cfg!(unix) {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }

    fn sidecar(&self, suffix: &str) -> PathBuf {
        let mut path = OsString::from(&self.data);
        path.push(suffix);
        path.into()
    }
}

/// The exclusive file lock, with the guard that was read under this lock.
struct LockedFence {
    lock: File,
    /// Whether `FILE.fence` was ever written.
    in_use: bool,
    guard: FenceGuard,
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == IoKind::NotFound => Ok(None),
        Err(error) => Err(failed("cannot read", path, error)),
    }
}

/// Whether the file has a second name (a hard link).
#[cfg(unix)]
fn has_other_names(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.nlink() > 1)
}

#[cfg(not(unix))]
fn has_other_names(_: &Path) -> bool {
    false
}

fn refused(path: &Path, why: &str) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("{} {why}", path.display()),
    )
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    let full = matches!(error.kind(), IoKind::StorageFull | IoKind::QuotaExceeded);
    let kind = match error.kind() {
        IoKind::PermissionDenied | IoKind::ReadOnlyFilesystem => ErrorKind::AccessDenied,
        IoKind::StorageFull | IoKind::QuotaExceeded | IoKind::FileTooLarge => {
            ErrorKind::LimitExceeded
        }
        IoKind::IsADirectory | IoKind::NotADirectory | IoKind::InvalidFilename => {
            ErrorKind::InvalidArgument
        }
        _ => ErrorKind::Unavailable,
    };
    let error = Error::new(kind, format!("{what} {}", path_excerpt(path))).caused_by(error);
    if full { error.passing() } else { error }
}

fn corrupt(path: &Path, what: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{} {what}: restore it, or remove it together with its .lock once no former holder is \
             left",
            path_excerpt(path)
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tempfile::TempDir;
    use uuid::Uuid;

    use super::*;
    use crate::{fence::FenceRefusal, types::token::FencingToken};

    fn fence(token: u64, owner: u128) -> Fence {
        Fence::new(
            FencingToken::new(token).unwrap(),
            Uuid::from_u128(owner),
            Epoch::new("e"),
        )
    }

    fn fresh() -> (TempDir, FencedFile) {
        let folder = TempDir::new().unwrap();
        let file = FencedFile::open(folder.path().join("ledger")).unwrap();
        (folder, file)
    }

    fn text(file: &FencedFile) -> String {
        String::from_utf8(file.read().unwrap().unwrap()).unwrap()
    }

    #[test]
    fn a_full_disk_is_retryable_and_a_file_that_is_too_large_is_not() {
        for (kind, passes) in [
            (IoKind::StorageFull, true),
            (IoKind::QuotaExceeded, true),
            (IoKind::FileTooLarge, false),
        ] {
            let error = failed("cannot write", Path::new("x"), kind.into());
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{kind}");
            assert_eq!(error.is_retryable(), passes, "{kind}");
        }
    }

    #[test]
    fn an_older_holder_is_refused_after_a_newer_one_read() {
        let (_folder, file) = fresh();
        assert_eq!(file.read().unwrap(), None);
        assert_eq!(file.highest().unwrap(), None);
        file.write(&fence(5, 1), b"five").unwrap();
        file.write(&fence(5, 1), b"five again").unwrap();
        // This read records fence 6. From here on the holder of fence 5 cannot write, although the
        // holder of fence 6 has not written.
        assert_eq!(
            file.read_fenced(&fence(6, 2)).unwrap().as_deref(),
            Some(&b"five again"[..])
        );
        let refused = file.write(&fence(5, 1), b"late").unwrap_err();
        assert!(matches!(
            refused.refusal(),
            Some(FenceRefusal::Older { .. })
        ));
        assert_eq!(Error::from(refused).kind(), ErrorKind::Lost);
        assert!(matches!(
            file.write(&fence(6, 3), b"impostor").unwrap_err(),
            FenceError::Refused(FenceRefusal::SameTokenOtherOwner { .. })
        ));
        assert_eq!(text(&file), "five again");
        assert_eq!(file.highest().unwrap(), Some(fence(6, 2)));
    }

    #[test]
    fn a_damaged_or_removed_fence_file_is_reported_as_corrupt() {
        let (folder, file) = fresh();
        file.write(&fence(5, 1), b"five").unwrap();
        let sidecar = folder.path().join("ledger.fence");
        let good = fs::read(&sidecar).unwrap();
        for bad in [&b""[..], b"{}", b"null", &good[..good.len() / 2]] {
            fs::write(&sidecar, bad).unwrap();
            let error = Error::from(file.write(&fence(9, 9), b"nine").unwrap_err());
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert_eq!(
                file.reset_to(&Epoch::new("f")).unwrap_err().kind(),
                ErrorKind::Corrupt
            );
        }
        fs::remove_file(&sidecar).unwrap();
        assert_eq!(file.highest().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(text(&file), "five");
        fs::write(&sidecar, good).unwrap();
        file.write(&fence(6, 1), b"six").unwrap();
    }

    #[test]
    fn a_crash_between_fence_and_data_leaves_the_older_data_and_the_newer_fence() {
        let (folder, file) = fresh();
        file.write(&fence(5, 1), b"five").unwrap();
        drop(file.check_and_store(&fence(7, 2)).unwrap());
        fs::write(folder.path().join("ledger.fence.data"), b"sev").unwrap();
        assert_eq!(text(&file), "five");
        assert!(file.write(&fence(6, 3), b"six").is_err());
        file.write(&fence(7, 2), b"seven").unwrap();
        assert_eq!(text(&file), "seven");
    }

    #[test]
    fn a_failed_write_leaves_the_old_content() {
        let (folder, file) = fresh();
        file.write(&fence(5, 1), b"five").unwrap();
        // A folder has the name of the temporary file, so the temporary file cannot be created.
        fs::create_dir(folder.path().join("ledger.fence.data")).unwrap();
        let error = Error::from(file.write(&fence(6, 2), b"six").unwrap_err());
        assert!(error.did_not_happen(), "{error}");
        assert_eq!(text(&file), "five");
    }

    #[test]
    fn a_lower_token_of_a_new_epoch_passes_after_a_reset() {
        let (_folder, file) = fresh();
        file.write(&fence(5, 1), b"old").unwrap();
        let next = Fence::new(
            FencingToken::new(2).unwrap(),
            Uuid::from_u128(7),
            Epoch::new("f"),
        );
        assert!(matches!(
            file.write(&next, b"new").unwrap_err(),
            FenceError::Refused(FenceRefusal::LowerInNewEpoch { .. })
        ));
        file.reset_to(&next.epoch).unwrap();
        file.write(&next, b"new").unwrap();
        assert!(file.write(&fence(6, 1), b"old").is_err());
    }

    #[test]
    fn a_folder_or_a_missing_folder_is_refused_with_its_path() {
        let folder = TempDir::new().unwrap();
        let error = FencedFile::open(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = FencedFile::open(folder.path().join("no/such")).unwrap_err();
        assert!(error.to_string().contains("no/such"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_symbolic_link_leads_to_the_fence_of_its_target() {
        let (folder, file) = fresh();
        file.write(&fence(5, 1), b"five").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("ledger"), &link).unwrap();
        let linked = FencedFile::open(&link).unwrap();
        assert!(linked.write(&fence(4, 2), b"late").is_err());
        linked.write(&fence(6, 2), b"six").unwrap();
        assert_eq!(text(&file), "six");
    }

    #[cfg(unix)]
    #[test]
    fn a_symbolic_link_to_a_missing_file_is_refused() {
        let (folder, file) = fresh();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("ledger", &link).unwrap();
        let error = FencedFile::open(&link).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("link"), "{error}");
        file.write(&fence(5, 1), b"five").unwrap();
        let linked = FencedFile::open(&link).unwrap();
        assert!(linked.write(&fence(4, 2), b"late").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_with_a_hard_link_is_refused_by_either_name() {
        let (folder, file) = fresh();
        file.write(&fence(5, 1), b"five").unwrap();
        let names = ["ledger", "other name"].map(|name| folder.path().join(name));
        fs::hard_link(&names[0], &names[1]).unwrap();
        for name in &names {
            let error = FencedFile::open(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(
                error.to_string().contains(name.to_str().unwrap()),
                "{error}"
            );
            assert!(error.to_string().contains("hard links"), "{error}");
        }
        fs::remove_file(&names[1]).unwrap();
        FencedFile::open(&names[0]).unwrap();
    }

    /// Each thread opens the file for itself, as separate processes would. In every order of
    /// writes, the tokens that pass never fall, and the file at the end holds the content of the
    /// last write that passed.
    #[test]
    fn tokens_of_concurrent_writers_never_fall() {
        let (_folder, file) = fresh();
        let file = &file;
        let mut passed: Vec<(u64, Vec<u64>)> = thread::scope(|scope| {
            let writers: Vec<_> = (0..4u64)
                .map(|writer| {
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(writer);
                        let own = FencedFile::open(&file.data).unwrap();
                        let mut passed = Vec::new();
                        for round in 0..25 {
                            let token = 1 + round * 4 + random.u64(0..8);
                            let line = format!("{token} {writer}\n");
                            if own
                                .write(&fence(token, u128::from(writer)), line.as_bytes())
                                .is_ok()
                            {
                                passed.push(token);
                            }
                        }
                        (writer, passed)
                    })
                })
                .collect();
            writers
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .collect()
        });
        let last = passed
            .iter()
            .filter_map(|(writer, tokens)| Some((*tokens.last()?, *writer)))
            .max()
            .unwrap();
        assert_eq!(text(file), format!("{} {}\n", last.0, last.1));
        // No token passed for two different writers.
        let mut owners = std::collections::HashMap::new();
        for (writer, tokens) in &mut passed {
            assert!(tokens.is_sorted());
            tokens.dedup();
            for token in tokens {
                assert_eq!(owners.insert(*token, *writer), None, "token {token}");
            }
        }
        assert_eq!(
            file.highest().unwrap().map(|fence| fence.token.get()),
            Some(last.0)
        );
    }
}
