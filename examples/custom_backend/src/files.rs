//! The files of a folder: one file for each record, and two files for all writers.
//!
//! Invariant: a file with the name of a record is complete. A writer writes it under another name
//! first, and renames it while the writer holds the folder's lock.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use distlock::{Entry, Error, ErrorKind, Result, Version};
use uuid::Uuid;

/// The first word of the file of every record. Another format would have another number.
const FORMAT: &str = "distlock-folder-1";

/// The longest wait of a writer for the folder's lock.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// The files of one folder.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    /// The id of the present boot of the host.
    boot: String,
}

/// A record as it is stored.
pub(crate) struct Stored {
    pub(crate) key: String,
    pub(crate) version: u64,
    /// The boot in which the record was written, and the time from that boot to the write.
    boot: String,
    written_at: Duration,
    pub(crate) value: Vec<u8>,
}

/// The folder's lock, held by one writer. The lock ends when the value is dropped, and with the
/// process of the writer.
pub(crate) struct WriterLock {
    _lock: File,
}

impl Files {
    /// Opens a folder, and creates the folder if it is missing.
    pub(crate) fn open(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder).map_err(failure)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(failure)?;
        Ok(Self {
            folder,
            boot: boot.trim().to_owned(),
        })
    }

    /// Waits until this writer holds the folder's lock.
    pub(crate) fn lock_for_writing(&self) -> Result<WriterLock> {
        let lock = File::create(self.folder.join("writers")).map_err(failure)?;
        let started = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(WriterLock { _lock: lock }),
                Err(TryLockError::Error(error)) => return Err(failure(error)),
                Err(TryLockError::WouldBlock) if started.elapsed() < MAX_WAIT => {
                    thread::sleep(Duration::from_micros(200));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        format!("another process has been writing for {MAX_WAIT:?}"),
                    ));
                }
            }
        }
    }

    /// A version that no record has had: higher than the last version, and not lower than the time
    /// in microseconds. So versions rise even if the file of the last version was lost.
    pub(crate) fn next_version(&self, _: &WriterLock, since_1970: Duration) -> Result<u64> {
        let path = self.folder.join("last-version");
        let last = match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map_err(|_| corrupt(&path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failure(error)),
        };
        let now = u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX);
        let next = now.max(last + 1);
        self.replace(&path, next.to_string().as_bytes())?;
        Ok(next)
    }

    pub(crate) fn read(&self, key: &str) -> Result<Option<Stored>> {
        let stored = self.read_file(&self.path(key))?;
        match stored {
            // The file of another key has the same name. Its record must not count as the record of
            // this key, and this key must not count as absent.
            Some(stored) if stored.key != key => Err(corrupt(&self.path(key))),
            stored => Ok(stored),
        }
    }

    pub(crate) fn write(
        &self,
        _: &WriterLock,
        key: &str,
        version: u64,
        since_boot: Duration,
        value: &[u8],
    ) -> Result<()> {
        let (boot, written) = (&self.boot, since_boot.as_micros());
        let mut bytes = format!("{FORMAT} {version} {boot} {written} {}\n", key.len()).into_bytes();
        bytes.extend_from_slice(key.as_bytes());
        bytes.extend_from_slice(value);
        self.replace(&self.path(key), &bytes)
    }

    pub(crate) fn remove(&self, _: &WriterLock, key: &str) -> Result<()> {
        fs::remove_file(self.path(key)).map_err(failure)
    }

    /// All records, in any order.
    pub(crate) fn all(&self) -> Result<Vec<Stored>> {
        let mut found = Vec::new();
        for file in fs::read_dir(&self.folder).map_err(failure)? {
            let path = file.map_err(failure)?.path();
            if path.extension().is_some_and(|end| end == "record") {
                // The file may have been deleted since the folder was read. Such a file gives no
                // record.
                found.extend(self.read_file(&path)?);
            }
        }
        Ok(found)
    }

    /// The entry of a stored record. `since_boot` is the present time.
    pub(crate) fn entry(&self, stored: Stored, since_boot: Duration) -> Entry {
        let age = since_boot.saturating_sub(stored.written_at);
        let in_this_boot = stored.boot == self.boot;
        Entry::new(
            Version::new(stored.version),
            stored.value,
            in_this_boot.then_some(age),
        )
        .read_at(since_boot)
    }

    /// The path of a record's file. A key may be too long for the name of a file, and may have any
    /// character, so the name is a hash of the key.
    fn path(&self, key: &str) -> PathBuf {
        let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, key.as_bytes());
        self.folder.join(format!("{}.record", id.simple()))
    }

    fn read_file(&self, path: &Path) -> Result<Option<Stored>> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failure(error)),
        };
        parse(&bytes).ok_or_else(|| corrupt(path)).map(Some)
    }

    /// Writes a file under another name, flushes the file, and renames it.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let new = self.folder.join("new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(bytes)?;
            file.sync_data()?;
            fs::rename(&new, path)
        };
        write().map_err(failure)
    }
}

fn parse(bytes: &[u8]) -> Option<Stored> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let [FORMAT, version, boot, written, length] = head.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    let (key, value) = bytes[end + 1..].split_at_checked(length.parse().ok()?)?;
    Some(Stored {
        key: std::str::from_utf8(key).ok()?.to_owned(),
        version: version.parse().ok()?,
        boot: boot.to_owned(),
        written_at: Duration::from_micros(written.parse().ok()?),
        value: value.to_owned(),
    })
}

fn corrupt(path: &Path) -> Error {
    let message = format!("{} is no record of this store", path.display());
    Error::new(ErrorKind::Corrupt, message)
}

/// Turns an error of the file system into an error of the library. No error means an unknown
/// outcome: every change is one rename or one removal, which comes last.
fn failure(error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::AccessDenied,
        io::ErrorKind::StorageFull => ErrorKind::LimitExceeded,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "the folder of the locks cannot be used").caused_by(error)
}
