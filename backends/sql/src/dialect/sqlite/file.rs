//! Checks the database file before SQLite opens it.
//!
//! The module never opens an existing file. When a process closes any descriptor of a file, the
//! operating system drops all locks of the process on that file, and SQLite depends on these locks.

use std::{
    fs,
    io::{self, ErrorKind as Io},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use distlock_backend_kit::network_file_system;
use distlock_core::{Error, ErrorKind, Result, path_excerpt, sync::Mutex};
use rustix::fs::Access;

use super::options::SqliteConfig;
use crate::tables::migration;

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The identity of the file that is at the path now; `None` when there is no file.
    pub(super) fn of(path: &Path) -> io::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(Some(Self::from(&metadata))),
            Err(error) if error.kind() == Io::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl From<&fs::Metadata> for FileId {
    fn from(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// The absolute path of the file. With an absolute path, a later change of the working folder has
/// no effect, and SQLite never treats the path as a URI.
pub(super) fn absolute(config: &SqliteConfig) -> Result<PathBuf> {
    config.check()?;
    std::path::absolute(&config.path)
        .map_err(|error| wrong(&config.path, "cannot be resolved").caused_by(error))
}

/// Checks the file and its folder. Creates an absent file if the options allow that; changes
/// nothing else.
pub(super) fn prepare(config: &SqliteConfig, path: &Path) -> Result<()> {
    // `create` closes a descriptor of the file, which drops every lock of this process on the file.
    // So no other thread of this process may open the file with SQLite between the creation and the
    // close.
    static CREATING: Mutex<()> = Mutex::new(());
    let _preparing = CREATING.lock();
    let folder = path.parent().unwrap_or(path);
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(wrong(folder, "is not a folder")),
        Err(error) => return Err(refused(folder, "the folder cannot be used", error)),
    }
    if !config.force
        && let Some(kind) = network_file_system(if path.exists() { path } else { folder })
    {
        return Err(wrong(
            path,
            format!(
                "is on {kind}, where SQLite's locks cannot be relied on: use a local disk, or add \
                    `force=true` if the \
                 file is never shared between hosts and its locks work"
            ),
        ));
    }
    match fs::metadata(path) {
        Ok(metadata) => {
            check_existing(path, folder, &metadata)?;
            match second_name_problem(metadata.nlink(), is_mounted_itself(path)) {
                Some(problem) if !config.force => Err(wrong(path, problem)),
                _ => Ok(()),
            }
        }
        Err(error) if error.kind() == Io::NotFound && !config.migrate => Err(Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "{} does not exist, and `migrate=false` forbids to create it",
                path_excerpt(path)
            ),
        )
        .with_remedy(migration(config.url()))),
        Err(error) if error.kind() == Io::NotFound => create(path),
        Err(error) => Err(refused(path, "cannot be used", error)),
    }
}

fn check_existing(path: &Path, folder: &Path, metadata: &fs::Metadata) -> Result<()> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(wrong(path, "is a folder, not a file"));
    }
    if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        return Err(wrong(path, "is not an ordinary file"));
    }
    // `access` does not open the file. Closing a descriptor would drop the file locks of this
    // process.
    rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK)
        .map_err(|error| refused(path, "cannot be read and written", io::Error::from(error)))?;
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
        refused(
            folder,
            "the folder cannot be written, and SQLite keeps its log beside the file",
            io::Error::from(error),
        )
    })
}

/// The problem of a file that may be in use under a second name. SQLite keeps its log in files
/// beside the path. Processes that open the file with different names use different logs: their
/// locks would not exclude each other, and their writes would damage the file.
fn second_name_problem(names: u64, is_mounted_itself: bool) -> Option<&'static str> {
    if names > 1 {
        return Some(
            "has several names (hard links), and those who use another one would not be excluded: \
                remove the other names, \
             or add `force=true` if nobody ever opens them",
        );
    }
    is_mounted_itself.then_some(
        "is mounted by itself, and those who use it where it came from would not be excluded: \
            mount its folder instead, or \
         add `force=true` if nobody else ever opens it",
    )
}

/// Whether the file itself, and not only its folder, is a mount point. False if the kernel does not
/// report mount points.
#[cfg(target_os = "linux")]
pub(super) fn is_mounted_itself(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn is_mounted_itself(_: &Path) -> bool {
    false
}

/// Creates an empty file that only its owner can read.
fn create(path: &Path) -> Result<()> {
    let created = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match created {
        Ok(file) => {
            drop(file);
            Ok(())
        }
        Err(error) if error.kind() == Io::AlreadyExists => Ok(()),
        Err(error) => Err(refused(path, "cannot be created", error)),
    }
}

/// The error for a call that the operating system refused.
fn refused(path: &Path, problem: impl std::fmt::Display, error: io::Error) -> Error {
    let mut refused = wrong(path, problem);
    if error.kind() == Io::PermissionDenied {
        refused = Error::new(ErrorKind::AccessDenied, refused.message().to_owned());
    }
    refused.caused_by(error)
}

pub(super) fn wrong(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!("{}: {problem}", path_excerpt(path)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_a_hard_link_or_its_own_mount_is_a_problem() {
        assert_eq!(second_name_problem(1, false), None);
        assert!(
            second_name_problem(2, false)
                .unwrap()
                .contains("hard links")
        );
        assert!(
            second_name_problem(1, true)
                .unwrap()
                .contains("mount its folder")
        );
        assert!(is_mounted_itself(Path::new("/proc")));
        assert!(!is_mounted_itself(Path::new("/proc/self")));
    }
}
